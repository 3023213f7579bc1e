#pragma once

#include <cstdint>

#include "backends/cpu/attention/tile.h"

namespace tessera::cpu {

/// Merges the partial results of rows [row_begin, row_end) of a task's head and writes o and lse:
/// o = sum_s exp(max_s - max) o_s / sum_s exp(max_s - max) sum_s.  Flash-Decoding (Dao et al., 2023).
/// partials: split s of row r at partials + (s * rows + r) * partial_stride(head_dim_v); the first split's
/// are overwritten.
void merge_splits(const CallContext& call, const TileTask& task, float* partials, int num_splits,
                  std::int64_t rows);

/// MergeStatesProblem's equation for one sequence of the batch.
void merge_states_of_sequence(const MergeStatesProblem& problem, std::int64_t sequence);

}  // namespace tessera::cpu
