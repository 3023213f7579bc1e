#include <fmt/core.h>

#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera {
namespace {

/// a * b of sizes that are not negative.
std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, &result)) return result;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("a layout's sizes or strides are {} and {}; expected numbers from 0 whose product fits in "
                  "64 bits",
                  a, b));
}

template <class Void>
BasicAttentionTensor<Void> make_tensor(AttentionLayout layout, Void* data, DType dtype, std::int64_t seq_len,
                                       int num_heads, int head_dim, std::int64_t row_stride) {
  const std::int64_t heads_row = product(num_heads, head_dim);
  if (row_stride != 0 && (layout == AttentionLayout::kBatchHeadsSeq || row_stride < heads_row)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "row_stride is {}; expected 0, or at least num_heads * head_dim = {} in a layout whose rows hold "
            "all heads",
            row_stride, heads_row));
  }
  const std::int64_t row = row_stride != 0 ? row_stride : heads_row;
  switch (layout) {
    case AttentionLayout::kBatchHeadsSeq:
      return {data, dtype, product(heads_row, seq_len), head_dim, product(seq_len, head_dim)};
    case AttentionLayout::kBatchSeqHeads:
    case AttentionLayout::kBatchSeqPacked:
      return {data, dtype, product(seq_len, row), row, head_dim};
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("layout {} is not known", static_cast<int>(layout)));
}

}  // namespace

AttentionInput attention_input(AttentionLayout layout, const void* data, DType dtype, std::int64_t seq_len,
                               int num_heads, int head_dim, std::int64_t row_stride) {
  return make_tensor(layout, data, dtype, seq_len, num_heads, head_dim, row_stride);
}

AttentionOutput attention_output(AttentionLayout layout, void* data, DType dtype, std::int64_t seq_len,
                                 int num_heads, int head_dim, std::int64_t row_stride) {
  return make_tensor(layout, data, dtype, seq_len, num_heads, head_dim, row_stride);
}

LseOutput lse_output(float* data, int num_heads, std::int64_t seq_len_q) {
  return {data, product(num_heads, seq_len_q), seq_len_q, 1};
}

}  // namespace tessera
