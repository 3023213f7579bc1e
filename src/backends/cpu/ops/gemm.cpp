#include "backends/cpu/ops/gemm.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/ops/bf16_dot_tiles.h"
#include "backends/cpu/ops/bf16_streams.h"
#include "backends/cpu/ops/block_dots.h"
#include "backends/cpu/ops/block_streams.h"
#include "backends/cpu/ops/byte_streams.h"
#include "backends/cpu/ops/gemm_amx.h"
#include "backends/cpu/ops/gemm_blocks.h"
#include "backends/cpu/ops/gemm_columns.h"
#include "backends/cpu/ops/gemm_kernel.h"
#include "backends/cpu/ops/matmul_onednn.h"
#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/scratch.h"
#include "backends/cpu/ops/tile_products.h"
#include "backends/cpu/simd_target.h"
#include "core/block_format.h"
#include "core/parallel.h"

namespace tessera::cpu {
namespace {

enum class GemmMethod {
  kStreams,        ///< one row of w at a time
  kBf16Streams,    ///< likewise, of bf16, by dot products of pairs
  kBlockStreams,   ///< likewise, of blocks
  kByteStreams,    ///< likewise, of blocks, in whole numbers
  kTiles,          ///< dot products in tiles; the bits of a row don't depend on the other rows
  kBf16Dot,        ///< likewise, of bf16 pairs
  kAmx,            ///< sums of exact products of bf16 parts; likewise
  kBlockDots,      ///< likewise, of bf16 pairs, of blocks
  kOneDnn,         ///< x and w as they are
  kOneDnnConvert,  ///< pieces of w converted to fp32 first
};

/// One row of w at a time if the rows of x stay in the first-level cache meanwhile.
GemmMethod dot_products_of(const GemmArguments& a) {
  constexpr std::int64_t kCacheBytes = std::int64_t{32} << 10;
  const std::int64_t m = a.x.rows;
  const std::int64_t bytes = m * a.x.columns * static_cast<std::int64_t>(sizeof(float));
  const bool fits = m == 1 || (m <= kMostStreamRows && bytes <= kCacheBytes);
  return fits ? GemmMethod::kStreams : GemmMethod::kTiles;
}

/// Whether oneDNN is not to be asked for products of bf16 by AMX with rows of k: 2.6.3 writes an instruction
/// that no processor has into kernels whose last step lacks one element (k = 63 for some m and n).
bool onednn_generates_illegal_code(std::int64_t k) {
  constexpr std::int64_t kStep = 32;
  return k % kStep == kStep - 1;
}

/// Whether dot products of bf16 pairs multiply blocks, and quicker than fp32's multiply-adds.
bool block_dots_pay(SimdTarget target) {
  return target == SimdTarget::kAvx512Bf16 && bf16_pairs_pay() && has_block_dots();
}

/// Rows of x from which on taking blocks apart for dot products of pairs pays. Large blocks' integers are
/// found quicker once for all rows, and small ones have tiles that multiply them as they are.
std::int64_t least_rows_of_block_dots(DType weight) {
  constexpr int kLargeBlock = 256;
  return block_format(weight).elements == kLargeBlock ? 5 : 9;
}

/// Rows of x up to which blocks in registers are quicker as bf16 pairs than taken apart once for all rows,
/// with rows of k elements: where these stay in the first-level cache, w is read for two to four at a time,
/// and from the second-level cache but for the first.
std::int64_t most_rows_where_pairs_pay(DType weight, std::int64_t k) {
  const bool is_cached = block_stream_rows_in_cache(weight, k) >= 2;
  switch (weight) {
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return is_cached ? 16 : 10;
    case DType::kIQ3_XXS:
      return 12;
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
      return 10;
    case DType::kIQ3_S:
      return 8;
    case DType::kIQ2_S:
      return 7;
    case DType::kIQ1_S:
    case DType::kIQ1_M:
      return 6;
    case DType::kMXFP4:
      return is_cached ? 12 : 8;
    case DType::kQ4_0:
      return is_cached ? 10 : 6;
    case DType::kQ5_0:
      return 8;
    case DType::kQ5_1:
      return is_cached ? 8 : 5;
    case DType::kQ4_1:
    case DType::kQ2_K:
    case DType::kQ4_K:
    case DType::kQ6_K:
      return is_cached ? 8 : 3;
    case DType::kQ3_K:
    case DType::kQ5_K:
      return is_cached ? 6 : 3;
    default:
      return 2;
  }
}

/// Rows of x up to which blocks in registers are quicker as bf16 pairs than as fp32 or by other products of
/// pairs. Where pairs' products take long, what they save is taking large blocks apart; from some rows on
/// products outweigh it.
std::int64_t most_rows_of_block_streams(DType weight, std::int64_t k) {
  if (!has_block_streams(weight)) return 0;
  if (bf16_pairs_pay()) return most_rows_where_pairs_pay(weight, k);
  switch (weight) {
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_XS:
      return 2;
    case DType::kQ4_0:
    case DType::kQ4_1:
      return 1;
    default:
      return 0;
  }
}

/// Rows of x from which on converting w to fp32 once for oneDNN pays, which tiles do anew for every four
/// rows.
std::int64_t least_rows_converted(DType weight) {
  switch (weight) {
    case DType::kIQ1_S:
    case DType::kIQ1_M:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
      return 5;
    case DType::kQ5_0:
    case DType::kQ5_1:
      return 16;
    default:
      break;
  }
  switch (block_format(weight).elements) {
    case 1:
      return 48;
    case 32:
      return 24;
    default:
      return 16;
  }
}

/// The method for a valid problem. oneDNN picks instructions by itself, so it stands in only where they are
/// those that simd_target() names.
GemmMethod choose_method(const GemmArguments& a) {
  // From measurements: below these numbers of rows packing or converting w costs more than it saves.
  constexpr std::int64_t kLeastRowsBf16 = 5;
  constexpr std::int64_t kLeastRowsF32 = 12;
  constexpr std::int64_t kLeastRowsAmx = 16;
  constexpr std::int64_t kLeastRowsAmxBlocks = 9;
  constexpr std::int64_t kMostRowsBf16Dot = 24;  // beyond, oneDNN is as quick
  constexpr std::int64_t kMostRowsAmxBf16 = 32;  // oneDNN packs w, which pays for more
  static const SimdTarget best = best_simd_target();
  const SimdTarget target = simd_target();
  const std::int64_t m = a.x.rows;
  const bool both_bf16 = a.x.dtype == DType::kBF16 && a.weight.dtype == DType::kBF16;
  const bool is_block = block_format(a.weight.dtype).elements > 1;
  if (a.batch_invariant) {
    if (both_bf16 && target == SimdTarget::kAmxBf16) return GemmMethod::kAmx;
    if (both_bf16 && target == SimdTarget::kAvx512Bf16) return GemmMethod::kBf16Dot;
    return GemmMethod::kTiles;
  }
  if (both_bf16 && target >= SimdTarget::kAvx512Bf16 && m <= kMostBf16StreamRows && bf16_pairs_pay())
    return GemmMethod::kBf16Streams;
  if (both_bf16 && target == SimdTarget::kAvx512Bf16 && m <= kMostRowsBf16Dot && bf16_pairs_pay())
    return GemmMethod::kBf16Dot;
  if (is_block && a.x.dtype == DType::kBF16 && target >= SimdTarget::kAvx512Bf16 &&
      m <= most_rows_of_block_streams(a.weight.dtype, a.x.columns)) {
    return GemmMethod::kBlockStreams;
  }
  if (is_block && target == SimdTarget::kAvx2 && m == 1 && has_byte_streams(a.weight.dtype))
    return GemmMethod::kByteStreams;
  if (target == SimdTarget::kAmxBf16 && amx_takes(a.x.dtype, a.weight.dtype)) {
    const bool illegal = onednn_generates_illegal_code(a.x.columns);
    if (both_bf16 && m >= kLeastRowsBf16 && (m <= kMostRowsAmxBf16 || illegal)) return GemmMethod::kAmx;
    if (!both_bf16 && m >= (is_block ? kLeastRowsAmxBlocks : kLeastRowsAmx)) return GemmMethod::kAmx;
  }
  if (is_block && a.x.dtype == DType::kBF16 && block_dots_pay(target) &&
      m >= least_rows_of_block_dots(a.weight.dtype)) {
    return GemmMethod::kBlockDots;
  }
  if (target == best && best >= SimdTarget::kAvx2) {
    const bool both_f32 = a.x.dtype == DType::kF32 && a.weight.dtype == DType::kF32;
    if (both_f32 && m >= kLeastRowsF32) return GemmMethod::kOneDnn;
    if (both_bf16 && best >= SimdTarget::kAvx512Bf16 && m >= kLeastRowsBf16) return GemmMethod::kOneDnn;
    if (m >= least_rows_converted(a.weight.dtype)) return GemmMethod::kOneDnnConvert;
  }
  return dot_products_of(a);
}

/// x as contiguous fp32 rows of padded_row(k), zeros behind.
Scratch x_in_f32(const Matrix& x) {
  const std::int64_t stride = static_cast<std::int64_t>(padded_row(x.columns));
  Scratch memory = scratch_floats(x.rows, stride, "gemm's x in fp32");
  const auto convert = [&, load = row_kernels().load_as_f32](std::int64_t m) {
    load(x.data, x.dtype, m * x.row_stride, static_cast<std::size_t>(x.columns),
         memory.floats() + m * stride);
  };
  if (x.rows < 32) {
    for (std::int64_t m = 0; m < x.rows; ++m) convert(m);
  } else {
    parallel_for(static_cast<std::size_t>(x.rows),
                 [&](std::size_t m) { convert(static_cast<std::int64_t>(m)); });
  }
  return memory;
}

void gemm_dot_products(const GemmArguments& a, GemmMethod method) {
  const Scratch x = x_in_f32(a.x);
  GemmPanel panel;
  panel.x = x.floats();
  panel.x_stride = static_cast<std::int64_t>(padded_row(a.x.columns));
  panel.m = a.x.rows;
  panel.k = a.x.columns;
  panel.weight = &a.weight;
  panel.bias = a.bias ? &*a.bias : nullptr;
  panel.accumulate = a.accumulate;
  panel.out = a.out;
  const auto kernel = method == GemmMethod::kStreams ? gemm_kernels().streams : gemm_kernels().tiles;
  for_column_ranges(a.weight.rows, columns_per_task(a.weight),
                    [&](std::int64_t begin, std::int64_t end) { kernel(panel, begin, end); });
}

/// Columns a task of oneDNN takes: its kernels reach their rate with 128, and converted weights should stay
/// in the second-level cache.
std::int64_t onednn_columns_per_task(const GemmArguments& a, GemmMethod method) {
  constexpr std::int64_t kMultiple = 32;
  const std::int64_t most = method == GemmMethod::kOneDnnConvert ? 64 : 256;
  const std::int64_t tasks = std::int64_t{2} * num_threads();
  const std::int64_t even = (a.weight.rows + tasks - 1) / tasks;
  return std::min(most, (even + kMultiple - 1) / kMultiple * kMultiple);
}

/// Pairs of bf16, whatever the batch.
void gemm_bf16_dot(const GemmArguments& a) {
  for_column_ranges(a.weight.rows, columns_per_task(a.weight), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t columns = end - begin;
    const Scratch products = scratch_floats(a.x.rows, columns, "gemm's products");
    bf16_dot_tiles(a.x, a.weight, begin, end, products.floats());
    finish_columns(a, {0, a.x.rows, begin, columns}, products.floats(), columns);
  });
}

/// Rows of `columns` elements one after the other, of rows with row_stride.
Scratch without_gaps(const void* data, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                     std::size_t element_bytes) {
  const std::size_t row_bytes = static_cast<std::size_t>(columns) * element_bytes;
  const std::size_t stride_bytes = static_cast<std::size_t>(row_stride) * element_bytes;
  Scratch packed(static_cast<std::size_t>(rows) * row_bytes, "gemm's x");
  parallel_for(static_cast<std::size_t>(rows), [&](std::size_t row) {
    std::memcpy(static_cast<std::byte*>(packed.data()) + row * row_bytes,
                static_cast<const std::byte*>(data) + row * stride_bytes, row_bytes);
  });
  return packed;
}

void gemm_onednn(const GemmArguments& a, GemmMethod method) {
  const bool convert = method == GemmMethod::kOneDnnConvert;
  const bool x_as_it_is = !convert || a.x.dtype == DType::kF32;
  Scratch x = x_as_it_is ? Scratch(0, "") : x_in_f32(a.x);
  const std::int64_t k = a.x.columns;
  OneDnnMatmul all;
  all.m = a.x.rows;
  all.k = k;
  all.dtype = convert ? DType::kF32 : a.weight.dtype;
  all.a = x_as_it_is ? a.x.data : x.data();
  const std::int64_t x_stride = x_as_it_is ? a.x.row_stride : static_cast<std::int64_t>(padded_row(k));
  if (x_stride != k) {
    // Rows with gaps go through kernels of half the rate.
    x = without_gaps(all.a, all.m, k, x_stride, dtype_bytes(all.dtype, 1));
    all.a = x.data();
  }
  for_column_ranges(
      a.weight.rows, onednn_columns_per_task(a, method), [&](std::int64_t begin, std::int64_t end) {
        OneDnnMatmul part = all;
        part.n = end - begin;
        Scratch weights(0, "");
        if (convert) {
          // Rows of w are contiguous; the padding that load_as_f32 writes needs a place after the last.
          weights =
              scratch_floats(1, part.n * k + static_cast<std::int64_t>(kRowPadding), "converted weights");
          for (std::int64_t n = begin; n < end; ++n) {
            row_kernels().load_as_f32(a.weight.data, a.weight.dtype, n * k, static_cast<std::size_t>(k),
                                      weights.floats() + (n - begin) * k);
          }
          part.b = weights.data();
        } else {
          part.b = static_cast<const std::byte*>(a.weight.data) + begin * row_bytes_of(a.weight);
        }
        // Not straight into out: its rows are often a multiple of 4 KiB apart, which all fall into the same
        // few places of the cache.
        const Scratch products = scratch_floats(part.m, part.n, "gemm's products");
        part.c = products.floats();
        part.c_stride = part.n;
        matmul_onednn(part);
        finish_columns(a, {0, part.m, begin, part.n}, part.c, part.n);
      });
}

/// The product of rows [first, first + rows) of x.
GemmArguments rows_of(GemmArguments a, std::int64_t first, std::int64_t rows) {
  for (Matrix* m : {&a.x, &a.out}) {
    m->data = static_cast<std::byte*>(m->data) +
              dtype_bytes(m->dtype, static_cast<std::size_t>(first * m->row_stride));
    m->rows = rows;
  }
  return a;
}

}  // namespace

bool multiplies_bf16_blocks() {
  const SimdTarget target = simd_target();
  return target == SimdTarget::kAmxBf16 || block_dots_pay(target);
}

void gemm(const GemmArguments& a) {
  if (a.x.rows == 0) return;
  const GemmMethod method = choose_method(a);
  // Streams that may leave x's numbers to those of fp32.
  const auto try_streams = [&](bool (*streams)(const GemmArguments&)) {
    if (!streams(a)) gemm_dot_products(a, dot_products_of(a));
  };
  switch (method) {
    case GemmMethod::kStreams:
    case GemmMethod::kTiles:
      return gemm_dot_products(a, method);
    case GemmMethod::kBf16Streams:
      return try_streams(gemm_bf16_streams);
    case GemmMethod::kBlockStreams:
      return try_streams(gemm_block_streams);
    case GemmMethod::kByteStreams:
      return try_streams(gemm_byte_streams);
    case GemmMethod::kBf16Dot:
      return gemm_bf16_dot(a);
    case GemmMethod::kAmx:
    case GemmMethod::kBlockDots:
      for (std::int64_t first = 0; first < a.x.rows; first += kMostTileRows) {
        const GemmArguments part = rows_of(a, first, std::min(kMostTileRows, a.x.rows - first));
        const bool is_done =
            method == GemmMethod::kAmx ? gemm_amx(part) : gemm_blocks(part, BlockUnit::kDots);
        if (!is_done) gemm_onednn(part, GemmMethod::kOneDnnConvert);
      }
      return;
    case GemmMethod::kOneDnn:
    case GemmMethod::kOneDnnConvert:
      return gemm_onednn(a, method);
  }
}

}  // namespace tessera::cpu
