#include "backends/cpu/attention/tile.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "attention/exact_row.h"
#include "attention/token_rows.h"
#include "backends/cpu/attention/modifier.h"
#include "core/rounding.h"

namespace tessera::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Hands out parts of the scratch memory one after another.
class ScratchCursor {
 public:
  std::size_t take(std::int64_t words) {
    const std::size_t offset = size_;
    size_ += static_cast<std::size_t>(round_up(words * 4, 64));
    return offset;
  }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_ = 0;
};

}  // namespace

ScratchLayout scratch_layout(const TileShape& shape) {
  ScratchLayout layout;
  const std::int64_t words_qk = shape.bf16_dot ? (shape.head_dim_qk + 1) / 2 : shape.head_dim_qk;
  layout.q_words = words_qk;
  // An odd number of cache lines between rows, so that rows of a power of two don't meet in one cache set.
  layout.k_stride = round_up(words_qk, 16) + (round_up(words_qk, 16) % 32 == 0 ? 16 : 0);
  layout.v_padded = round_up(shape.head_dim_v, 16);
  layout.v_stride = layout.v_padded + (layout.v_padded % 32 == 0 ? 16 : 0);
  layout.row_blocks = (shape.block_m + shape.row_block - 1) / shape.row_block;
  const std::int64_t rows = layout.row_blocks * shape.row_block;
  // The decode kernel keeps kMaxDecodeRows rows of q, and copies of k and v that it can't read in place, in
  // fp32.
  const std::int64_t floats_qk = std::max<std::int64_t>(round_up(shape.head_dim_qk, 16), 32);
  ScratchCursor cursor;
  const std::int64_t decode_rows = kMaxDecodeRows * shape.decode_heads;
  const std::int64_t decode_v = round_up(shape.head_dim_v, 64);
  layout.q = cursor.take(std::max(rows * words_qk, decode_rows * floats_qk));
  layout.o = cursor.take(std::max(rows * layout.v_padded, decode_rows * decode_v));
  layout.block_o = cursor.take(decode_rows * decode_v);
  layout.row_max = cursor.take(std::max(rows, decode_rows));
  layout.row_sum = cursor.take(std::max(rows, decode_rows));
  layout.merged_o = cursor.take(shape.segments ? rows * layout.v_padded : 0);
  layout.merged_max = cursor.take(shape.segments ? rows : 0);
  layout.merged_sum = cursor.take(shape.segments ? rows : 0);
  layout.rescale = cursor.take(std::max<std::int64_t>(shape.row_block, decode_rows));
  layout.k = cursor.take(shape.block_n * std::max(layout.k_stride, floats_qk));
  layout.v = cursor.take(shape.block_n * layout.v_stride);
  layout.s =
      cursor.take(std::max<std::int64_t>(shape.block_n * shape.row_block, decode_keys(shape) * decode_rows));
  layout.p = cursor.take(shape.bf16_dot ? shape.block_n / 2 * shape.row_block : 0);
  layout.scales = cursor.take(shape.bf16_dot && shape.narrow_kv ? 2 * shape.block_n : 0);
  layout.bias = cursor.take(shape.block_n * shape.row_block);
  layout.limits = cursor.take(2 * shape.row_block);
  layout.rows = cursor.take(4 * round_up(std::max(shape.head_dim_qk, shape.head_dim_v), 16));
  layout.pointers = cursor.take(2 * 2 * (shape.block_n + kMaxRowsAhead));
  layout.size_bytes = cursor.size();
  return layout;
}

RowBlock row_block(const TileTask& task, std::int64_t index, std::int64_t block_rows, std::int64_t lanes) {
  RowBlock block;
  block.index = index;
  block.begin = task.row_begin + index * block_rows;
  block.end = std::min(task.row_end, block.begin + block_rows);
  block.vectors = divide_up(block.end - block.begin, lanes);
  return block;
}

const std::byte* q_row(const CallContext& call, const TileTask& task, std::int64_t query, int head) {
  const AttentionProblem& p = *call.problem;
  const std::int64_t index = TokenRows(p, task.sequence, task.extent).query(p.q, query, head);
  return static_cast<const std::byte*>(p.q.data) +
         index * static_cast<std::int64_t>(dtype_bytes(p.q.dtype, 1));
}

std::byte* o_row(const CallContext& call, const TileTask& task, std::int64_t query, int head) {
  const AttentionProblem& p = *call.problem;
  const std::int64_t index = TokenRows(p, task.sequence, task.extent).query(p.o, query, head);
  return static_cast<std::byte*>(p.o.data) + index * static_cast<std::int64_t>(dtype_bytes(p.o.dtype, 1));
}

void store_lse(const CallContext& call, const TileTask& task, std::int64_t query, int head, float lse) {
  const AttentionProblem& p = *call.problem;
  if (p.lse) p.lse->data[TokenRows(p, task.sequence, task.extent).query(*p.lse, query, head)] = lse;
}

void kv_rows(const CallContext& call, const TileTask& task, const AttentionInput& tensor, std::int64_t begin,
             std::int64_t end, const std::byte** rows) {
  const AttentionProblem& p = *call.problem;
  const auto element = static_cast<std::int64_t>(dtype_bytes(tensor.dtype, 1));
  const std::byte* base =
      static_cast<const std::byte*>(tensor.data) + task.kv_head * tensor.head_stride * element;
  const std::int64_t step = tensor.seq_stride * element;
  if (!p.paged_kv) {
    base += ((p.ragged_kv ? 0 : task.sequence * tensor.batch_stride) * element) + task.extent.kv_begin * step;
    for (std::int64_t key = begin; key < end; ++key) rows[key - begin] = base + key * step;
    return;
  }
  const std::int32_t* table = p.paged_kv->block_table + task.sequence * p.paged_kv->block_table_stride;
  const std::int64_t page_size = p.paged_kv->page_size;
  const std::int64_t page_step = tensor.batch_stride * element;
  std::int64_t page = begin / page_size;
  std::int64_t skipped = begin - page * page_size;  // of the first page
  for (std::int64_t key = begin; key < end; ++page, skipped = 0) {
    const std::byte* row = base + std::int64_t{table[page]} * page_step + skipped * step;
    const std::int64_t page_end = std::min(end, key + page_size - skipped);
    for (; key < page_end; ++key, row += step) rows[key - begin] = row;
  }
}

KeyRange keys_of_rows(const CallContext& call, const TileTask& task, std::int64_t row_begin,
                      std::int64_t row_end) {
  const KeyRange seen =
      task.diagonal.keys_of_tile(query_of_row(call, row_begin), query_of_row(call, row_end - 1) + 1);
  return {std::max(seen.begin, task.keys.begin), std::min(seen.end, task.keys.end)};
}

bool all_visible(const CallContext& call, const TileTask& task, std::int64_t row_begin, std::int64_t row_end,
                 KeyRange keys) {
  const KeyRange seen =
      task.diagonal.keys_of_all(query_of_row(call, row_begin), query_of_row(call, row_end - 1) + 1);
  return seen.begin <= keys.begin && keys.end <= seen.end;
}

MaskRow mask_row(const ScoreMask& mask, std::int64_t sequence, int head, std::int64_t query,
                 std::int64_t key) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(mask.dtype, 1));
  const std::int64_t index =
      sequence * mask.batch_stride + head * mask.head_stride + query * mask.q_stride + key * mask.kv_stride;
  return {static_cast<const std::byte*>(mask.data) + index * bytes, mask.kv_stride * bytes};
}

RowResult finish_row(const CallContext& call, int head, float row_max, float row_sum) {
  if (row_max == -kInfinity) return {0, -kInfinity};
  if (!call.problem->scores.sinks) return {1 / row_sum, row_max + std::log(row_sum)};
  const float sink = call.problem->scores.sinks->logits[head];
  const float new_max = std::max(row_max, sink);
  const float factor = std::exp(row_max - new_max);
  const float sum = row_sum * factor + std::exp(sink - new_max);
  return {factor / sum, new_max + std::log(sum)};
}

bool stays_in_range(float row_max, float row_sum, const float* o, std::int64_t head_dim) {
  // The softmax subtracts row_max, which is rounded, from products that are not: from here on the difference,
  // up to row_max * 2^-24, would leave the range of exp.
  constexpr float kLargestScore = 0x1p30f;
  if (!(std::abs(row_max) <= kLargestScore) || !std::isfinite(row_sum)) return false;
  constexpr std::uint32_t kExponent = 0x7f800000u;
  // Comparisons, which baseline instructions have for vectors, unlike the maximum of integers.
  std::uint32_t beyond = 0;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    beyond |= (std::bit_cast<std::uint32_t>(o[i]) & kExponent) == kExponent ? 1u : 0u;
  }
  return beyond == 0;
}

void attend_exactly(const CallContext& call, const TileTask& task, std::int64_t query, int head) {
  static const modifier::Program kNone;
  const modifier::Program& program = call.modifier != nullptr ? call.modifier->plan.program : kNone;
  attend_row_exactly(*call.problem, program, TokenRows(*call.problem, task.sequence), query, head);
}

}  // namespace tessera::cpu
