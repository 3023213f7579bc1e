#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/attention/modifier.h"
#include "backends/cpu/attention/stream_reader.h"
#include "backends/cpu/attention/tile.h"
#include "backends/cpu/simd_target.h"

namespace tessera::cpu {

/// c[j][m] = factor[m] c[j][m] + sum_t a[t][m] b[j][t] over `depth` words t, for `columns` columns j and
/// vectors * lanes rows m: both products of attention with the rows in the vectors' lanes. A word is one
/// fp32, or two bf16 whose products are both added. The sum runs over `chunk` words at a time, which are
/// added up apart: rounding errors grow with the number of additions in a row.
struct ProductArguments {
  const std::uint32_t* a = nullptr;  ///< [depth][row_block]
  const std::uint32_t* b = nullptr;  ///< b[j][t] at j * b_column + t * b_depth
  std::int64_t b_column = 0;
  std::int64_t b_depth = 0;
  std::int64_t depth = 0;
  std::int64_t chunk = 0;
  std::int64_t columns = 0;       ///< a multiple of KernelTable::column_block
  const float* factor = nullptr;  ///< [row_block]; null: c's old content is not read
  float* c = nullptr;             ///< [columns][row_block]
};

/// Scores of some keys and rows [rows] of a decode tile, in pairs of bf16: s[n * rows + r] = q_r . k_n.
struct DecodeDotArguments {
  int rows = 0;  ///< 1, 2 or 4
  HeadRows keys;
  const std::uint32_t* q = nullptr;  ///< [rows][q_stride] pairs, zeros after the last
  std::int64_t q_stride = 0;
  std::int64_t head_dim = 0;  ///< in order a multiple of 8
  float* s = nullptr;
};

/// o_r += sum_n p[n][r] v_n of a decode tile, p and v in pairs of bf16.
struct DecodeWeighArguments {
  int rows = 0;  ///< 1, 2 or 4
  HeadRows values;
  const std::uint32_t* p = nullptr;  ///< [keys / 2][rows] pairs of keys
  std::int64_t head_dim = 0;
  float* o = nullptr;         ///< [rows][o_stride], dimensions in an order of its own: order_dimensions
  std::int64_t o_stride = 0;  ///< a multiple of 32
  bool skips_hidden = false;  ///< where p is +0, v is left out, whatever it holds
};

/// Steps that have instructions of their own for bf16.
struct Bf16DotKernels {
  void (*product)(int vectors, const ProductArguments& arguments) = nullptr;
  /// Rounds p[keys][row_block] to bf16 and pairs neighbouring keys: pairs[keys / 2][row_block]. keys is even.
  void (*pair_probabilities)(int vectors, const float* p, std::int64_t keys, std::uint32_t* pairs) = nullptr;
  /// The same for p[keys][rows] of a decode tile, of which a whole number of vectors can be read.
  void (*pair_decode_probabilities)(int rows, const float* p, std::int64_t keys,
                                    std::uint32_t* pairs) = nullptr;
  /// The scores of 4 keys from `first` on; the last key stands in for those past it.
  void (*decode_dot)(const DecodeDotArguments& arguments, std::int64_t first, StreamReader& reader) = nullptr;
  /// Adds the values of the keys [first, last), first even.
  void (*decode_weigh)(const DecodeWeighArguments& arguments, std::int64_t first, std::int64_t last,
                       StreamReader& reader) = nullptr;
  /// The scores of 16 keys from `first` on with the sums of `product` over chunks of `chunk` words.
  void (*decode_dot_in_order)(const DecodeDotArguments& arguments, std::int64_t first, std::int64_t chunk,
                              FarStreamReader& reader) = nullptr;
  /// decode_weigh with the sums of `product`; skips_hidden is not looked at.
  void (*decode_weigh_in_order)(const DecodeWeighArguments& arguments, std::int64_t first, std::int64_t last,
                                FarStreamReader& reader) = nullptr;
  /// Puts the dimensions of decode_weigh's o into their order.
  void (*order_dimensions)(const float* o, std::int64_t head_dim, float* ordered) = nullptr;
};

/// Steps on rows of e4m3 that meet bf16, as the pairs of bf16 that they are, without their scales.
struct E4m3DotKernels {
  /// words[0, (count + 1) / 2) = pairs of neighbouring numbers of one row, an odd last one with 0. Words up to
  /// the 16th are written in any case.
  void (*widen_row)(const std::byte* source, std::int64_t count, std::uint32_t* words) = nullptr;
  /// Brings pairs of a query, zeros up to a multiple of 64 numbers, into the order that decode_dot wants.
  void (*arrange_query)(std::int64_t head_dim, std::uint32_t* words) = nullptr;
  /// Like Bf16DotKernels': the scores of 4 keys.
  void (*decode_dot)(const DecodeDotArguments& arguments, std::int64_t first, StreamReader& reader) = nullptr;
  /// Likewise, with o_stride a multiple of 64.
  void (*decode_weigh)(const DecodeWeighArguments& arguments, std::int64_t first, std::int64_t last,
                       StreamReader& reader) = nullptr;
  void (*order_dimensions)(const float* o, std::int64_t head_dim, float* ordered) = nullptr;
};

/// The kernels of one target.
struct KernelTable {
  int lanes = 0;         ///< fp32 numbers of a vector
  int row_block = 0;     ///< rows that a register block holds
  int column_block = 0;  ///< keys or value dimensions that it holds
  int decode_rows = 0;   ///< most rows that the decode kernel takes; 0: the target has none
  void (*prefill_tile)(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16) = nullptr;
  void (*decode_tile)(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16) = nullptr;
  /// Merges a segment's partial results of `rows` rows into those of the segments before it:
  /// partials [rows][partial_stride(head_dim_v)].
  void (*merge_segment)(const CallContext& call, std::int64_t rows, const float* segment,
                        float* merged) = nullptr;
  /// Writes o and lse of a task's rows from their merged partial results, which are overwritten.
  void (*finish_segments)(const CallContext& call, const TileTask& task, float* merged) = nullptr;
  /// A score modifier on some scores.
  void (*modify)(const ModifierChunk& chunk) = nullptr;
  /// What is added to the scores of rows [row_begin, row_end) and `keys`: bias[(key - keys.begin) *
  /// key_stride + row - row_begin] = alibi + additive mask, -inf where a mask, or the diagonal if
  /// `with_diagonal`, hides the key. Anything up to key_stride may be written.
  void (*fill_bias)(const CallContext& call, const TileTask& task, std::int64_t row_begin,
                    std::int64_t row_end, KeyRange keys, bool with_diagonal, float* bias,
                    std::int64_t key_stride) = nullptr;
  /// scores[i] = softcap(scale scores[i]); count is a multiple of lanes, and scores are aligned to a vector.
  void (*scale_scores)(const CallContext& call, float* scores, std::int64_t count) = nullptr;
  /// y[i] = exp(x[i]) for x <= 80, 0 below -87, as the kernels compute it: for tests. count is a
  /// multiple of lanes.
  void (*exp)(const float* x, float* y, std::int64_t count) = nullptr;
  /// y[i] = tanh(x[i]), likewise.
  void (*tanh)(const float* x, float* y, std::int64_t count) = nullptr;
};

/// The kernels of an attainable target.
const KernelTable& kernel_table(SimdTarget target);

/// Not null for the target that has them.
const Bf16DotKernels* bf16_dot_kernels(SimdTarget target);
/// Likewise, where the processor has the instructions.
const E4m3DotKernels* e4m3_dot_kernels(SimdTarget target);

}  // namespace tessera::cpu
