#include "backends/gpu/attention/widen_queries.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>

#include "attention/tensor_extents.h"
#include "backends/gpu/attention/problem_params.h"
#include "core/aligned_memory.h"

namespace tessera::gpu {
namespace {

bool has_aligned_queries(const AttentionProblem& p) {
  constexpr int kStep = kernels::kWidenedAtOnce;
  return reinterpret_cast<std::uintptr_t>(p.q.data) % kStep == 0 && p.head_dim_qk % kStep == 0 &&
         (query_extents(p).outer == 1 || p.q.batch_stride % kStep == 0) && p.q.seq_stride % kStep == 0 &&
         p.q.head_stride % kStep == 0;
}

}  // namespace

AttentionProblem with_wide_queries(AttentionProblem p, const std::byte* wide) {
  p.q.data = wide;
  p.q.dtype = wide_dtype(p);
  p.q.head_stride = p.head_dim_qk;
  p.q.seq_stride = p.q.head_stride * p.num_heads;
  p.q.batch_stride = p.ragged_q ? 0 : p.q.seq_stride * p.seq_len_q;
  return p;
}

AttentionProblem problem_of_kernel(const AttentionKernel& kernel, const AttentionProblem& p) {
  return widens_queries(kernel, p) ? with_wide_queries(p, nullptr) : p;
}

std::size_t wide_queries_bytes(const AttentionProblem& p) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(wide_dtype(p), 1));
  const TensorExtents q = query_extents(p);
  return checked_product({q.outer, q.tokens, q.heads, q.head_dim, element}, "the widened copy of q");
}

WidenQueriesLaunch widen_queries_launch(const AttentionProblem& p, std::byte* wide) {
  constexpr kernels::int64 kMostBlocks = 1 << 20;
  const TensorExtents q = query_extents(p);
  WidenQueriesLaunch launch = {};
  launch.params.q = tensor_argument(p.q);
  if (p.ragged_q) launch.params.q.batch_stride = 0;
  launch.params.wide = wide;
  launch.params.tokens = q.outer * q.tokens;
  launch.params.seq_len = static_cast<int>(q.tokens);
  launch.params.num_heads = p.num_heads;
  launch.params.head_dim = p.head_dim_qk;
  launch.params.is_aligned = has_aligned_queries(p) ? 1 : 0;
  launch.shape = {{static_cast<unsigned>(std::min(launch.params.tokens, kMostBlocks)), 1, 1},
                  {kernels::kWidenQueriesThreads, 1, 1},
                  0};
  return launch;
}

ModuleSpec widen_queries_module() { return {"common/widen_queries.cu", {}}; }

std::string widen_queries_entry(const AttentionProblem& p) {
  return fmt::format("widen_queries_{}", dtype_suffix(wide_dtype(p)));
}

}  // namespace tessera::gpu
