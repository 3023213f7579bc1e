#include "backends/cpu/ops/tile_products.h"

#include "backends/cpu/amx_tiles.h"

#if defined(__x86_64__)

#include <algorithm>

#include "backends/cpu/ops/bf16_vectors.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kTileStride = 64;  // bytes of a row of a packed tile

/// By how many powers of two to multiply a row of fp32 so that its parts are not all below what bf16 holds; 0
/// for all but rows whose largest number is tiny.
TESSERA_AMX_TARGET int exponent_to_add(const float* row, std::int64_t k) {
  __m512 largest = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < k; i += 16) {
    const auto mask = static_cast<__mmask16>(first_elements(std::min<std::int64_t>(k - i, 16)));
    largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_maskz_loadu_ps(mask, row + i)));
  }
  const float most = _mm512_reduce_max_ps(largest);
  return most >= 0x1p-64f || most == 0 ? 0 : most >= 0x1p-126f ? 64 : 120;
}

TESSERA_AMX_TARGET inline void multiply_by(Floats32& x, float factor) {
  x.low = _mm512_mul_ps(x.low, _mm512_set1_ps(factor));
  x.high = _mm512_mul_ps(x.high, _mm512_set1_ps(factor));
}

TESSERA_AMX_TARGET inline void store_tile(const __m512i (&rows)[kTileRows], std::byte* tile) {
  for (int i = 0; i < kTileRows; ++i) _mm512_store_si512(tile + i * kTileStride, rows[i]);
}

/// The lower (0) or upper (1) halves of two rows side by side.
template <int kHalf>
TESSERA_AMX_TARGET inline __m512i halves(__m512i first, __m512i second) {
  return _mm512_shuffle_i64x2(first, second, kHalf == 0 ? 0x44 : 0xee);
}

/// A step's tiles of 16 rows.
template <int kParts>
TESSERA_AMX_TARGET void store_parts(__m512i (&parts)[kParts][kTileRows], XTileOrder order, std::byte* tiles) {
  constexpr int kTilesOfHalf = (kParts + 1) / 2;
  if (order != XTileOrder::kHalves) {
    for (int part = 0; part < kParts; ++part) {
      if (order == XTileOrder::kPairs) transpose(parts[part]);
      store_tile(parts[part], tiles + part * static_cast<std::int64_t>(kTileBytes));
    }
    return;
  }
  for (int n = 0; n < kTilesOfHalf; ++n) {
    std::byte* tile = tiles + n * static_cast<std::int64_t>(kTileBytes);
    for (int r = 0; r < kTileRows; ++r, tile += kTileStride) {
      const __m512i first = parts[2 * n][r];
      const __m512i second =
          2 * n + 1 < kParts ? parts[std::min(2 * n + 1, kParts - 1)][r] : _mm512_setzero_si512();
      _mm512_store_si512(tile, halves<0>(first, second));
      _mm512_store_si512(tile + kTilesOfHalf * kTileBytes, halves<1>(first, second));
    }
  }
}

TESSERA_AMX_TARGET inline __m512 widen_bf16(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

TESSERA_AMX_TARGET inline Floats32 floats_of_bf16(__m512i x) {
  return {widen_bf16(_mm512_castsi512_si256(x)), widen_bf16(_mm512_extracti64x4_epi64(x, 1))};
}

/// Of a step of row `r`.
TESSERA_AMX_TARGET inline void store_sums(const Floats32& x, std::int64_t step, std::int64_t r,
                                          const GroupSums& sums) {
  if (sums.sums == nullptr) return;
  float* out = sums.sums + step * sums.groups_of_step * kTileRows + r;
  if (sums.groups_of_step == 1) {
    out[0] = _mm512_reduce_add_ps(_mm512_add_ps(x.low, x.high));
  } else {
    out[0] = _mm512_reduce_add_ps(x.low);
    out[kTileRows] = _mm512_reduce_add_ps(x.high);
  }
}

TESSERA_AMX_TARGET bool pack_bf16(const Matrix& x, std::int64_t first, XTileOrder order, std::byte* tiles,
                                  const GroupSums& sums) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 not_finite = 0;
  const std::int64_t rows = std::min(kTileRows, x.rows - first);
  const auto* data = static_cast<const BFloat16*>(x.data) + first * x.row_stride;
  const int tiles_of_step = x_tiles_of_step(order, 1);
  for (std::int64_t k = 0; k < x.columns; k += kTileDepth, tiles += tiles_of_step * kTileBytes) {
    __m512i numbers[1][kTileRows];
    const __mmask32 mask = first_elements(x.columns - k);
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      numbers[0][r] =
          r < rows ? _mm512_maskz_loadu_epi16(mask, data + r * x.row_stride + k) : _mm512_setzero_si512();
      not_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(numbers[0][r], exponent), exponent);
      store_sums(floats_of_bf16(numbers[0][r]), k / kTileDepth, r, sums);
    }
    store_parts(numbers, order, tiles);
  }
  return not_finite == 0;
}

template <Floats32 (*kLoad)(const void*, std::int64_t, __mmask32), int kParts>
TESSERA_AMX_TARGET bool pack_parts(const Matrix& x, std::int64_t first, XTileOrder order, std::byte* tiles,
                                   const int* exponents, const GroupSums& sums) {
  const std::int64_t rows = std::min(kTileRows, x.rows - first);
  bool is_finite = true;
  for (std::int64_t k = 0; k < x.columns; k += kTileDepth) {
    __m512i parts[kParts][kTileRows];
    const __mmask32 mask = first_elements(x.columns - k);
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      Floats32 values = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      if (r < rows) values = kLoad(x.data, (first + r) * x.row_stride + k, mask);
      if (exponents[r] != 0) multiply_by(values, exponents[r] == 64 ? 0x1p64f : 0x1p120f);
      is_finite &= all_finite(values);
      store_sums(values, k / kTileDepth, r, sums);
      for (int part = 0; part < kParts; ++part) parts[part][r] = take_part(values);
    }
    store_parts(parts, order, tiles);
    tiles += x_tiles_of_step(order, kParts) * kTileBytes;
  }
  return is_finite;
}

TESSERA_AMX_TARGET inline void load_c(const TileProduct& p) {
  if (p.is_first) {
    amx::tilezero<0>();
    amx::tilezero<1>();
    amx::tilezero<2>();
    amx::tilezero<3>();
    return;
  }
  amx::tileloadd<0>(p.c[0][0], kTileStride);
  amx::tileloadd<2>(p.c[1][0], kTileStride);
  if (p.x_tiles == 1) return;
  amx::tileloadd<1>(p.c[0][1], kTileStride);
  amx::tileloadd<3>(p.c[1][1], kTileStride);
}

/// Fetches what the same rows of w hold `kAhead` steps later, or else the first steps of the next ones.
TESSERA_AMX_TARGET inline void fetch_ahead(const TileProduct& p, std::int64_t step) {
  constexpr std::int64_t kAhead = 16;
  const std::int64_t later = step + kAhead;
  const std::byte* at =
      later < p.steps ? p.w[0] + later * p.w_step_bytes : p.w_next + (later - p.steps) * p.w_step_bytes;
  for (std::int64_t r = 0; r < kTilesOfWeight * kTileRows; ++r) {
    _mm_prefetch(reinterpret_cast<const char*>(at + r * p.w_row_bytes), _MM_HINT_T1);
  }
}

template <int kXTiles>
TESSERA_AMX_TARGET void multiply_rows_of_tiles(const TileProduct& p) {
  load_c(p);
  for (std::int64_t s = 0; s < p.steps; ++s) {
    if (p.w_next != nullptr) fetch_ahead(p, s);
    for (int x_part = 0; x_part < p.x_parts; ++x_part) {
      const std::int64_t x = (s * p.x_parts + x_part) * static_cast<std::int64_t>(kTileBytes);
      amx::tileloadd<6>(p.x[0] + x, kTileStride);
      if constexpr (kXTiles == 2) amx::tileloadd<7>(p.x[1] + x, kTileStride);
      for (int w_part = 0; w_part < p.w_parts; ++w_part) {
        const std::int64_t w = s * p.w_step_bytes + w_part * static_cast<std::int64_t>(kTileBytes);
        amx::tileloadd<4>(p.w[0] + w, p.w_row_bytes);
        amx::tdpbf16ps<0, 4, 6>();
        if constexpr (kXTiles == 2) amx::tdpbf16ps<1, 4, 7>();
        amx::tileloadd<5>(p.w[1] + w, p.w_row_bytes);
        amx::tdpbf16ps<2, 5, 6>();
        if constexpr (kXTiles == 2) amx::tdpbf16ps<3, 5, 7>();
      }
    }
  }
  amx::tilestored<0>(p.c[0][0], kTileStride);
  amx::tilestored<2>(p.c[1][0], kTileStride);
  if constexpr (kXTiles == 2) {
    amx::tilestored<1>(p.c[0][1], kTileStride);
    amx::tilestored<3>(p.c[1][1], kTileStride);
  }
}

}  // namespace

int bf16_parts(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 1;
    case DType::kF16:
      return 2;
    case DType::kF32:
      return 3;
    default:
      return 0;
  }
}

int weight_parts(DType dtype) { return dtype == DType::kF16 ? 2 : 1; }

bool pack_x_tiles(const Matrix& x, std::int64_t first, XTileOrder order, std::byte* tiles, int* exponents,
                  const GroupSums& sums) {
  std::fill_n(exponents, kTileRows, 0);
  if (x.dtype == DType::kBF16) return pack_bf16(x, first, order, tiles, sums);
  if (x.dtype == DType::kF16) return pack_parts<load_f16, 2>(x, first, order, tiles, exponents, sums);
  for (std::int64_t r = 0; r < std::min(kTileRows, x.rows - first); ++r) {
    exponents[r] = exponent_to_add(static_cast<const float*>(x.data) + (first + r) * x.row_stride, x.columns);
  }
  return pack_parts<load_f32, 3>(x, first, order, tiles, exponents, sums);
}

TESSERA_AMX_TARGET void pack_weight_tiles(const Weight& w, std::int64_t first, std::int64_t begin,
                                          std::int64_t depth, std::byte* tiles) {
  const int parts = weight_parts(w.dtype);
  const std::int64_t end = std::min(w.columns, begin + depth);
  const std::int64_t rows = std::clamp<std::int64_t>(w.rows - first, 0, kTileRows);
  const std::int64_t step_bytes = parts * static_cast<std::int64_t>(kTileBytes);
  for (std::int64_t r = 0; r < kTileRows; ++r) {
    std::byte* tile_row = tiles + r * kTileStride;
    const std::int64_t offset = (first + r) * w.columns;
    for (std::int64_t k = begin; k < begin + depth; k += kTileDepth, tile_row += step_bytes) {
      if (r >= rows || k >= end) {
        for (int part = 0; part < parts; ++part)
          _mm512_store_si512(tile_row + part * static_cast<std::int64_t>(kTileBytes), _mm512_setzero_si512());
        continue;
      }
      const __mmask32 mask = first_elements(end - k);
      if (w.dtype == DType::kF16) {
        Floats32 values = load_f16(w.data, offset + k, mask);
        _mm512_store_si512(tile_row, take_part(values));
        _mm512_store_si512(tile_row + kTileBytes, take_part(values));
      } else {
        const auto* p = static_cast<const BFloat16*>(w.data) + offset + k;
        _mm512_store_si512(tile_row, _mm512_maskz_loadu_epi16(mask, p));
      }
    }
  }
}

void multiply_tiles(const TileProduct& p) {
  return p.x_tiles == 2 ? multiply_rows_of_tiles<2>(p) : multiply_rows_of_tiles<1>(p);
}

TESSERA_AMX_TARGET void copy_tile(const float* tile, XTileOrder order, float* out, std::int64_t out_stride) {
  __m512i rows[kTileRows];
  for (int i = 0; i < kTileRows; ++i) rows[i] = _mm512_load_si512(tile + i * 16);
  if (order == XTileOrder::kPairs) transpose(rows);
  for (int i = 0; i < kTileRows; ++i) _mm512_storeu_si512(out + i * out_stride, rows[i]);
}

}  // namespace tessera::cpu

#endif
