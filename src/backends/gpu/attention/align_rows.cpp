#include "backends/gpu/attention/align_rows.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "backends/gpu/attention/problem_params.h"
#include "core/aligned_memory.h"
#include "core/rounding.h"

namespace tessera::gpu {
namespace {

/// One of q, k and v.
struct TensorToAlign {
  std::int64_t sequences, tokens;
  int heads, head_dim;

  std::int64_t row() const { return round_up(head_dim, kernels::kAlignedRow); }
  std::size_t bytes() const {
    return checked_product({sequences, tokens, heads, row(), 2}, "the aligned copies of q, k and v");
  }
};

/// Calls use(tensor, its dimensions, where its copy begins) for each of `tensors`. The bytes of all.
template <class Problem, class Use>
std::size_t for_tensors(Problem& p, int tensors, Use use) {
  std::size_t begin = 0;
  const auto visit = [&](int flag, auto& tensor, const TensorToAlign& t) {
    if ((tensors & flag) == 0) return;
    use(tensor, t, begin);
    begin += t.bytes();
  };
  const std::int64_t q_tokens = p.ragged_q ? p.ragged_q->total_tokens : p.seq_len_q;
  const std::int64_t kv_tokens = p.ragged_kv ? p.ragged_kv->total_tokens : p.seq_len_kv;
  const std::int64_t kv_sequences = p.ragged_kv ? 1 : p.batch;
  visit(kAlignedQ, p.q, {p.ragged_q ? 1 : p.batch, q_tokens, p.num_heads, p.head_dim_qk});
  visit(kAlignedK, p.k, {kv_sequences, kv_tokens, p.num_kv_heads, p.head_dim_qk});
  visit(kAlignedV, p.v, {kv_sequences, kv_tokens, p.num_kv_heads, p.head_dim_v});
  return begin;
}

/// Elements that may be loaded at once wherever a row begins.
template <class Tensor>
int piece_of(const Tensor& tensor, const TensorToAlign& t) {
  const auto strides =
      static_cast<std::uint64_t>(tensor.batch_stride | tensor.seq_stride | tensor.head_stride | t.head_dim);
  const std::uint64_t all = strides * 2 | reinterpret_cast<std::uintptr_t>(tensor.data) | 16;
  return 1 << std::min(std::countr_zero(all) - 1, 3);
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
  for_tensors(p, tensors, [&](auto& tensor, const TensorToAlign& t, std::size_t begin) {
    tensor.data = copies != nullptr ? copies + begin : nullptr;
    tensor.head_stride = t.row();
    tensor.seq_stride = t.row() * t.heads;
    tensor.batch_stride = tensor.seq_stride * t.tokens;
  });
  return p;
}

std::size_t aligned_rows_bytes(const AttentionProblem& p, int tensors) {
  return for_tensors(p, tensors, [](const auto&, const TensorToAlign&, std::size_t) {});
}

AlignRowsLaunch align_rows_launch(const AttentionProblem& p, int tensors, std::byte* copies) {
  // So many that a thread has several, which hides the way to memory and where its row is.
  constexpr std::int64_t kStepsOfBlock = 8 * kernels::kAlignRowsThreads;
  AlignRowsLaunch launch = {};
  int count = 0;
  std::int64_t most_blocks = 1;
  for_tensors(p, tensors, [&](const auto& tensor, const TensorToAlign& t, std::size_t begin) {
    kernels::RowsToAlign& r = launch.params.tensors[count++];
    r.from = tensor_argument(tensor);
    r.to = copies + begin;
    r.sequences = t.sequences;
    r.tokens = static_cast<int>(t.tokens);
    r.num_heads = t.heads;
    r.head_dim = t.head_dim;
    r.piece = piece_of(tensor, t);
    const std::int64_t steps_of_token = t.heads * (t.row() / kernels::kAlignedElements);
    const std::int64_t tokens = std::min(divide_up(kStepsOfBlock, steps_of_token), t.tokens);
    r.tokens_of_block = static_cast<int>(tokens);
    most_blocks = std::max(most_blocks, t.sequences * divide_up(t.tokens, tokens));
  });
  launch.shape = {{static_cast<unsigned>(most_blocks), static_cast<unsigned>(count), 1},
                  {kernels::kAlignRowsThreads, 1, 1},
                  0};
  return launch;
}

ModuleSpec align_rows_module() { return {"common/align_rows.cu", {}}; }

}  // namespace tessera::gpu
