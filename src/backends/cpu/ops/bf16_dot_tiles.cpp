#include "backends/cpu/ops/bf16_dot_tiles.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>

#include "backends/cpu/bf16_pairs.h"
#include "backends/cpu/unroll.h"

namespace tessera::cpu {
namespace {

constexpr int kRows = 6;     // of x in a tile
constexpr int kColumns = 4;  // of w
constexpr std::int64_t kLanes = 32;

/// Adds the products of 32 elements of k, of which `mask` are there.
template <int kTileRows>
TESSERA_BF16_TARGET inline void step(const BFloat16* const (&x)[kRows], const BFloat16* const (&w)[kColumns],
                                     std::int64_t k, __mmask32 mask, __m512 (&sums)[kTileRows][kColumns]) {
  __m512i xv[kTileRows];
  TESSERA_UNROLL
  for (int r = 0; r < kTileRows; ++r) xv[r] = _mm512_maskz_loadu_epi16(mask, x[r] + k);
  TESSERA_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    const __m512i wv = _mm512_maskz_loadu_epi16(mask, w[c] + k);
    TESSERA_UNROLL
    for (int r = 0; r < kTileRows; ++r) sums[r][c] = add_dot_products(sums[r][c], xv[r], wv);
  }
}

/// One tile of at most kColumns columns; prefetch_bytes: how far ahead w is fetched. Loops over the sums are
/// unrolled: numbered by a variable anywhere they would be stored in every step.
template <int kTileRows>
TESSERA_BF16_TARGET void tile(const BFloat16* const (&x)[kRows], const BFloat16* const (&w)[kColumns],
                              std::int64_t columns_of_k, std::int64_t prefetch_bytes, int count,
                              float* products, std::int64_t stride) {
  __m512 sums[kTileRows][kColumns];
  TESSERA_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    TESSERA_UNROLL
    for (int c = 0; c < kColumns; ++c) sums[r][c] = _mm512_setzero_ps();
  }
  std::int64_t k = 0;
  for (; k + kLanes <= columns_of_k; k += kLanes) {
    if (prefetch_bytes != 0) {
      for (int c = 0; c < kColumns; ++c) {
        _mm_prefetch(reinterpret_cast<const char*>(w[c] + k) + prefetch_bytes, _MM_HINT_T0);
      }
    }
    step<kTileRows>(x, w, k, ~__mmask32{0}, sums);
  }
  if (k < columns_of_k) step<kTileRows>(x, w, k, (__mmask32{1} << (columns_of_k - k)) - 1, sums);
  TESSERA_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    TESSERA_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      if (c < count) products[r * stride + c] = _mm512_reduce_add_ps(sums[r][c]);
    }
  }
}

using Tile = decltype(&tile<1>);
constexpr Tile kTiles[kRows] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};

}  // namespace

void bf16_dot_tiles(const Matrix& x, const Weight& w, std::int64_t begin, std::int64_t end, float* products) {
  const std::int64_t stride = end - begin;
  const std::int64_t tile_bytes = kColumns * w.columns * static_cast<std::int64_t>(sizeof(BFloat16));
  constexpr std::int64_t kLeastAhead = std::int64_t{32} << 10;  // enough to hide memory, little enough for L2
  for (std::int64_t m = 0; m < x.rows; m += kRows) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kRows, x.rows - m));
    const BFloat16* x_rows[kRows];
    for (int r = 0; r < kRows; ++r) {
      x_rows[r] = static_cast<const BFloat16*>(x.data) + (m + std::min(r, rows - 1)) * x.row_stride;
    }
    // The weights of the range stay in the second-level cache for the rows of x that follow.
    const std::int64_t ahead = m == 0 ? (kLeastAhead + tile_bytes - 1) / tile_bytes * tile_bytes : 0;
    for (std::int64_t n = begin; n < end; n += kColumns) {
      const int count = static_cast<int>(std::min<std::int64_t>(kColumns, end - n));
      const BFloat16* w_rows[kColumns];
      for (int c = 0; c < kColumns; ++c) {
        w_rows[c] = static_cast<const BFloat16*>(w.data) + (n + std::min(c, count - 1)) * w.columns;
      }
      float* out = products + m * stride + (n - begin);
      kTiles[rows - 1](x_rows, w_rows, w.columns, ahead, count, out, stride);
    }
  }
}

}  // namespace tessera::cpu

#else

#include "tessera/error.h"

namespace tessera::cpu {

void bf16_dot_tiles(const Matrix&, const Weight&, std::int64_t, std::int64_t, float*) {
  throw Error(ErrorCode::kUnsupported, "dot products of bf16 pairs: this processor has none");
}

}  // namespace tessera::cpu

#endif
