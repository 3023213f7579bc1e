#pragma once

// Blocks of weights from memory into vectors of bf16, whose dot products with x stand in for those of the
// numbers: an integer of up to eight bits is exact, and steps come after the sums of a group. Only for files
// that are compiled where vectors may be AVX-512's.

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "backends/cpu/bf16_pairs.h"
#include "backends/cpu/ops/block_parts.h"
#include "backends/cpu/unroll.h"
#include "core/block_format.h"

namespace tessera::cpu {

// A span of a row of w, a block of 256 or four of 32, is one or two chunks of 128 elements. In a chunk x is
// four vectors of 32 elements, in the order in which the weights come out of their bytes.
inline constexpr int kStreamLanes = 32;
inline constexpr int kStreamVectors = 4;
inline constexpr int kStreamChunk = kStreamLanes * kStreamVectors;
inline constexpr int kStreamSteps = 16;  // a span's steps and offsets, a vector of fp32

/// An index or a table of a permutation of 16-bit lanes.
using Words = std::array<std::uint16_t, kStreamLanes>;
/// An index of a permutation of 32-bit lanes.
using Places = std::array<std::int32_t, kStreamSteps>;

template <class Array, class Function>
constexpr Array array_of(Function function) {
  Array values{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<typename Array::value_type>(function(static_cast<int>(i)));
  }
  return values;
}

/// An integer of at most eight bits as bf16.
constexpr std::uint16_t bf16_bits(int integer) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(integer)) >> 16);
}

template <class Array>
TESSERA_BF16_TARGET inline __m512i load_array(const Array& values) {
  static_assert(sizeof values == sizeof(__m512i));
  return _mm512_loadu_si512(values.data());
}

/// 64 bytes, in a register from here on: the compiler would rather load them for each use, which here is
/// across the end of a line.
TESSERA_BF16_TARGET inline __m512i load_64(const unsigned char* p) {
  __m512i bytes = _mm512_loadu_si512(p);
  asm("" : "+v"(bytes));
  return bytes;
}

/// kBits > 0: to the left.
template <int kBits>
TESSERA_BF16_TARGET inline __m512i shift(__m512i words) {
  if constexpr (kBits > 0) return _mm512_slli_epi16(words, kBits);
  if constexpr (kBits < 0) return _mm512_srli_epi16(words, -kBits);
  return words;
}

/// Halves of 64 bytes in 16-bit lanes, from bit kAt of a lane on, with other bits around: lane l of vector v
/// has the lower (v even) or upper half of byte 2 l + v / 2.
struct HalfBytes {
  __m512i at[kStreamVectors];
};
template <int kAt>
TESSERA_BF16_TARGET inline HalfBytes half_bytes(__m512i bytes) {
  return {{shift<kAt>(bytes), shift<kAt - 4>(bytes), shift<kAt - 8>(bytes), shift<kAt - 12>(bytes)}};
}

/// What halves of 64 bytes are elements of, where the lower halves of a run of kRun bytes come first.
template <int kRun>
constexpr int element_of_half(int vector, int lane) {
  const int byte = 2 * lane + vector / 2;
  return byte / kRun * 2 * kRun + vector % 2 * kRun + byte % kRun;
}

/// The bits of `mask` of lower, the others of upper.
TESSERA_BF16_TARGET inline __m512i join_bits(short mask, __m512i lower, __m512i upper) {
  constexpr int kChoose = 0xca;  // the second where the first has a bit, else the third
  return _mm512_ternarylogic_epi32(_mm512_set1_epi16(mask), lower, upper, kChoose);
}

/// Integers of kBits bits from bit kAt of each word on, others around, as numbers: kUnit * (2^(7 - kAt) +
/// integer), the bits kFlipped of the integer turned around. They stay where they are, bits of bf16's
/// fraction: an instruction of any unit, where tables are of one.
template <int kBits, int kAt = 7 - kBits, int kUnit = 1, int kFlipped = 0>
TESSERA_BF16_TARGET inline __m512i biased(__m512i words) {
  constexpr int kMask = ((1 << kBits) - 1) << kAt;
  constexpr int kAndThenXor = 0x6a;
  return _mm512_ternarylogic_epi32(
      words, _mm512_set1_epi16(kMask),
      _mm512_set1_epi16(static_cast<short>(bf16_bits(kUnit << (7 - kAt)) ^ kFlipped << kAt)), kAndThenXor);
}

TESSERA_BF16_TARGET inline __m512i join_halves(__m256i lower, __m256i upper) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1);
}
/// 32 bytes twice, by 16-bit lanes, the second time moved by another number of bits.
TESSERA_BF16_TARGET inline __m512i shift_right(__m256i bytes, short first, short second) {
  return _mm512_srlv_epi16(_mm512_broadcast_i64x4(bytes),
                           join_halves(_mm256_set1_epi16(first), _mm256_set1_epi16(second)));
}
TESSERA_BF16_TARGET inline __m512i shift_left(__m256i bytes, short first, short second) {
  return _mm512_sllv_epi16(_mm512_broadcast_i64x4(bytes),
                           join_halves(_mm256_set1_epi16(first), _mm256_set1_epi16(second)));
}
/// 16 bytes at each of four places.
TESSERA_BF16_TARGET inline __m512i load_from_four(const unsigned char* first, int stride) {
  return join_halves(
      _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(first)), load_16(first + stride), 1),
      _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(first + 2 * stride)),
                              load_16(first + 3 * stride), 1));
}

TESSERA_BF16_TARGET inline __m512 half_in_lanes(const unsigned char* p) {
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(word_at(p))));
}

/// The half at the start of each of four blocks, in lanes 0 to 3.
TESSERA_BF16_TARGET inline __m512 four_halves(const unsigned char* first, int stride) {
  __m128i halves = _mm_cvtsi32_si128(word_at(first));
  halves = _mm_insert_epi16(halves, word_at(first + stride), 1);
  halves = _mm_insert_epi16(halves, word_at(first + 2 * stride), 2);
  halves = _mm_insert_epi16(halves, word_at(first + 3 * stride), 3);
  return _mm512_zextps128_ps512(_mm_cvtph_ps(halves));
}

/// How a format's spans are multiplied.
///   kBlocks, kChunks  of a span
///   kWeights          vectors of weights of a chunk; vector i meets x's vector i kStreamVectors / kWeights
///   kSums, sum_of(i)  sums of a chunk, and which of them vector i of weights goes to
///   element(v, l)     the element of a chunk that lane l of x's vector v has
///   steps(span)       the groups' steps and offsets, kStreamSteps lanes
///   offsets(span)     where steps leave no lane for them: these, likewise
///   step_of(c, s, l)  the lane of steps for lane l of sum s of chunk c
///   bias_of(v)        what is added to the weights that meet an element of x's vector v, together, or 0
///   kOffsets          lanes of steps that are a group's offset; 0: none
///   offset_of(g)      the lane that is group g's, of kOffsets groups of 16 or 32
///   kOffsetSign       what an offset is multiplied by, beside the sum of its group's x
///   weights(span, c, out)
template <class Format>
struct StreamFormat {
  static constexpr bool kExists = false;
};

template <class Stream>
inline constexpr bool kHasBias = Stream::bias_of(0) != 0;

/// Whether offsets go into the lanes of the products that they belong to, each beside a part of its group's
/// x. Where x has one sign what they add is as large as the products, and nearly cancels them: in lanes of
/// their own both would grow to a row's end, and round by as much.
template <class Stream>
inline constexpr bool kSpreadsOffsets = Stream::kOffsets != 0 && (Stream::kChunks * Stream::kSums) == 1;

struct StreamOfHalfBytes {
  static constexpr bool kExists = true;
  static constexpr int kWeights = 4, kOffsets = 0;
  static constexpr int bias_of(int) { return 0; }
};

/// Blocks of 32 elements in 16 bytes, four a span: a sum's lanes are four a block. A half in front is the
/// step.
template <class Format>
struct StreamOfSmallBlocks : StreamOfHalfBytes {
  static constexpr int kBlocks = 4, kChunks = 1, kSums = 1;
  static constexpr int sum_of(int) { return 0; }
  static constexpr int element(int vector, int lane) { return element_of_half<16>(vector, lane); }
  static constexpr int step_of(int, int, int lane) { return lane / 4; }
  TESSERA_BF16_TARGET static __m512 steps(const unsigned char* span) {
    return four_halves(span, Format::kBytes);
  }
};

/// 16 + halves of bytes.
TESSERA_BF16_TARGET inline void biased_halves(__m512i bytes, __m512i (&out)[4]) {
  const HalfBytes bits = half_bytes<3>(bytes);
  TESSERA_UNROLL
  for (int v = 0; v < 4; ++v) out[v] = biased<4>(bits.at[v]);
}

template <>
struct StreamFormat<formats::Q4_0> : StreamOfSmallBlocks<formats::Q4_0> {
  static constexpr int bias_of(int) { return 16 + 8; }
  TESSERA_BF16_TARGET static void weights(const unsigned char* span, int, __m512i (&out)[4]) {
    biased_halves(load_from_four(span + 2, formats::Q4_0::kBytes), out);
  }
};

/// Small blocks with a step and an offset in front: steps in even lanes, offsets in odd ones.
template <class Format>
struct StreamWithOffsets : StreamOfSmallBlocks<Format> {
  static constexpr int kOffsets = 4;
  static constexpr float kOffsetSign = 1;
  static constexpr int offset_of(int group) { return 2 * group + 1; }
  static constexpr int step_of(int, int, int lane) { return lane / 4 * 2; }
  TESSERA_BF16_TARGET static __m512 steps(const unsigned char* span) {
    const auto at = [&](int block) { return two_words_at(span + block * Format::kBytes); };
    return _mm512_zextps256_ps512(_mm256_cvtph_ps(_mm_setr_epi32(at(0), at(1), at(2), at(3))));
  }
};

template <>
struct StreamFormat<formats::Q4_1> : StreamWithOffsets<formats::Q4_1> {
  static constexpr int bias_of(int) { return 16; }
  TESSERA_BF16_TARGET static void weights(const unsigned char* span, int, __m512i (&out)[4]) {
    biased_halves(load_from_four(span + 4, formats::Q4_1::kBytes), out);
  }
};

/// 32 + halves of bytes and a fifth bit of each, for four blocks of 32: the lower halves' in the first two of
/// the four bytes in front of a block's halves, the upper ones' in the others.
template <class Format, int kFifthBits>
TESSERA_BF16_TARGET inline void biased_with_fifth_bits(const unsigned char* span, __m512i (&out)[4]) {
  constexpr int kAt = 7 - 5;
  static constexpr Words kLowerHalves = array_of<Words>([](int lane) { return lane / 8 * 2; });
  static constexpr Words kUpperHalves = array_of<Words>([](int lane) { return lane / 8 * 2 + 1; });
  static constexpr Words kEvenBits = array_of<Words>([](int lane) { return 1 << lane % 8 * 2; });
  static constexpr Words kOddBits = array_of<Words>([](int lane) { return 2 << lane % 8 * 2; });
  const auto at = [&](int block) { return two_words_at(span + block * Format::kBytes + kFifthBits); };
  const __m512i fifths = _mm512_zextsi128_si512(_mm_setr_epi32(at(0), at(1), at(2), at(3)));
  const __m512i of_lower = _mm512_permutexvar_epi16(load_array(kLowerHalves), fifths);
  const __m512i of_upper = _mm512_permutexvar_epi16(load_array(kUpperHalves), fifths);
  const __mmask32 has_fifth[4] = {_mm512_test_epi16_mask(of_lower, load_array(kEvenBits)),
                                  _mm512_test_epi16_mask(of_upper, load_array(kEvenBits)),
                                  _mm512_test_epi16_mask(of_lower, load_array(kOddBits)),
                                  _mm512_test_epi16_mask(of_upper, load_array(kOddBits))};
  const HalfBytes bits = half_bytes<kAt>(load_from_four(span + kFifthBits + 4, Format::kBytes));
  TESSERA_UNROLL
  for (int v = 0; v < 4; ++v) {
    const __m512i without = biased<4, kAt>(bits.at[v]);
    out[v] = _mm512_mask_add_epi16(without, has_fifth[v], without, _mm512_set1_epi16(0x10 << kAt));
  }
}

template <>
struct StreamFormat<formats::Q5_0> : StreamOfSmallBlocks<formats::Q5_0> {
  static constexpr int bias_of(int) { return 32 + 16; }
  TESSERA_BF16_TARGET static void weights(const unsigned char* span, int, __m512i (&out)[4]) {
    biased_with_fifth_bits<formats::Q5_0, 2>(span, out);
  }
};

template <>
struct StreamFormat<formats::Q5_1> : StreamWithOffsets<formats::Q5_1> {
  static constexpr int bias_of(int) { return 32; }
  TESSERA_BF16_TARGET static void weights(const unsigned char* span, int, __m512i (&out)[4]) {
    biased_with_fifth_bits<formats::Q5_1, 4>(span, out);
  }
};

/// Halves of bytes through a table.
TESSERA_BF16_TARGET inline void look_up_halves(const Words& table, __m512i bytes, __m512i (&out)[4]) {
  const HalfBytes bits = half_bytes<0>(bytes);
  TESSERA_UNROLL
  for (int v = 0; v < 4; ++v) out[v] = _mm512_permutexvar_epi16(bits.at[v], load_array(table));
}
inline constexpr Words kIq4Bf16 =
    array_of<Words>([](int i) { return bf16_bits(formats::iq4_integer(i % 16)); });
inline constexpr Words kMxfp4Bf16 = array_of<Words>([](int i) { return bf16_bits(mxfp4_integer(i % 16)); });

template <>
struct StreamFormat<formats::IQ4_NL> : StreamOfSmallBlocks<formats::IQ4_NL> {
  TESSERA_BF16_TARGET static void weights(const unsigned char* span, int, __m512i (&out)[4]) {
    look_up_halves(kIq4Bf16, load_from_four(span + 2, formats::IQ4_NL::kBytes), out);
  }
};

template <>
struct StreamFormat<formats::MXFP4> : StreamOfSmallBlocks<formats::MXFP4> {
  TESSERA_BF16_TARGET static __m512 steps(const unsigned char* span) {
    const auto at = [&](int block) {
      return formats::MXFP4::step<float>(span + block * formats::MXFP4::kBytes, 0).step;
    };
    return _mm512_zextps128_ps512(_mm_setr_ps(at(0), at(1), at(2), at(3)));
  }
  TESSERA_BF16_TARGET static void weights(const unsigned char* span, int, __m512i (&out)[4]) {
    look_up_halves(kMxfp4Bf16, load_from_four(span + 1, formats::MXFP4::kBytes), out);
  }
};

/// Bytes as halves too, which meet the same x: 16 + the lower one, and 16 times the signed upper one, which
/// without its sign is 8 more, plus 256.
template <>
struct StreamFormat<formats::Q8_0> {
  static constexpr bool kExists = true;
  static constexpr int kBlocks = 4, kChunks = 1, kWeights = 8, kSums = 2, kOffsets = 0;
  static constexpr int bias_of(int) { return 16 + 256 + 16 * 8; }
  static constexpr int sum_of(int i) { return i / 4; }
  static constexpr int element(int vector, int lane) { return vector / 2 * 64 + 2 * lane + vector % 2; }
  static constexpr int step_of(int, int sum, int lane) { return 2 * sum + lane / 8; }
  TESSERA_BF16_TARGET static __m512 steps(const unsigned char* span) {
    return four_halves(span, formats::Q8_0::kBytes);
  }
  TESSERA_BF16_TARGET static void weights(const unsigned char* span, int, __m512i (&out)[8]) {
    TESSERA_UNROLL
    for (int part = 0; part < 2; ++part) {
      const unsigned char* values = span + 2 * part * formats::Q8_0::kBytes + 2;
      const HalfBytes bits =
          half_bytes<3>(join_halves(load_32(values), load_32(values + formats::Q8_0::kBytes)));
      TESSERA_UNROLL
      for (int v = 0; v < 4; ++v) {
        out[4 * part + v] = v % 2 == 0 ? biased<4>(bits.at[v]) : biased<4, 3, 16, 8>(bits.at[v]);
      }
    }
  }
};

/// Blocks of 256 elements whose lower halves of kRun bytes come before the upper ones: one sum each, as they
/// are of different groups.
template <int kRun>
struct StreamOf256 : StreamOfHalfBytes {
  static constexpr int kBlocks = 1, kChunks = 2, kSums = 2;
  static constexpr int sum_of(int i) { return i % 2; }
  static constexpr int element(int vector, int lane) { return element_of_half<kRun>(vector, lane); }
};

/// biased() of the even bytes and of the odd ones.
template <int kBits, int kAt>
TESSERA_BF16_TARGET inline void biased_bytes(__m512i bytes, __m512i& even, __m512i& odd) {
  even = biased<kBits, kAt>(bytes);
  odd = biased<kBits, kAt>(shift<-8>(bytes));
}

/// Q4_K and Q5_K: steps in lanes 0 to 7, what is subtracted in lanes 8 to 15.
struct StreamOfSixBitSteps : StreamOf256<32> {
  static constexpr int kOffsets = 8;
  static constexpr float kOffsetSign = -1;
  static constexpr int offset_of(int group) { return 8 + group; }
  static constexpr int step_of(int chunk, int sum, int lane) { return 4 * chunk + lane / 8 * 2 + sum; }

  TESSERA_BF16_TARGET static __m512 steps(const unsigned char* block) {
    const __m128i words = load_16(block);
    const __m512 integers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six_bit_steps(words)));
    const __m512 halves = _mm512_zextps128_ps512(_mm_cvtph_ps(words));
    const __m512i which = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    return _mm512_mul_ps(integers, _mm512_permutexvar_ps(which, halves));
  }
};

template <>
struct StreamFormat<formats::Q4_K> : StreamOfSixBitSteps {
  static constexpr int bias_of(int) { return 16; }
  TESSERA_BF16_TARGET static void weights(const unsigned char* block, int chunk, __m512i (&out)[4]) {
    biased_halves(load_64(block + 16 + 64 * chunk), out);
  }
};

template <>
struct StreamFormat<formats::Q5_K> : StreamOfSixBitSteps {
  static constexpr int bias_of(int vector) { return vector % 2 == 0 ? 128 : 64; }
  TESSERA_BF16_TARGET static void weights(const unsigned char* block, int chunk, __m512i (&out)[4]) {
    // Bit g of byte l is that of element l of group g: here bits 4 and 5 of byte l and l + 32 become those of
    // their lower and upper halves.
    const __m256i fifths = load_32(block + 16);
    const __m512i uppers = chunk == 0 ? shift_left(fifths, 4, 2) : shift_right(fifths, 0, 2);
    const __m512i halves = load_64(block + 48 + 64 * chunk);
    biased_bytes<5, 0>(join_bits(0x0f0f, halves, uppers), out[0], out[2]);
    biased_bytes<5, 1>(join_bits(0x1e1e, shift<-3>(halves), uppers), out[1], out[3]);
  }
};

/// Groups of 16, a lane of steps each.
template <>
struct StreamFormat<formats::Q6_K> : StreamOf256<64> {
  static constexpr int bias_of(int) { return 128 + 32; }
  static constexpr int step_of(int chunk, int sum, int lane) { return 8 * chunk + 4 * sum + lane / 4; }

  TESSERA_BF16_TARGET static __m512 steps(const unsigned char* block) {
    const __m512 integers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(block + 192)));
    return _mm512_mul_ps(integers, half_in_lanes(block + 208));
  }
  TESSERA_BF16_TARGET static void weights(const unsigned char* block, int chunk, __m512i (&out)[4]) {
    // Byte l has two bits for the lower halves of bytes l and l + 32, then for their upper halves.
    const __m512i uppers = shift_right(load_32(block + 128 + 32 * chunk), 0, 2);
    const __m512i halves = load_64(block + 64 * chunk);
    biased_bytes<6, 0>(join_bits(0x0f0f, halves, shift<4>(uppers)), out[0], out[2]);
    biased_bytes<6, 0>(join_bits(0x0f0f, shift<-4>(halves), uppers), out[1], out[3]);
  }
};

/// Groups of 16, a lane of steps each. A byte has two bits of four elements 32 apart.
struct StreamOfTwoBits : StreamOfHalfBytes {
  static constexpr int kBlocks = 1, kChunks = 2, kSums = 2;
  static constexpr int sum_of(int i) { return i / 2; }
  static constexpr int element(int vector, int lane) { return vector / 2 * 64 + 2 * lane + vector % 2; }
  static constexpr int step_of(int chunk, int sum, int lane) { return 8 * chunk + 4 * sum + lane / 4; }

  /// 64 bytes: the lowest two bits of byte b are element b's of a chunk, bits 4 and 5 element b + 64's.
  TESSERA_BF16_TARGET static __m512i two_bits(const unsigned char* bytes) {
    return shift_right(load_32(bytes), 0, 2);
  }
};

template <>
struct StreamFormat<formats::Q3_K> : StreamOfTwoBits {
  static constexpr int bias_of(int) { return 8 + 4; }

  TESSERA_BF16_TARGET static __m512 steps(const unsigned char* block) {
    const __m512 integers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q3_k_steps(block)));
    return _mm512_mul_ps(integers, half_in_lanes(block + 108));
  }
  TESSERA_BF16_TARGET static void weights(const unsigned char* block, int chunk, __m512i (&out)[4]) {
    // Bit g of byte l is the third of element l of group g of 32: here bits 2 and 6 of a byte.
    const __m512i twos = two_bits(block + 32 + 32 * chunk);
    const __m256i thirds = load_32(block);
    const __m512i of_first = chunk == 0 ? shift_left(thirds, 2, 1) : shift_right(thirds, 2, 3);
    const __m512i of_second = chunk == 0 ? shift_left(thirds, 4, 3) : shift_right(thirds, 0, 1);
    const __m512i first = join_bits(0x0303, twos, of_first);
    out[0] = biased<3>(shift<4>(first));
    out[1] = biased<3>(shift<-4>(first));
    biased_bytes<3, 4>(join_bits(0x3030, twos, of_second), out[2], out[3]);
  }
};

/// Steps and offsets of four bits.
template <>
struct StreamFormat<formats::Q2_K> : StreamOfTwoBits {
  static constexpr int kOffsets = 16;
  static constexpr int bias_of(int vector) { return vector < 2 ? 4 : 8; }
  static constexpr float kOffsetSign = -1;
  static constexpr int offset_of(int group) { return group; }

  TESSERA_BF16_TARGET static __m512 steps(const unsigned char* block) {
    const __m128i integers = _mm_and_si128(load_16(block), _mm_set1_epi8(0xf));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(integers)), half_in_lanes(block + 80));
  }
  TESSERA_BF16_TARGET static __m512 offsets(const unsigned char* block) {
    const __m512i integers = _mm512_srli_epi32(_mm512_cvtepu8_epi32(load_16(block)), 4);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(integers), half_in_lanes(block + 82));
  }
  TESSERA_BF16_TARGET static void weights(const unsigned char* block, int chunk, __m512i (&out)[4]) {
    const __m512i twos = two_bits(block + 16 + 32 * chunk);
    out[0] = biased<2>(shift<5>(twos));
    out[1] = biased<2>(shift<-3>(twos));
    biased_bytes<2, 4>(twos, out[2], out[3]);
  }
};

template <>
struct StreamFormat<formats::IQ4_XS> : StreamOf256<16> {
  static constexpr int kSums = 1;  // both halves of 16 bytes are of a group
  static constexpr int sum_of(int) { return 0; }
  static constexpr int step_of(int chunk, int, int lane) { return 4 * chunk + lane / 4; }

  TESSERA_BF16_TARGET static __m512 steps(const unsigned char* block) {
    const __m256 integers = _mm256_cvtepi32_ps(iq4_xs_steps(block));
    return _mm512_mul_ps(_mm512_zextps256_ps512(integers), half_in_lanes(block));
  }
  TESSERA_BF16_TARGET static void weights(const unsigned char* block, int chunk, __m512i (&out)[4]) {
    look_up_halves(kIq4Bf16, load_64(block + 8 + 64 * chunk), out);
  }
};

}  // namespace tessera::cpu

#endif
