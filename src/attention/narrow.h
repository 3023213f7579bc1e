#pragma once

#include "tessera/attention.h"

// Queries, keys and values of 8 bits, which are stored but not computed in.

namespace tessera {

/// The dtype that a call is for: its results', and of everything that is not stored in 8 bits.
inline DType wide_dtype(const AttentionProblem& problem) { return problem.o.dtype; }

inline bool has_narrow_q(const AttentionProblem& problem) { return problem.q.dtype == DType::kF8E4M3; }
inline bool has_narrow_kv(const AttentionProblem& problem) { return problem.k.dtype == DType::kF8E4M3; }

}  // namespace tessera
