#include <fmt/core.h>

#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera {
namespace {

template <class Void>
BasicAttentionTensor<Void> make_tensor(AttentionLayout layout, Void* data, DType dtype, std::int64_t seq_len,
                                       int num_heads, int head_dim, std::int64_t row_stride) {
  const std::int64_t heads = num_heads;
  const std::int64_t row = row_stride != 0 ? row_stride : heads * head_dim;
  if (row_stride != 0 && (layout == AttentionLayout::kBatchHeadsSeq || row_stride < heads * head_dim)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "row_stride is {}; expected 0, or at least num_heads * head_dim = {} in a layout whose rows hold "
            "all heads",
            row_stride, heads * head_dim));
  }
  switch (layout) {
    case AttentionLayout::kBatchHeadsSeq:
      return {data, dtype, heads * seq_len * head_dim, head_dim, seq_len * head_dim};
    case AttentionLayout::kBatchSeqHeads:
    case AttentionLayout::kBatchSeqPacked:
      return {data, dtype, seq_len * row, row, head_dim};
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
  return {data, num_heads * seq_len_q, seq_len_q, 1};
}

}  // namespace tessera
