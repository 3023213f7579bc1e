#include "backends/gpu/attention/align_rows.h"

#include <algorithm>
#include <utility>

#include "attention/tensor_extents.h"
#include "backends/gpu/attention/problem_params.h"
#include "core/aligned_memory.h"
#include "core/rounding.h"

namespace tessera::gpu {
namespace {

/// A tensor's rows as they are stored. Distances are bytes.
struct StoredRows {
  const void* data;
  std::int64_t outer, tokens, heads, row_bytes;
  std::int64_t outer_stride, token_stride, head_stride;

  std::int64_t row_of_copy() const { return round_up(row_bytes, std::int64_t{kernels::kAlignedRow}); }
  std::size_t bytes_of_copy() const {
    return checked_product({outer, tokens, heads, row_of_copy()}, "the aligned copies of tensors");
  }
};

StoredRows stored_rows(const AttentionInput& t, const TensorExtents& e) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(t.dtype, 1));
  return {t.data,
          e.outer,
          e.tokens,
          e.heads,
          e.head_dim * bytes,
          t.batch_stride * bytes,
          t.seq_stride * bytes,
          t.head_stride * bytes};
}

StoredRows stored_rows(const ScoreMask& m, const AttentionProblem& p) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(m.dtype, 1));
  return {m.data,
          m.batch_stride != 0 ? p.batch : 1,
          p.seq_len_q,
          m.head_stride != 0 ? p.num_heads : 1,
          p.seq_len_kv * bytes,
          m.batch_stride * bytes,
          m.q_stride * bytes,
          m.head_stride * bytes};
}

/// Bytes by which all rows can be read.
int piece_of(const StoredRows& r) {
  auto bits = static_cast<std::uint64_t>(r.row_bytes) | reinterpret_cast<std::uintptr_t>(r.data);
  const auto add = [&](std::int64_t stride, std::int64_t count) {
    if (count > 1) bits |= static_cast<std::uint64_t>(stride);
  };
  add(r.outer_stride, r.outer);
  add(r.token_stride, r.tokens);
  add(r.head_stride, r.heads);
  return piece_bytes(bits);
}

/// Makes a tensor its copy.
void set_copy(AttentionInput& t, const StoredRows& r, const std::byte* copy) {
  t.data = copy;
  t.head_stride = r.row_of_copy() / static_cast<std::int64_t>(dtype_bytes(t.dtype, 1));
  t.seq_stride = t.head_stride * r.heads;
  t.batch_stride = t.seq_stride * r.tokens;
}

void set_copy(ScoreMask& m, const StoredRows& r, const std::byte* copy) {
  const std::int64_t row = r.row_of_copy() / static_cast<std::int64_t>(dtype_bytes(m.dtype, 1));
  m.data = copy;
  m.q_stride = row * r.heads;
  if (m.head_stride != 0) m.head_stride = row;
  if (m.batch_stride != 0) m.batch_stride = m.q_stride * r.tokens;
}

/// Calls use(tensor, its rows, where its copy begins) for each of `tensors`. The bytes of all.
template <class Problem, class Use>
std::size_t for_tensors(Problem& p, int tensors, Use use) {
  std::size_t begin = 0;
  const auto visit = [&](int flag, auto& tensor, const StoredRows& rows) {
    if ((tensors & flag) == 0) return;
    use(tensor, rows, begin);
    begin += rows.bytes_of_copy();
  };
  const TensorExtents keys = key_extents(p);
  visit(kAlignedQ, p.q, stored_rows(p.q, query_extents(p)));
  visit(kAlignedK, p.k, stored_rows(p.k, keys));
  visit(kAlignedV, p.v, stored_rows(p.v, {keys.outer, keys.tokens, keys.heads, p.head_dim_v}));
  if (auto& m = p.scores.additive_mask; m) visit(kAlignedAdditiveMask, *m, stored_rows(*m, p));
  if (auto& m = p.scores.boolean_mask; m) visit(kAlignedBooleanMask, *m, stored_rows(*m, p));
  return begin;
}

}  // namespace

std::string names_of_tensors(int tensors) {
  std::string names;
  for (const auto& [flag, name] : {std::pair{kAlignedQ, "q"},
                                   {kAlignedK, "k"},
                                   {kAlignedV, "v"},
                                   {kAlignedAdditiveMask, "the additive mask"},
                                   {kAlignedBooleanMask, "the boolean mask"}}) {
    if ((tensors & flag) != 0) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

AttentionProblem with_aligned_rows(AttentionProblem p, int tensors, const std::byte* copies) {
  for_tensors(p, tensors, [&](auto& tensor, const StoredRows& rows, std::size_t begin) {
    set_copy(tensor, rows, copies != nullptr ? copies + begin : nullptr);
  });
  return p;
}

std::size_t aligned_rows_bytes(const AttentionProblem& p, int tensors) {
  return for_tensors(p, tensors, [](const auto&, const StoredRows&, std::size_t) {});
}

AlignRowsLaunch align_rows_launch(const AttentionProblem& p, int tensors, std::byte* copies) {
  // So many that a thread has several, which hides the way to memory and where its row is.
  constexpr std::int64_t kStepsOfBlock = 8 * kernels::kAlignRowsThreads;
  AlignRowsLaunch launch = {};
  int count = 0;
  std::int64_t most_blocks = 1;
  for_tensors(p, tensors, [&](const auto&, const StoredRows& rows, std::size_t begin) {
    const std::int64_t steps_of_token = rows.heads * (rows.row_of_copy() / kernels::kAlignedStep);
    const std::int64_t tokens = std::min(divide_up(kStepsOfBlock, steps_of_token), rows.tokens);
    launch.params.tensors[count++] = {.from = rows.data,
                                      .to = copies + begin,
                                      .sequence_stride = rows.outer_stride,
                                      .token_stride = rows.token_stride,
                                      .head_stride = rows.head_stride,
                                      .sequences = rows.outer,
                                      .tokens = static_cast<int>(rows.tokens),
                                      .num_heads = static_cast<int>(rows.heads),
                                      .row_bytes = static_cast<int>(rows.row_bytes),
                                      .piece = piece_of(rows),
                                      .tokens_of_block = static_cast<int>(tokens)};
    most_blocks = std::max(most_blocks, rows.outer * divide_up(rows.tokens, tokens));
  });
  launch.shape = {{static_cast<unsigned>(most_blocks), static_cast<unsigned>(count), 1},
                  {kernels::kAlignRowsThreads, 1, 1},
                  0};
  return launch;
}

ModuleSpec align_rows_module() { return {"common/align_rows.cu", {}}; }

}  // namespace tessera::gpu
