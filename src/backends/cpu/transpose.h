#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include "backends/cpu/unroll.h"

namespace tessera::cpu {

/// rows[i] = column i of 16 rows of 16 words.
__attribute__((target("avx512f"))) inline void transpose(__m512i (&rows)[16]) {
  __m512i pairs[16];
  TESSERA_UNROLL
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  TESSERA_UNROLL
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  // Now rows[4 g + c] holds, in 128-bit block b, column 4 b + c of rows 4 g to 4 g + 3.
  TESSERA_UNROLL
  for (int c = 0; c < 4; ++c) {
    pairs[c] = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88);
    pairs[4 + c] = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xdd);
    pairs[8 + c] = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88);
    pairs[12 + c] = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xdd);
  }
  TESSERA_UNROLL
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm512_shuffle_i32x4(pairs[c], pairs[8 + c], 0x88);
    rows[8 + c] = _mm512_shuffle_i32x4(pairs[c], pairs[8 + c], 0xdd);
    rows[4 + c] = _mm512_shuffle_i32x4(pairs[4 + c], pairs[12 + c], 0x88);
    rows[12 + c] = _mm512_shuffle_i32x4(pairs[4 + c], pairs[12 + c], 0xdd);
  }
}

}  // namespace tessera::cpu

#endif
