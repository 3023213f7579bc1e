#pragma once

// Blocks of IQ1 to IQ3 as vectors of bf16 (stream_formats.h): the bits of 64 elements' points are looked up
// and become a vector of bytes around 64, whose signs a mask turns around; even bytes and odd ones then
// become bf16 where they lie.

#include "backends/cpu/ops/stream_formats.h"

#if defined(__x86_64__)

#include <cstddef>
#include <type_traits>

#define TESSERA_STREAM_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,gfni,avx512bf16,f16c")))

namespace tessera::cpu {

using Bytes16 = std::array<std::uint8_t, 16>;
using Bytes32 = std::array<std::uint8_t, 32>;
using Bytes64 = std::array<std::uint8_t, 64>;

TESSERA_STREAM_TARGET inline __m128i load_array(const Bytes16& values) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(values.data()));
}
TESSERA_STREAM_TARGET inline __m256i load_array(const Bytes32& values) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values.data()));
}
inline long long eight_bytes_at(const unsigned char* p) {
  long long bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return bytes;
}

/// Seven signs a byte, whatever its eighth bit, and the eighth sign, which makes their number even.
TESSERA_STREAM_TARGET inline __m128i with_eighth_signs(__m128i sevens) {
  constexpr long long kParityAbove = 0x010204081020407f;  // rows of a matrix, that of the highest bit lowest
  return _mm_gf2p8affine_epi64_epi8(sevens, _mm_set1_epi64x(kParityAbove), 0);
}

/// 32 bytes as words, with the bits `mask` of upper.
TESSERA_STREAM_TARGET inline __m512i join_upper(__m256i bytes, __m512i upper, short mask) {
  constexpr int kAndThenOr = 0xea;
  return _mm512_ternarylogic_epi32(upper, _mm512_set1_epi16(mask), _mm512_cvtepu8_epi16(bytes), kAndThenOr);
}

/// unit * (2 * integer + 1)
TESSERA_STREAM_TARGET inline __m512 odd_steps(__m512i integers, __m512 unit) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), _mm512_add_ps(unit, unit), unit);
}
/// 16 halves of bytes, each byte's lower one first.
TESSERA_STREAM_TARGET inline __m512i nibbles_in_lanes(long long bytes) {
  const __m128i words = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(bytes));
  const __m128i halves = _mm_and_si128(_mm_or_si128(words, _mm_slli_epi16(words, 4)), _mm_set1_epi16(0x0f0f));
  return _mm512_cvtepu8_epi32(halves);
}
TESSERA_STREAM_TARGET inline __m512 eighth_of_half(const unsigned char* p) {
  return _mm512_mul_ps(half_in_lanes(p), _mm512_set1_ps(0.125f));
}

/// Word idx of a table of kSize in each word, modulo kSize.
template <int kSize>
TESSERA_STREAM_TARGET inline __m512i look_up_words(const std::uint16_t* table, __m512i idx) {
  constexpr int kHalf = kSize / 2;
  if constexpr (kHalf == kStreamLanes) {
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(table), idx, _mm512_loadu_si512(table + kHalf));
  } else {
    return _mm512_mask_blend_epi16(_mm512_test_epi16_mask(idx, _mm512_set1_epi16(kHalf)),
                                   look_up_words<kHalf>(table, idx),
                                   look_up_words<kHalf>(table + kHalf, idx));
  }
}

/// What StreamFormat says of a format with a codebook, but for
///   kPoints, places(n)      a point of the codebook: kPlaceBits bits for each element
///   integer(place)          what they stand for, without sign; IQ1's is the larger eighth
///   points(block, chunk)    their points' numbers, 32 words: a block's, or, with points of four, a chunk's
///   signs(block, chunk)     a bit for each element; of IQ1 whether the eighth is less
///   steps(block)
/// Integers of kAt less than seven bits are multiples of kUnit and stand kAt bits from a byte's end.
template <class Format, int kAt, int kUnit = 1, int kPointElements = 8, bool kHasSigns = true>
struct StreamOfCodebook {
  static constexpr bool kExists = true;
  static constexpr int kBlocks = 1, kChunks = 2, kWeights = 4, kSums = 2, kOffsets = 0;
  static constexpr int kBias = 64;  // of bytes
  static constexpr int kMostPointsInRegisters = 512;
  static constexpr int kPlaceBits = kPointElements == 8 ? 2 : 3;
  static constexpr int bias_of(int) { return kUnit * ((1 << (7 - kAt)) + (kBias >> kAt)); }
  static constexpr int sum_of(int i) { return i / 2; }
  static constexpr int element(int vector, int lane) { return vector / 2 * 64 + 2 * lane + vector % 2; }
  static constexpr int step_of(int chunk, int sum, int lane) {
    return (128 * chunk + 64 * sum + 4 * lane) / Format::kGroup;
  }

  static constexpr int byte_of(int place) {
    return kBias + (StreamFormat<Format>::integer(place % (1 << kPlaceBits)) << kAt) / kUnit;
  }

  /// The bytes of 64 elements, from word 64 / kPointElements * part of points on, where places can be looked
  /// up in registers: their bits then become bytes.
  TESSERA_STREAM_TARGET static __m512i bytes_of(__m512i points, int part) {
    using Stream = StreamFormat<Format>;
    static constexpr auto kPlaces =
        array_of<std::array<std::uint16_t, Stream::kPoints>>([](int n) { return Stream::places(n); });
    // Each point in front of the bytes that it becomes, whatever follows.
    constexpr int kEach = kPointElements / 2;
    static constexpr auto kSpread = [] {
      std::array<Words, kPointElements / 2> spread{};
      for (int i = 0; i < kPointElements / 2; ++i) {
        spread[static_cast<std::size_t>(i)] =
            array_of<Words>([i](int word) { return 64 / kPointElements * i + word / kEach; });
      }
      return spread;
    }();
    static constexpr Bytes64 kFrom = array_of<Bytes64>([](int byte) {
      return byte / kPointElements * 8 * kPointElements % 64 + byte % kPointElements * kPlaceBits;
    });
    static constexpr Bytes64 kBytes = array_of<Bytes64>([](int place) { return byte_of(place); });
    const __m512i places = look_up_words<Stream::kPoints>(kPlaces.data(), points);
    const __m512i spread =
        _mm512_permutexvar_epi16(load_array(kSpread[static_cast<std::size_t>(part)]), places);
    return _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(load_array(kFrom), spread),
                                   load_array(kBytes));
  }

  /// The same by a load for each point, of eight bytes.
  TESSERA_STREAM_TARGET static __m512i loaded_bytes_of(__m512i points, int part) {
    using Stream = StreamFormat<Format>;
    static constexpr auto kTable = array_of<std::array<long long, Stream::kPoints>>([](int n) {
      long long bytes = 0;
      for (int j = 0; j < 8; ++j)
        bytes |= static_cast<long long>(byte_of(static_cast<int>(Stream::places(n) >> (2 * j)))) << (8 * j);
      return bytes;
    });
    __m128i eight = _mm512_castsi512_si128(points);
    if (part == 1) eight = _mm512_extracti32x4_epi32(points, 1);
    if (part == 2) eight = _mm512_extracti32x4_epi32(points, 2);
    if (part == 3) eight = _mm512_extracti32x4_epi32(points, 3);
    return _mm512_setr_epi64(kTable[_mm_extract_epi16(eight, 0)], kTable[_mm_extract_epi16(eight, 1)],
                             kTable[_mm_extract_epi16(eight, 2)], kTable[_mm_extract_epi16(eight, 3)],
                             kTable[_mm_extract_epi16(eight, 4)], kTable[_mm_extract_epi16(eight, 5)],
                             kTable[_mm_extract_epi16(eight, 6)], kTable[_mm_extract_epi16(eight, 7)]);
  }

  TESSERA_STREAM_TARGET static void weights(const unsigned char* block, int chunk, __m512i (&out)[4]) {
    const __m512i points = StreamFormat<Format>::points(block, chunk);
    const __m128i all_signs = StreamFormat<Format>::signs(block, chunk);
    const long long signs[2] = {_mm_cvtsi128_si64(all_signs), _mm_extract_epi64(all_signs, 1)};
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int part = kPointElements == 8 ? 2 * chunk + half : half;
      __m512i magnitudes;
      if constexpr (StreamFormat<Format>::kPoints > kMostPointsInRegisters) {
        magnitudes = loaded_bytes_of(points, part);
      } else {
        magnitudes = bytes_of(points, part);
      }
      const __mmask64 mask = static_cast<__mmask64>(signs[half]);
      const __m512i bytes =
          kHasSigns ? _mm512_mask_sub_epi8(magnitudes, mask, _mm512_set1_epi8(static_cast<char>(2 * kBias)),
                                           magnitudes)
                    : _mm512_mask_sub_epi8(magnitudes, mask, magnitudes, _mm512_set1_epi8(2 << kAt));
      out[2 * half] = biased<7 - kAt, kAt, kUnit>(bytes);
      out[2 * half + 1] = biased<7 - kAt, kAt, kUnit>(shift<-8>(bytes));
    }
  }
};

struct StreamOfIQ1 {
  static constexpr int kPoints = 2048;
  static constexpr unsigned places(int n) { return formats::iq1_point(static_cast<unsigned>(n)); }
  static constexpr int integer(int place) {
    return static_cast<signed char>(formats::iq1_integers(static_cast<unsigned>(place), false) & 0xff);
  }
};

template <>
struct StreamFormat<formats::IQ1_S> : StreamOfCodebook<formats::IQ1_S, 2, 1, 8, false>, StreamOfIQ1 {
  TESSERA_STREAM_TARGET static __m512i points(const unsigned char* block, int) {
    // Three bits of each point in words of four.
    static constexpr Bytes64 kUppers =
        array_of<Bytes64>([](int byte) { return byte / 8 * 16 % 64 + byte % 8 / 2 * 3; });
    const __m512i words = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1),
                                                   _mm512_castsi128_si512(load_16(block + 34)));
    const __m512i upper = _mm512_multishift_epi64_epi8(load_array(kUppers), words);
    return join_upper(load_32(block + 2), upper, 0x0700);
  }
  TESSERA_STREAM_TARGET static __m128i signs(const unsigned char* block, int chunk) {
    static constexpr Bytes16 kTops = array_of<Bytes16>([](int byte) { return byte / 4 * 2 + 1; });
    const __m128i words = _mm_cvtsi64_si128(eight_bytes_at(block + 34 + 8 * chunk));
    return _mm_cmpgt_epi8(_mm_setzero_si128(), _mm_shuffle_epi8(words, load_array(kTops)));
  }
  TESSERA_STREAM_TARGET static __m512 steps(const unsigned char* block) {
    const __m256i words = _mm256_cvtepu16_epi32(load_16(block + 34));
    const __m256i integers = _mm256_and_si256(_mm256_srli_epi32(words, 12), _mm256_set1_epi32(7));
    return odd_steps(_mm512_zextsi256_si512(integers), eighth_of_half(block));
  }
};

template <>
struct StreamFormat<formats::IQ1_M> : StreamOfCodebook<formats::IQ1_M, 2, 1, 8, false>, StreamOfIQ1 {
  /// Four bits of each eight elements as the upper bytes of words, others around.
  TESSERA_STREAM_TARGET static __m512i nibbles(const unsigned char* block) {
    static constexpr Bytes64 kFrom = array_of<Bytes64>([](int byte) { return byte / 2 * 4 % 64; });
    const __m512i words = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1),
                                                   _mm512_castsi128_si512(load_16(block + 32)));
    return _mm512_multishift_epi64_epi8(load_array(kFrom), words);
  }
  TESSERA_STREAM_TARGET static __m512i points(const unsigned char* block, int) {
    return join_upper(load_32(block), nibbles(block), 0x0700);
  }
  TESSERA_STREAM_TARGET static __m128i signs(const unsigned char* block, int chunk) {
    const __mmask32 is_less = _mm512_test_epi16_mask(nibbles(block), _mm512_set1_epi16(0x0800));
    return _mm_movm_epi8(static_cast<__mmask16>(is_less >> (16 * chunk)));
  }
  TESSERA_STREAM_TARGET static __m512 steps(const unsigned char* block) {
    const __m128i words = _mm_set1_epi64x(eight_bytes_at(block + 48));
    static constexpr Bytes16 kFrom = array_of<Bytes16>([](int i) { return i / 4 * 16 + i % 4 * 3; });
    const __m128i integers =
        _mm_and_si128(_mm_multishift_epi64_epi8(load_array(kFrom), words), _mm_set1_epi8(7));
    // Four bits of the half at the top of each word.
    const unsigned half = word_at(block + 48) >> 12 | word_at(block + 50) >> 12 << 4 |
                          word_at(block + 52) >> 12 << 8 | word_at(block + 54) >> 12 << 12;
    const __m512 unit = _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(half)));
    return odd_steps(_mm512_cvtepu8_epi32(integers), _mm512_mul_ps(unit, _mm512_set1_ps(0.125f)));
  }
};

template <>
struct StreamFormat<formats::IQ2_XXS> : StreamOfCodebook<formats::IQ2_XXS, 0> {
  static constexpr int kPoints = 256;
  static constexpr unsigned places(int n) { return formats::iq2_xxs_point(static_cast<unsigned>(n)); }
  static constexpr int integer(int place) {
    return static_cast<int>(formats::iq2_integers(static_cast<unsigned>(place), 0) & 0xff);
  }
  // Four points and a word for each 32 elements.
  TESSERA_STREAM_TARGET static __m512i points(const unsigned char* block, int) {
    return _mm512_cvtepu8_epi16(_mm512_cvtepi64_epi32(_mm512_loadu_si512(block + 2)));
  }
  TESSERA_STREAM_TARGET static __m128i signs(const unsigned char* block, int chunk) {
    static constexpr Bytes32 kSevens = array_of<Bytes32>([](int byte) { return 32 + byte % 4 * 7; });
    const __m256i sevens = _mm256_multishift_epi64_epi8(load_array(kSevens), load_32(block + 2 + 32 * chunk));
    return with_eighth_signs(_mm256_cvtepi64_epi32(sevens));
  }
  TESSERA_STREAM_TARGET static __m512 steps(const unsigned char* block) {
    const __m512i groups = _mm512_srli_epi64(_mm512_loadu_si512(block + 2), 60);
    return odd_steps(_mm512_zextsi256_si512(_mm512_cvtepi64_epi32(groups)), eighth_of_half(block));
  }
};

template <>
struct StreamFormat<formats::IQ2_XS> : StreamOfCodebook<formats::IQ2_XS, 0> {
  static constexpr int kPoints = 512;
  static constexpr unsigned places(int n) { return formats::iq2_xs_point(static_cast<unsigned>(n)); }
  static constexpr int integer(int place) {
    return static_cast<int>(formats::iq2_integers(static_cast<unsigned>(place), 0) & 0xff);
  }
  // Nine bits of a point and seven signs for each eight elements.
  TESSERA_STREAM_TARGET static __m512i points(const unsigned char* block, int) {
    return _mm512_loadu_si512(block + 2);
  }
  TESSERA_STREAM_TARGET static __m128i signs(const unsigned char* block, int chunk) {
    const __m256i words = _mm256_srli_epi16(load_32(block + 2 + 32 * chunk), 9);
    return with_eighth_signs(_mm256_cvtepi16_epi8(words));
  }
  TESSERA_STREAM_TARGET static __m512 steps(const unsigned char* block) {
    return odd_steps(nibbles_in_lanes(eight_bytes_at(block + 66)), eighth_of_half(block));
  }
};

template <>
struct StreamFormat<formats::IQ2_S> : StreamOfCodebook<formats::IQ2_S, 0> {
  static constexpr int kPoints = 1024;
  static constexpr unsigned places(int n) { return formats::iq2_s_point(static_cast<unsigned>(n)); }
  static constexpr int integer(int place) {
    return static_cast<int>(formats::iq2_integers(static_cast<unsigned>(place), 0) & 0xff);
  }
  TESSERA_STREAM_TARGET static __m512i points(const unsigned char* block, int) {
    static constexpr Bytes64 kUppers = array_of<Bytes64>([](int byte) { return byte / 2 * 2; });
    const __m512i bits = _mm512_set1_epi64(eight_bytes_at(block + 66));
    return join_upper(load_32(block + 2), _mm512_multishift_epi64_epi8(load_array(kUppers), bits), 0x0300);
  }
  TESSERA_STREAM_TARGET static __m128i signs(const unsigned char* block, int chunk) {
    return load_16(block + 34 + 16 * chunk);
  }
  TESSERA_STREAM_TARGET static __m512 steps(const unsigned char* block) {
    return odd_steps(nibbles_in_lanes(eight_bytes_at(block + 74)), eighth_of_half(block));
  }
};

template <>
struct StreamFormat<formats::IQ3_XXS> : StreamOfCodebook<formats::IQ3_XXS, 1, 2, 4> {
  static constexpr int kPoints = 256;
  static constexpr unsigned places(int n) { return formats::iq3_xxs_point(static_cast<unsigned>(n)); }
  static constexpr int integer(int place) {
    return static_cast<int>(formats::iq3_xxs_integers(static_cast<unsigned>(place), 0) & 0xff);
  }
  TESSERA_STREAM_TARGET static __m512i points(const unsigned char* block, int chunk) {
    return _mm512_cvtepu8_epi16(load_32(block + 2 + 32 * chunk));
  }
  TESSERA_STREAM_TARGET static __m128i signs(const unsigned char* block, int chunk) {
    static constexpr Bytes16 kSevens =
        array_of<Bytes16>([](int byte) { return byte / 4 * 32 % 64 + byte % 4 * 7; });
    return with_eighth_signs(
        _mm_multishift_epi64_epi8(load_array(kSevens), load_16(block + 66 + 16 * chunk)));
  }
  TESSERA_STREAM_TARGET static __m512 steps(const unsigned char* block) {
    const __m256i integers = _mm256_srli_epi32(load_32(block + 66), 28);
    const __m512 unit = _mm512_mul_ps(half_in_lanes(block), _mm512_set1_ps(0.25f));
    return odd_steps(_mm512_zextsi256_si512(integers), unit);
  }
};

template <>
struct StreamFormat<formats::IQ3_S> : StreamOfCodebook<formats::IQ3_S, 2, 1, 4> {
  static constexpr int kPoints = 512;
  static constexpr unsigned places(int n) { return formats::iq3_s_point(static_cast<unsigned>(n)); }
  static constexpr int integer(int place) {
    return static_cast<int>(formats::iq3_s_integers(static_cast<unsigned>(place), 0) & 0xff);
  }
  TESSERA_STREAM_TARGET static __m512i points(const unsigned char* block, int chunk) {
    const __m512i lower = _mm512_cvtepu8_epi16(load_32(block + 2 + 32 * chunk));
    const auto has_ninth = static_cast<__mmask32>(two_words_at(block + 66 + 4 * chunk));
    return _mm512_mask_add_epi16(lower, has_ninth, lower, _mm512_set1_epi16(0x100));
  }
  TESSERA_STREAM_TARGET static __m128i signs(const unsigned char* block, int chunk) {
    return load_16(block + 74 + 16 * chunk);
  }
  TESSERA_STREAM_TARGET static __m512 steps(const unsigned char* block) {
    return odd_steps(nibbles_in_lanes(static_cast<unsigned>(two_words_at(block + 106))),
                     half_in_lanes(block));
  }
};

}  // namespace tessera::cpu

#endif
