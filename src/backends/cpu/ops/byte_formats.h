#pragma once

// Blocks of weights from memory into vectors of bytes, 32 of which AVX2 multiplies at a time. Only for files
// that are compiled where vectors may be AVX2's.

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/cpu/ops/block_parts.h"
#include "backends/cpu/unroll.h"
#include "core/block_format.h"

#define TESSERA_AVX2_TARGET __attribute__((target("avx2,fma,f16c")))

namespace tessera::cpu {

inline constexpr int kByteLanes = 32;
// A span of a row of w: a block of 256 elements or eight of 32. Its elements are vectors in their order.
inline constexpr int kByteVectors = 8;
inline constexpr int kByteSpan = kByteLanes * kByteVectors;

/// A span's groups' steps, and what is added for each group times its sum of x, in groups' order.
template <int kGroups>
struct ByteSteps {
  __m256 step[kGroups / 8];
  __m256 offset[kGroups / 8];  ///< where a format has offsets
};

TESSERA_AVX2_TARGET inline __m256 half_in_8_lanes(const unsigned char* p) {
  return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(word_at(p))));
}

/// The bits kMask of each byte, which the shift left alone; kBits > 0: to the left. Bits move between bytes.
template <int kBits, int kMask>
TESSERA_AVX2_TARGET inline __m256i shifted_bits(__m256i bytes) {
  if constexpr (kBits > 0) bytes = _mm256_slli_epi16(bytes, kBits);
  if constexpr (kBits < 0) bytes = _mm256_srli_epi16(bytes, -kBits);
  return _mm256_and_si256(bytes, _mm256_set1_epi8(static_cast<char>(kMask)));
}
TESSERA_AVX2_TARGET inline __m256i lower_halves(__m256i bytes) { return shifted_bits<0, 0xf>(bytes); }
TESSERA_AVX2_TARGET inline __m256i upper_halves(__m256i bytes) { return shifted_bits<-4, 0xf>(bytes); }

/// 16 integers as fp32.
TESSERA_AVX2_TARGET inline void unsigned_as_f32(__m128i bytes, __m256 (&out)[2]) {
  out[0] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
  out[1] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
}
TESSERA_AVX2_TARGET inline void signed_as_f32(__m128i bytes, __m256 (&out)[2]) {
  out[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  out[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
}

/// Steps of 16 groups: integers times what they have in common.
TESSERA_AVX2_TARGET inline ByteSteps<16> steps_of_16(const __m256 (&integers)[2], __m256 unit) {
  return {{_mm256_mul_ps(integers[0], unit), _mm256_mul_ps(integers[1], unit)}, {}};
}

/// How a format's spans become bytes.
///   kBlocks           of a span
///   kGroups           of a span, which share a step: 8 or 16
///   kHasOffsets       groups have offsets
///   kBias             what is added to integers, so that they have no signs, or 0
///   kHasSigns         integers have signs and up to seven bits; else, with the bias, none and up to six
///   steps(span)       ByteSteps<kGroups>
///   pair<i>(span, first, second)  vectors 2 i and 2 i + 1 of integers
template <class Format>
struct ByteFormat {
  static constexpr bool kExists = false;
};

struct UsualBytes {
  static constexpr bool kExists = true, kHasOffsets = false, kHasSigns = false;
  static constexpr int kBias = 0;
};

struct BytesOf256 : UsualBytes {
  static constexpr int kBlocks = 1;
};

/// Q4_K, Q5_K.
struct BytesOfSixBitSteps : BytesOf256 {
  static constexpr int kGroups = 8;
  static constexpr bool kHasOffsets = true;
  TESSERA_AVX2_TARGET static ByteSteps<8> steps(const unsigned char* block) {
    const __m128i words = load_16(block);
    __m256 integers[2];
    unsigned_as_f32(six_bit_steps(words), integers);
    const __m128 halves = _mm_cvtph_ps(words);
    const __m256 less = _mm256_broadcastss_ps(_mm_sub_ps(_mm_setzero_ps(), _mm_movehdup_ps(halves)));
    return {{_mm256_mul_ps(integers[0], _mm256_broadcastss_ps(halves))}, {_mm256_mul_ps(integers[1], less)}};
  }
};

template <>
struct ByteFormat<formats::Q4_K> : BytesOfSixBitSteps {
  template <int kPair>
  TESSERA_AVX2_TARGET static void pair(const unsigned char* block, __m256i& first, __m256i& second) {
    const __m256i halves = load_32(block + 16 + 32 * kPair);
    first = lower_halves(halves);
    second = upper_halves(halves);
  }
};

template <>
struct ByteFormat<formats::Q5_K> : BytesOfSixBitSteps {
  template <int kPair>
  TESSERA_AVX2_TARGET static void pair(const unsigned char* block, __m256i& first, __m256i& second) {
    // Bit g of byte l is that of element l of group g.
    const __m256i fifths = load_32(block + 16);
    const __m256i halves = load_32(block + 48 + 32 * kPair);
    first = _mm256_or_si256(lower_halves(halves), shifted_bits<4 - 2 * kPair, 0x10>(fifths));
    second = _mm256_or_si256(upper_halves(halves), shifted_bits<3 - 2 * kPair, 0x10>(fifths));
  }
};

template <>
struct ByteFormat<formats::Q6_K> : BytesOf256 {
  static constexpr int kGroups = 16, kBias = 32;
  TESSERA_AVX2_TARGET static ByteSteps<16> steps(const unsigned char* block) {
    __m256 integers[2];
    signed_as_f32(load_16(block + 192), integers);
    return steps_of_16(integers, half_in_8_lanes(block + 208));
  }
  template <int kPair>
  TESSERA_AVX2_TARGET static void pair(const unsigned char* block, __m256i& first, __m256i& second) {
    // Byte l has two bits for the lower halves of bytes l and l + 32, then for their upper halves.
    constexpr int kHalf = kPair / 2, kUpper = kPair % 2;
    const __m256i twos = load_32(block + 128 + 32 * kHalf);
    first = _mm256_or_si256(shifted_bits<-4 * kUpper, 0xf>(load_32(block + 64 * kHalf)),
                            shifted_bits<4 - 4 * kUpper, 0x30>(twos));
    second = _mm256_or_si256(shifted_bits<-4 * kUpper, 0xf>(load_32(block + 64 * kHalf + 32)),
                             shifted_bits<2 - 4 * kUpper, 0x30>(twos));
  }
};

template <>
struct ByteFormat<formats::Q3_K> : BytesOf256 {
  static constexpr int kGroups = 16, kBias = 4;
  TESSERA_AVX2_TARGET static ByteSteps<16> steps(const unsigned char* block) {
    __m256 integers[2];
    signed_as_f32(q3_k_steps(block), integers);
    return steps_of_16(integers, half_in_8_lanes(block + 108));
  }
  template <int kPart>
  TESSERA_AVX2_TARGET static __m256i part(const unsigned char* block) {
    // Bit g of byte l is the third of element l of group g of 32.
    return _mm256_or_si256(shifted_bits<-2 * (kPart % 4), 3>(load_32(block + 32 + kPart / 4 * 32)),
                           shifted_bits<2 - kPart, 4>(load_32(block)));
  }
  template <int kPair>
  TESSERA_AVX2_TARGET static void pair(const unsigned char* block, __m256i& first, __m256i& second) {
    first = part<2 * kPair>(block);
    second = part<2 * kPair + 1>(block);
  }
};

template <>
struct ByteFormat<formats::Q2_K> : BytesOf256 {
  static constexpr int kGroups = 16;
  static constexpr bool kHasOffsets = true;
  TESSERA_AVX2_TARGET static ByteSteps<16> steps(const unsigned char* block) {
    const __m128i halves = load_16(block);
    const __m128i nibble = _mm_set1_epi8(0xf);
    const __m256 unit = half_in_8_lanes(block + 80);
    const __m256 less = _mm256_sub_ps(_mm256_setzero_ps(), half_in_8_lanes(block + 82));
    __m256 step[2], offset[2];
    unsigned_as_f32(_mm_and_si128(halves, nibble), step);
    unsigned_as_f32(_mm_and_si128(_mm_srli_epi16(halves, 4), nibble), offset);
    ByteSteps<16> steps = steps_of_16(step, unit);
    TESSERA_UNROLL
    for (int i = 0; i < 2; ++i) steps.offset[i] = _mm256_mul_ps(offset[i], less);
    return steps;
  }
  template <int kPair>
  TESSERA_AVX2_TARGET static void pair(const unsigned char* block, __m256i& first, __m256i& second) {
    const __m256i twos = load_32(block + 16 + kPair / 2 * 32);
    first = shifted_bits<-4 * (kPair % 2), 3>(twos);
    second = shifted_bits<-4 * (kPair % 2) - 2, 3>(twos);
  }
};

/// Blocks of 32 elements, eight a span: a vector each, which ByteFormat<Format>::vector(block) is.
template <class Format>
struct BytesOf32 : UsualBytes {
  static constexpr int kBlocks = 8, kGroups = 8;
  template <int kPair>
  TESSERA_AVX2_TARGET static void pair(const unsigned char* span, __m256i& first, __m256i& second) {
    first = ByteFormat<Format>::vector(span + 2 * kPair * Format::kBytes);
    second = ByteFormat<Format>::vector(span + (2 * kPair + 1) * Format::kBytes);
  }
};

/// Lower halves of 16 bytes, then upper ones.
TESSERA_AVX2_TARGET inline __m256i halves_of_16(const unsigned char* bytes) {
  const __m256i twice = _mm256_broadcastsi128_si256(load_16(bytes));
  return lower_halves(_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)));
}

/// 16 in each byte whose bit of the four bytes is set.
TESSERA_AVX2_TARGET inline __m256i fifths_of_32(const unsigned char* bits) {
  const __m256i spread =
      _mm256_shuffle_epi8(_mm256_set1_epi32(two_words_at(bits)),
                          _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit), _mm256_set1_epi8(0x10));
}

/// The halves at byte kAt of eight blocks.
template <class Format, int kAt>
TESSERA_AVX2_TARGET inline __m256 halves_of_blocks(const unsigned char* span) {
  const auto at = [&](int block) { return static_cast<short>(word_at(span + block * Format::kBytes + kAt)); };
  return _mm256_cvtph_ps(_mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)));
}

template <class Format, int kBias_>
struct BytesWithBias : BytesOf32<Format> {
  static constexpr int kBias = kBias_;
  TESSERA_AVX2_TARGET static ByteSteps<8> steps(const unsigned char* span) {
    return {{halves_of_blocks<Format, 0>(span)}, {}};
  }
};

template <class Format>
struct BytesWithOffsets : BytesOf32<Format> {
  static constexpr bool kHasOffsets = true;
  TESSERA_AVX2_TARGET static ByteSteps<8> steps(const unsigned char* span) {
    return {{halves_of_blocks<Format, 0>(span)}, {halves_of_blocks<Format, 2>(span)}};
  }
};

template <>
struct ByteFormat<formats::Q4_0> : BytesWithBias<formats::Q4_0, 8> {
  TESSERA_AVX2_TARGET static __m256i vector(const unsigned char* block) { return halves_of_16(block + 2); }
};

template <>
struct ByteFormat<formats::Q4_1> : BytesWithOffsets<formats::Q4_1> {
  TESSERA_AVX2_TARGET static __m256i vector(const unsigned char* block) { return halves_of_16(block + 4); }
};

/// Fifth bits, then halves of 16 bytes.
TESSERA_AVX2_TARGET inline __m256i five_bits_of_32(const unsigned char* fifths) {
  return _mm256_or_si256(halves_of_16(fifths + 4), fifths_of_32(fifths));
}

template <>
struct ByteFormat<formats::Q5_0> : BytesWithBias<formats::Q5_0, 16> {
  TESSERA_AVX2_TARGET static __m256i vector(const unsigned char* block) { return five_bits_of_32(block + 2); }
};

template <>
struct ByteFormat<formats::Q5_1> : BytesWithOffsets<formats::Q5_1> {
  TESSERA_AVX2_TARGET static __m256i vector(const unsigned char* block) { return five_bits_of_32(block + 4); }
};

/// What a half of a byte stands for.
using ByteTable = std::array<std::int8_t, 16>;
template <class Function>
constexpr ByteTable byte_table(Function integer) {
  ByteTable table{};
  for (int bits = 0; bits < 16; ++bits)
    table[static_cast<std::size_t>(bits)] = static_cast<std::int8_t>(integer(bits));
  return table;
}

/// As halves_of_16, through a table.
TESSERA_AVX2_TARGET inline __m256i look_up_halves_of_16(const ByteTable& table, const unsigned char* bytes) {
  const __m128i integers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data()));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(integers), halves_of_16(bytes));
}
TESSERA_AVX2_TARGET inline __m256i iq4_of_16(const unsigned char* bytes) {
  static constexpr ByteTable kTable = byte_table(formats::iq4_integer);
  return look_up_halves_of_16(kTable, bytes);
}

template <>
struct ByteFormat<formats::IQ4_NL> : BytesWithBias<formats::IQ4_NL, 0> {
  static constexpr bool kHasSigns = true;
  TESSERA_AVX2_TARGET static __m256i vector(const unsigned char* block) { return iq4_of_16(block + 2); }
};

template <>
struct ByteFormat<formats::IQ4_XS> : BytesOf256 {
  static constexpr bool kHasSigns = true;
  static constexpr int kGroups = 8;
  TESSERA_AVX2_TARGET static ByteSteps<8> steps(const unsigned char* block) {
    return {{_mm256_mul_ps(_mm256_cvtepi32_ps(iq4_xs_steps(block)), half_in_8_lanes(block))}, {}};
  }
  template <int kPair>
  TESSERA_AVX2_TARGET static void pair(const unsigned char* block, __m256i& first, __m256i& second) {
    first = iq4_of_16(block + 8 + 32 * kPair);
    second = iq4_of_16(block + 8 + 32 * kPair + 16);
  }
};

/// Through a table of the integers, which are from -12 to 12.
template <>
struct ByteFormat<formats::MXFP4> : BytesOf32<formats::MXFP4> {
  static constexpr int kBias = 12;
  TESSERA_AVX2_TARGET static ByteSteps<8> steps(const unsigned char* span) {
    const auto at = [&](int block) {
      return formats::MXFP4::step<float>(span + block * formats::MXFP4::kBytes, 0).step;
    };
    return {{_mm256_setr_ps(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))}, {}};
  }
  TESSERA_AVX2_TARGET static __m256i vector(const unsigned char* block) {
    static constexpr ByteTable kTable = byte_table([](int bits) { return mxfp4_integer(bits) + kBias; });
    return look_up_halves_of_16(kTable, block + 1);
  }
};

}  // namespace tessera::cpu

#endif
