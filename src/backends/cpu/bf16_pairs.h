#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

// Dot products of pairs of bf16 by AVX-512-BF16, which Highway does not offer. For functions that are called
// only where the processor has it.

#define TESSERA_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c")))

namespace tessera::cpu {

/// sum += a.low b.low + a.high b.high for each 32-bit word, in fp32.
TESSERA_BF16_TARGET inline __m512 add_dot_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

}  // namespace tessera::cpu

#endif
