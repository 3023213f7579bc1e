#include "backends/cpu/ops/tile_products.h"

#include "backends/cpu/amx_tiles.h"
#include "backends/cpu/ops/gemm_kernel.h"
#include "core/block_format.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>

#define TESSERA_AMX_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c")))

namespace tessera::cpu {
namespace {

constexpr std::int64_t kTileStride = 64;  // bytes of a row of a packed tile
constexpr std::int64_t kTileFloats = 256;

/// 32 numbers as fp32.
struct Floats32 {
  __m512 low, high;
};

/// A mask of the first `count` of kTileDepth elements.
__mmask32 first_elements(std::int64_t count) {
  return count >= kTileDepth ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
}

TESSERA_AMX_TARGET inline Floats32 load_f32(const void* data, std::int64_t offset, __mmask32 mask) {
  const float* p = static_cast<const float*>(data) + offset;
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p),
          _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), p + 16)};
}

TESSERA_AMX_TARGET inline Floats32 load_f16(const void* data, std::int64_t offset, __mmask32 mask) {
  const Half* p = static_cast<const Half*>(data) + offset;
  const __m512i halves = _mm512_maskz_loadu_epi16(mask, p);
  return {_mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
          _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))};
}

/// The upper halves of 32 fp32 numbers, side by side.
TESSERA_AMX_TARGET inline __m512i upper_halves(const Floats32& x) {
  const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x.low), 16));
  const __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x.high), 16));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

TESSERA_AMX_TARGET inline __m512 without_lower_half(__m512 x) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

/// The next bf16 part of x, cut off rather than rounded, so that it can't overflow; x becomes what is left,
/// exactly.
TESSERA_AMX_TARGET inline __m512i take_part(Floats32& x) {
  const __m512i part = upper_halves(x);
  x.low = _mm512_sub_ps(x.low, without_lower_half(x.low));
  x.high = _mm512_sub_ps(x.high, without_lower_half(x.high));
  return part;
}

TESSERA_AMX_TARGET inline bool all_finite(const Floats32& x) {
  const __m512 infinity = _mm512_set1_ps(std::numeric_limits<float>::infinity());
  return (_mm512_cmp_ps_mask(_mm512_abs_ps(x.low), infinity, _CMP_NLT_UQ) |
          _mm512_cmp_ps_mask(_mm512_abs_ps(x.high), infinity, _CMP_NLT_UQ)) == 0;
}

/// rows[i] lane j becomes rows[j] lane i, 32 bits each: pairs of lanes, fours, then fours of 128 bits.
TESSERA_AMX_TARGET inline void transpose(__m512i (&rows)[kTileRows]) {
  __m512i t[kTileRows];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

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

/// A step's parts of 16 rows, as tiles of (pair of k, row).
TESSERA_AMX_TARGET inline void store_pairs(__m512i (&rows)[kTileRows], std::byte* tile) {
  transpose(rows);
  for (int i = 0; i < kTileRows; ++i) _mm512_store_si512(tile + i * kTileStride, rows[i]);
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

TESSERA_AMX_TARGET bool pack_bf16(const Matrix& x, std::int64_t first, std::byte* tiles,
                                  const GroupSums& sums) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 not_finite = 0;
  const std::int64_t rows = std::min(kTileRows, x.rows - first);
  const auto* data = static_cast<const BFloat16*>(x.data) + first * x.row_stride;
  for (std::int64_t k = 0; k < x.columns; k += kTileDepth, tiles += kTileBytes) {
    __m512i pairs[kTileRows];
    const __mmask32 mask = first_elements(x.columns - k);
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      pairs[r] =
          r < rows ? _mm512_maskz_loadu_epi16(mask, data + r * x.row_stride + k) : _mm512_setzero_si512();
      not_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(pairs[r], exponent), exponent);
      store_sums(floats_of_bf16(pairs[r]), k / kTileDepth, r, sums);
    }
    store_pairs(pairs, tiles);
  }
  return not_finite == 0;
}

template <Floats32 (*kLoad)(const void*, std::int64_t, __mmask32), int kParts>
TESSERA_AMX_TARGET bool pack_parts(const Matrix& x, std::int64_t first, std::byte* tiles,
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
    for (int part = 0; part < kParts; ++part, tiles += kTileBytes) store_pairs(parts[part], tiles);
  }
  return is_finite;
}

/// 32 integers of 8 bits as bf16, exactly.
TESSERA_AMX_TARGET inline __m512i bf16_of_integers(const void* integers) {
  const auto* values = static_cast<const __m128i*>(integers);
  return upper_halves({_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(values))),
                       _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(values + 1)))});
}

/// Elements [begin, end) of one row of blocks: a row of tiles, and of scales and offsets.
TESSERA_AMX_TARGET void pack_block_row(const Weight& w, const WeightTiles& layout, std::int64_t row,
                                       std::int64_t begin, std::int64_t end, std::byte* tile_row,
                                       float* scales, float* offsets) {
  constexpr std::int64_t kAtOnce = 256;  // elements: whole blocks of all formats
  alignas(64) std::int8_t integers[kAtOnce];
  float steps[kAtOnce / 16];
  float step_offsets[kAtOnce / 16];
  for (std::int64_t k = begin; k < end; k += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, end - k);
    gemm_kernels().unpack(w, row, k, count, {integers, steps, step_offsets});
    for (std::int64_t n = 0; n < count / kTileDepth; ++n) {
      const __m512i tile = bf16_of_integers(integers + n * kTileDepth);
      for (int part = 0; part < layout.parts; ++part) {
        const __mmask8 own = layout.parts == 1 ? 0xff : part == 0 ? 0x0f : 0xf0;
        _mm512_store_si512(tile_row, _mm512_maskz_mov_epi64(own, tile));
        *scales = steps[n * layout.parts + part];
        if (layout.has_offsets) *offsets = step_offsets[n * layout.parts + part];
        tile_row += kTileBytes;
        scales += kTileRows;
        if (layout.has_offsets) offsets += kTileRows;
      }
    }
  }
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
TESSERA_AMX_TARGET void multiply_unscaled(const TileProduct& p) {
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

/// A step's sums of products of one tile of w and one of x, before the scales, by way of tile kSum.
template <int kXParts, int kSum>
TESSERA_AMX_TARGET inline void multiply_step(const std::byte* w, const std::byte* x, float* products) {
  constexpr int kW = 4 + kSum % 2;
  amx::tilezero<kSum>();
  amx::tileloadd<kW>(w, kTileStride);
  amx::tileloadd<6>(x, kTileStride);
  amx::tdpbf16ps<kSum, kW, 6>();
  if constexpr (kXParts > 1) {
    amx::tileloadd<7>(x + kTileBytes, kTileStride);
    amx::tdpbf16ps<kSum, kW, 7>();
  }
  if constexpr (kXParts > 2) {
    amx::tileloadd<6>(x + 2 * kTileBytes, kTileStride);
    amx::tdpbf16ps<kSum, kW, 6>();
  }
  amx::tilestored<kSum>(products, kTileStride);
}

/// One tile of c, of one step for each group. Four are under way at once, since a product's sums wait for one
/// another for longer than it takes; vectors add up the fourth before.
template <int kXParts, int kGroupsOfStep, bool kHasOffsets>
TESSERA_AMX_TARGET void multiply_scaled_tile(const std::byte* w, const float* scales, const float* offsets,
                                             const std::byte* x, const float* x_sums, std::int64_t steps,
                                             float* c, bool is_first) {
  constexpr std::int64_t kSlots = 4;
  alignas(64) float products[kSlots][kTileFloats];
  __m512 sums[kTileRows];
  for (int r = 0; r < kTileRows; ++r) sums[r] = is_first ? _mm512_setzero_ps() : _mm512_load_ps(c + r * 16);
  for (std::int64_t s = 0; s < steps + kSlots - 1; ++s) {
    if (s < steps) {
      switch (s % kSlots) {
        case 0:
          multiply_step<kXParts, 0>(w, x, products[0]);
          break;
        case 1:
          multiply_step<kXParts, 1>(w, x, products[1]);
          break;
        case 2:
          multiply_step<kXParts, 2>(w, x, products[2]);
          break;
        default:
          multiply_step<kXParts, 3>(w, x, products[3]);
      }
      w += kTileBytes;
      if (s % kGroupsOfStep == kGroupsOfStep - 1) x += kXParts * kTileBytes;
    }
    if (s < kSlots - 1) continue;
    const float* products_of_step = products[(s - (kSlots - 1)) % kSlots];
    for (int r = 0; r < kTileRows; ++r) {
      sums[r] =
          _mm512_fmadd_ps(_mm512_set1_ps(scales[r]), _mm512_load_ps(products_of_step + r * 16), sums[r]);
    }
    scales += kTileRows;
    if constexpr (kHasOffsets) {
      const __m512 x_sum = _mm512_loadu_ps(x_sums);
      for (int r = 0; r < kTileRows; ++r)
        sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(offsets[r]), x_sum, sums[r]);
      offsets += kTileRows;
      x_sums += kTileRows;
    }
  }
  for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(c + r * 16, sums[r]);
}

template <int kXParts, int kGroupsOfStep, bool kHasOffsets>
void multiply_scaled(const TileProduct& p) {
  for (int j = 0; j < p.x_tiles; ++j) {
    for (int i = 0; i < kTilesOfWeight; ++i) {
      multiply_scaled_tile<kXParts, kGroupsOfStep, kHasOffsets>(p.w[i], p.scales[i], p.offsets[i], p.x[j],
                                                                p.x_sums[j], p.steps * kGroupsOfStep,
                                                                p.c[i][j], p.is_first);
    }
  }
}

template <int kXParts>
void multiply_blocks(const TileProduct& p) {
  const bool has_offsets = p.offsets[0] != nullptr;
  if (p.w_parts == 1)
    return has_offsets ? multiply_scaled<kXParts, 1, true>(p) : multiply_scaled<kXParts, 1, false>(p);
  return has_offsets ? multiply_scaled<kXParts, 2, true>(p) : multiply_scaled<kXParts, 2, false>(p);
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

WeightTiles::WeightTiles(DType dtype) {
  if (dtype == DType::kF16) parts = 2;
  const BlockGroups groups = groups_of_blocks(dtype);
  if (groups.elements == 0) return;
  parts = static_cast<int>(kTileDepth / groups.elements);
  is_scaled = true;
  has_offsets = groups.have_offset;
}

bool pack_x_tiles(const Matrix& x, std::int64_t first, std::byte* tiles, int* exponents,
                  const GroupSums& sums) {
  std::fill_n(exponents, kTileRows, 0);
  if (x.dtype == DType::kBF16) return pack_bf16(x, first, tiles, sums);
  if (x.dtype == DType::kF16) return pack_parts<load_f16, 2>(x, first, tiles, exponents, sums);
  for (std::int64_t r = 0; r < std::min(kTileRows, x.rows - first); ++r) {
    exponents[r] = exponent_to_add(static_cast<const float*>(x.data) + (first + r) * x.row_stride, x.columns);
  }
  return pack_parts<load_f32, 3>(x, first, tiles, exponents, sums);
}

TESSERA_AMX_TARGET void pack_weight_tiles(const Weight& w, const WeightTiles& layout, std::int64_t first,
                                          std::int64_t begin, std::int64_t depth, std::byte* tiles,
                                          float* scales, float* offsets) {
  const int parts = layout.parts;
  const std::int64_t end = std::min(w.columns, begin + depth);
  const std::int64_t rows = std::clamp<std::int64_t>(w.rows - first, 0, kTileRows);
  const std::int64_t step_bytes = parts * static_cast<std::int64_t>(kTileBytes);
  for (std::int64_t r = 0; r < kTileRows; ++r) {
    std::byte* tile_row = tiles + r * kTileStride;
    if (layout.is_scaled && r < rows) {
      pack_block_row(w, layout, first + r, begin, end, tile_row, scales + r,
                     layout.has_offsets ? offsets + r : nullptr);
      continue;
    }
    const std::int64_t offset = (first + r) * w.columns;
    for (std::int64_t k = begin; k < begin + depth; k += kTileDepth, tile_row += step_bytes) {
      if (r >= rows || k >= end) {
        for (int part = 0; part < parts; ++part) {
          _mm512_store_si512(tile_row + part * static_cast<std::int64_t>(kTileBytes), _mm512_setzero_si512());
          const std::int64_t at = ((k - begin) / kTileDepth * parts + part) * kTileRows + r;
          if (layout.is_scaled) scales[at] = 0;
          if (layout.has_offsets) offsets[at] = 0;
        }
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
  if (p.scales[0] == nullptr) return p.x_tiles == 2 ? multiply_unscaled<2>(p) : multiply_unscaled<1>(p);
  if (p.x_parts == 1) return multiply_blocks<1>(p);
  return p.x_parts == 2 ? multiply_blocks<2>(p) : multiply_blocks<3>(p);
}

TESSERA_AMX_TARGET void transpose_tile(const float* tile, float* out, std::int64_t out_stride) {
  __m512i rows[kTileRows];
  for (int i = 0; i < kTileRows; ++i) rows[i] = _mm512_load_si512(tile + i * 16);
  transpose(rows);
  for (int i = 0; i < kTileRows; ++i) _mm512_storeu_si512(out + i * out_stride, rows[i]);
}

}  // namespace tessera::cpu

#endif
