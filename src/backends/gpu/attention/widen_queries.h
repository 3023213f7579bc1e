#pragma once

#include <cstddef>
#include <string>

#include "attention/narrow.h"
#include "backends/gpu/attention/attention_kernel.h"
#include "common/widen_queries.h"
#include "tessera/attention.h"

// Queries of 8 bits for kernels that take none: one of its own (common/widen_queries.cu) widens them in the
// workspace first, which loses nothing, and the attention kernel sees a problem with q of o's dtype. Their
// scales reach it as those of the keys do.

namespace tessera::gpu {

/// Whether calls of `kernel` have q widened first.
inline bool widens_queries(const AttentionKernel& kernel, const AttentionProblem& problem) {
  return has_narrow_q(problem) && !kernel.takes_narrow_q;
}

/// `problem` with its queries, widened, at `wide`.
AttentionProblem with_wide_queries(AttentionProblem problem, const std::byte* wide);

/// The problem that `kernel` sees, for choosing: a q that is widened is null, and as aligned as one can be.
AttentionProblem problem_of_kernel(const AttentionKernel& kernel, const AttentionProblem& problem);

/// Bytes of widened queries. Throws Error{kOutOfMemory} if broadcast ones are more than 64 bits can count.
std::size_t wide_queries_bytes(const AttentionProblem& problem);

/// Where a call's workspace has them; null: nothing is widened.
inline std::byte* wide_queries_of(const KernelChoice& choice, std::byte* workspace) {
  return choice.wide_queries_bytes > 0 ? workspace + choice.wide_queries_begin : nullptr;
}

/// What widens them.
struct WidenQueriesLaunch {
  LaunchShape shape;
  kernels::WidenQueriesParams params;
};
WidenQueriesLaunch widen_queries_launch(const AttentionProblem& problem, std::byte* wide);
ModuleSpec widen_queries_module();
std::string widen_queries_entry(const AttentionProblem& problem);

}  // namespace tessera::gpu
