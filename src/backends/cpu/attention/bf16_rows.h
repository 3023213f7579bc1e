#pragma once

#if defined(__x86_64__)

#include <cstdint>

#include "backends/cpu/bf16_pairs.h"

// What decode's steps on pairs of bf16 share, whatever keys and values are stored in.

namespace tessera::cpu {

/// The sums of the lanes of four vectors.
TESSERA_BF16_TARGET inline __m128 sum_lanes_of_four(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 abcd = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 two = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
  return _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1));
}

/// Whether a weight of kRows pairs is +0, as those of hidden keys alone are. Reads 16 bytes.
template <int kRows>
TESSERA_BF16_TARGET inline bool hides_a_key(const std::uint32_t* pairs) {
  constexpr unsigned kPresent = (1u << 2 * kRows) - 1;
  const __m128i weights = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs));
  return (_mm_cmpeq_epi16_mask(weights, _mm_setzero_si128()) & kPresent) != 0;
}

/// Calls run<rows>() for the 1, 2 or 4 rows that decode's functions take.
template <class Run>
void with_rows(int rows, const Run& run) {
  switch (rows) {
    case 1:
      return run.template operator()<1>();
    case 2:
      return run.template operator()<2>();
    default:
      return run.template operator()<4>();
  }
}

}  // namespace tessera::cpu

#endif
