#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "backends/cpu/transpose.h"
#include "backends/cpu/unroll.h"
#include "tessera/dtype.h"

// What amx_prefill.cpp does in vectors: loading, splitting numbers into bf16, powers of two.

#define TESSERA_AMX_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))

namespace tessera::cpu {

/// Parts of a number: bf16 as it is, f16 as high and low.
template <class T>
inline constexpr int kParts = std::is_same_v<T, Half> ? 2 : 1;

/// 32 neighbouring numbers of a row from element `first` on; zeros where it ends.
TESSERA_AMX_TARGET inline __m512i load_numbers(const std::byte* row, std::int64_t first, std::int64_t count) {
  if (count - first >= 32) return _mm512_loadu_si512(row + 2 * first);
  const std::int64_t left = std::max<std::int64_t>(count - first, 0);
  return _mm512_maskz_loadu_epi16((__mmask32{1} << left) - 1, row + 2 * first);
}

/// 32 numbers as bf16, each the sum of its parts.
template <class T>
TESSERA_AMX_TARGET inline void split(__m512i numbers, __m512i (&parts)[kParts<T>]) {
  if constexpr (kParts<T> == 1) {
    parts[0] = numbers;
  } else {
    const __m512 first = _mm512_cvtph_ps(_mm512_castsi512_si256(numbers));
    const __m512 second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(numbers, 1));
    parts[0] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    const __m512i first_high = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(parts[0]));
    const __m512i second_high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(parts[0], 1));
    const __m512 first_low = _mm512_sub_ps(first, _mm512_castsi512_ps(_mm512_slli_epi32(first_high, 16)));
    const __m512 second_low = _mm512_sub_ps(second, _mm512_castsi512_ps(_mm512_slli_epi32(second_high, 16)));
    parts[1] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second_low, first_low));
  }
}

/// Which of 32 numbers are infinities or NaN.
template <class T>
TESSERA_AMX_TARGET inline __mmask32 non_finite(__m512i numbers) {
  const __m512i exponent = _mm512_set1_epi16(kParts<T> == 1 ? 0x7f80 : 0x7c00);
  return _mm512_cmpeq_epi16_mask(_mm512_and_si512(numbers, exponent), exponent);
}

/// 2^x for x <= 0 or little more: 0 below -126, where the result would be subnormal; NaN for NaN.
///
/// x = n + r with |r| <= 1/2, exactly; 2^r = 1 + r P(r), P of degree 4 with the least relative error,
/// 2^-23.4: with the roundings of the last steps within 2 units in the last place.
TESSERA_AMX_TARGET inline __m512 exp2_or_zero(__m512 x) {
  const __m512 magic = _mm512_set1_ps(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const __m512 n = _mm512_sub_ps(_mm512_add_ps(x, magic), magic);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0x1.5bba14p-10f), _mm512_set1_ps(0x1.3cea88p-7f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.c6b752p-5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.ebf9bcp-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.62e42ap-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), p, n);
}

/// What makes one of rows' results before a segment, a, and of the segment, b, whose maxima are in powers of
/// two. segments-inl.h has the same for natural ones.
struct SegmentWeights {
  TESSERA_AMX_TARGET SegmentWeights(__m512 max_a, __m512 max_b) : largest(_mm512_max_ps(max_a, max_b)) {
    // Where neither sees a key: any finite number in place of -inf keeps 2^(-inf - max) = 0.
    const __m512 hidden = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    const __m512 offset = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(largest, hidden, _CMP_NEQ_UQ), largest);
    weight_a = exp2_or_zero(_mm512_sub_ps(max_a, offset));
    weight_b = exp2_or_zero(_mm512_sub_ps(max_b, offset));
  }

  /// Of a sum, or of a dimension of o.
  TESSERA_AMX_TARGET __m512 merge(__m512 a, __m512 b) const {
    return _mm512_fmadd_ps(b, weight_b, _mm512_mul_ps(a, weight_a));
  }

  __m512 largest, weight_a, weight_b;
};

}  // namespace tessera::cpu

#endif
