#include "backends/gpu/attention/align_rows.h"

#include <algorithm>
#include <utility>

#include "attention/tensor_extents.h"
#include "backends/gpu/attention/problem_params.h"
#include "core/aligned_memory.h"
#include "core/rounding.h"

namespace tessera::gpu {
namespace {

std::int64_t row_of_copy(const TensorExtents& t) {
  return round_up(t.head_dim, std::int64_t{kernels::kAlignedRow});
}

std::size_t bytes_of_copy(const TensorExtents& t) {
  return checked_product({t.outer, t.tokens, t.heads, row_of_copy(t), 2}, "the aligned copies of q, k and v");
}

/// Calls use(tensor, its extents, where its copy begins) for each of `tensors`. The bytes of all.
template <class Problem, class Use>
std::size_t for_tensors(Problem& p, int tensors, Use use) {
  std::size_t begin = 0;
  const auto visit = [&](int flag, auto& tensor, const TensorExtents& t) {
    if ((tensors & flag) == 0) return;
    use(tensor, t, begin);
    begin += bytes_of_copy(t);
  };
  const TensorExtents keys = key_extents(p);
  visit(kAlignedQ, p.q, query_extents(p));
  visit(kAlignedK, p.k, keys);
  visit(kAlignedV, p.v, {keys.outer, keys.tokens, keys.heads, p.head_dim_v});
  return begin;
}

}  // namespace

std::string names_of_tensors(int tensors) {
  std::string names;
  for (const auto& [flag, name] : {std::pair{kAlignedQ, "q"}, {kAlignedK, "k"}, {kAlignedV, "v"}}) {
    if ((tensors & flag) != 0) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

AttentionProblem with_aligned_rows(AttentionProblem p, int tensors, const std::byte* copies) {
  for_tensors(p, tensors, [&](auto& tensor, const TensorExtents& t, std::size_t begin) {
    tensor.data = copies != nullptr ? copies + begin : nullptr;
    tensor.head_stride = row_of_copy(t);
    tensor.seq_stride = row_of_copy(t) * t.heads;
    tensor.batch_stride = tensor.seq_stride * t.tokens;
  });
  return p;
}

std::size_t aligned_rows_bytes(const AttentionProblem& p, int tensors) {
  return for_tensors(p, tensors, [](const auto&, const TensorExtents&, std::size_t) {});
}

AlignRowsLaunch align_rows_launch(const AttentionProblem& p, int tensors, std::byte* copies) {
  // So many that a thread has several, which hides the way to memory and where its row is.
  constexpr std::int64_t kStepsOfBlock = 8 * kernels::kAlignRowsThreads;
  AlignRowsLaunch launch = {};
  int count = 0;
  std::int64_t most_blocks = 1;
  for_tensors(p, tensors, [&](const auto& tensor, const TensorExtents& t, std::size_t begin) {
    kernels::RowsToAlign& r = launch.params.tensors[count++];
    r.from = tensor_argument(tensor);
    r.to = copies + begin;
    r.sequences = t.outer;
    r.tokens = static_cast<int>(t.tokens);
    r.num_heads = static_cast<int>(t.heads);
    r.head_dim = static_cast<int>(t.head_dim);
    r.piece = elements_at_once(tensor, t.head_dim);
    const std::int64_t steps_of_token = t.heads * (row_of_copy(t) / kernels::kAlignedElements);
    const std::int64_t tokens = std::min(divide_up(kStepsOfBlock, steps_of_token), t.tokens);
    r.tokens_of_block = static_cast<int>(tokens);
    most_blocks = std::max(most_blocks, t.outer * divide_up(t.tokens, tokens));
  });
  launch.shape = {{static_cast<unsigned>(most_blocks), static_cast<unsigned>(count), 1},
                  {kernels::kAlignRowsThreads, 1, 1},
                  0};
  return launch;
}

ModuleSpec align_rows_module() { return {"common/align_rows.cu", {}}; }

}  // namespace tessera::gpu
