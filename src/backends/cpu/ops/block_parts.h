#pragma once

// Parts of blocks that vectors of AVX2 and of AVX-512 are made of: bytes, groups' steps and offsets as
// integers, a table. Only for files that are compiled where vectors may be theirs.

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "core/block_format.h"

#define TESSERA_BLOCK_PARTS_TARGET __attribute__((target("avx2")))

namespace tessera::cpu {

inline std::uint16_t word_at(const unsigned char* p) {
  std::uint16_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}
inline int two_words_at(const unsigned char* p) {
  int words;
  std::memcpy(&words, p, sizeof words);
  return words;
}
TESSERA_BLOCK_PARTS_TARGET inline __m128i load_16(const unsigned char* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

TESSERA_BLOCK_PARTS_TARGET inline __m256i load_32(const unsigned char* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

/// What the halves of MXFP4's bytes stand for.
constexpr int mxfp4_integer(int bits) {
  unsigned char block[formats::MXFP4::kBytes] = {};
  block[1] = static_cast<unsigned char>(bits);
  return formats::MXFP4::integer(block, 0);
}

/// Q4_K's and Q5_K's: steps of eight groups, then their offsets, unsigned. words: the block's first 16 bytes.
TESSERA_BLOCK_PARTS_TARGET inline __m128i six_bit_steps(__m128i words) {
  // The words of the halves, of steps, of offsets, and of the lower bits of the last four of both.
  const __m128i lower =
      _mm_shuffle_epi8(words, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
  const __m128i upper =
      _mm_shuffle_epi8(words, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
  return _mm_or_si128(_mm_and_si128(_mm_srlv_epi32(lower, _mm_setr_epi32(0, 0, 0, 4)),
                                    _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)),
                      _mm_and_si128(_mm_srli_epi32(upper, 2), _mm_set1_epi32(0x30303030)));
}

/// Q3_K's, of 16 groups, with signs.
TESSERA_BLOCK_PARTS_TARGET inline __m128i q3_k_steps(const unsigned char* block) {
  const __m128i end = load_16(block + 94);  // 12 bytes of steps and the half are its last
  const __m128i halves = _mm_shuffle_epi8(end, _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9));
  const __m128i lower =
      _mm_and_si128(_mm_blend_epi16(halves, _mm_srli_epi16(halves, 4), 0xf0), _mm_set1_epi8(0xf));
  const __m128i uppers = _mm_srlv_epi32(
      _mm_shuffle_epi8(end, _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13)),
      _mm_setr_epi32(0, 2, 4, 6));
  const __m128i bits = _mm_or_si128(lower, _mm_slli_epi16(_mm_and_si128(uppers, _mm_set1_epi8(3)), 4));
  return _mm_sub_epi8(bits, _mm_set1_epi8(32));
}

/// IQ4_XS's, of eight groups.
TESSERA_BLOCK_PARTS_TARGET inline __m256i iq4_xs_steps(const unsigned char* block) {
  const __m256i lower = _mm256_srlv_epi32(_mm256_set1_epi32(two_words_at(block + 4)),
                                          _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  const __m256i upper = _mm256_srlv_epi32(_mm256_set1_epi32(word_at(block + 2) << 4),
                                          _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
  const __m256i bits = _mm256_or_si256(_mm256_and_si256(lower, _mm256_set1_epi32(0xf)),
                                       _mm256_and_si256(upper, _mm256_set1_epi32(0x30)));
  return _mm256_sub_epi32(bits, _mm256_set1_epi32(32));
}

}  // namespace tessera::cpu

#endif
