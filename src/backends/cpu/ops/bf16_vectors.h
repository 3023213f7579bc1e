#pragma once

// Vectors of AVX-512 for products by AMX's tiles: numbers in bf16 parts. Compiled for
// what every processor with AMX has, whatever the program is built for.

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>
#include <limits>

#include "backends/cpu/ops/tile_products.h"
#include "backends/cpu/transpose.h"

#define TESSERA_AMX_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,f16c")))

namespace tessera::cpu {

/// 32 numbers as fp32.
struct Floats32 {
  __m512 low, high;
};

/// A mask of the first `count` of kTileDepth elements.
inline __mmask32 first_elements(std::int64_t count) {
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

}  // namespace tessera::cpu

#endif
