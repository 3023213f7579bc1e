// Blocks of the formats that have codebooks as integers, 32 elements at a time, and their steps. Included
// once a SIMD target.

#if defined(TESSERA_CPU_OPS_CODEBOOKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_OPS_CODEBOOKS_INL_H_
#undef TESSERA_CPU_OPS_CODEBOOKS_INL_H_
#else
#define TESSERA_CPU_OPS_CODEBOOKS_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backends/cpu/ops/vector_types-inl.h"
#include "core/block_format.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// What of a block is where (core/formats/codebooks.h): the number of point i of 32 elements, from 32 group
/// on; these elements' signs, or of IQ1 whether their eighth is less; the steps of eight groups, a byte each,
/// to be multiplied by half() / kStepParts. And what a point's integers are.
template <class Format>
struct Codebook;

/// The signs of 32 elements: seven in each byte, whose eighth bit is 0, and those that make their numbers
/// even.
HWY_INLINE std::uint32_t with_eighth_signs(std::uint32_t sevens) {
  std::uint32_t folded = sevens ^ sevens >> 4;  // the lowest bits of each byte, others from its neighbour
  folded ^= folded >> 2;
  folded ^= folded >> 1;
  return sevens | (folded & 0x01010101u) << 7;
}
/// The same from 28 bits.
HWY_INLINE std::uint32_t signs_of_28_bits(std::uint32_t bits) {
  return with_eighth_signs((bits & 0x7fu) | (bits & 0x3f80u) << 1 | (bits & 0x1fc000u) << 2 |
                           (bits & 0xfe00000u) << 3);
}
HWY_INLINE std::uint32_t load_32_bits(const unsigned char* p) {
  std::uint32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}

/// 2 n + 1 for eight numbers n, a byte each.
HWY_INLINE formats::Eight odd_steps(formats::Eight numbers) { return 2 * numbers + formats::eight_of(1); }
/// The same for numbers of four bits.
HWY_INLINE formats::Eight steps_of_nibbles(const unsigned char* p) {
  formats::Eight x = load_32_bits(p);
  x = (x | x << 16) & 0x0000ffff0000ffffu;
  x = (x | x << 8) & 0x00ff00ff00ff00ffu;
  return odd_steps((x | x << 4) & formats::eight_of(0xf));
}

struct OfEighths {
  static constexpr int kStepParts = 8;
  static constexpr int kPointElements = 8;
  static constexpr bool kHasSigns = true;
  static float half(const unsigned char* block) { return formats::load_half(block); }
};

struct OfIQ1 : OfEighths {
  static constexpr int kPoints = 2048;
  static constexpr bool kHasSigns = false;
  static constexpr std::uint64_t integers(unsigned n) {
    return formats::iq1_integers(formats::iq1_point(n), false);
  }
};

template <>
struct Codebook<formats::IQ1_S> : OfIQ1 {
  static unsigned word(const unsigned char* block, int group) {
    return formats::load_u16(block + 34 + 2 * group);
  }
  static unsigned point(const unsigned char* block, int group, int i) {
    return block[2 + 4 * group + i] | (word(block, group) >> (3 * i) & 7) << 8;
  }
  static std::uint32_t signs(const unsigned char* block, int group) {
    return 0u - (word(block, group) >> 15);
  }
  static formats::Eight steps(const unsigned char* block, int) {
    formats::Eight numbers = 0;
    for (int g = 0; g < 8; ++g) numbers |= static_cast<formats::Eight>(word(block, g) >> 12 & 7) << (8 * g);
    return odd_steps(numbers);
  }
};

template <>
struct Codebook<formats::IQ1_M> : OfIQ1 {
  /// Four bits of each point of 32 elements.
  static unsigned nibbles(const unsigned char* block, int group) {
    return formats::load_u16(block + 32 + 2 * group);
  }
  static float half(const unsigned char* block) {
    unsigned bits = 0;
    for (int i = 0; i < 4; ++i) bits |= formats::load_u16(block + 48 + 2 * i) >> 12 << (4 * i);
    return formats::float_of_half(static_cast<std::uint16_t>(bits));
  }
  static unsigned point(const unsigned char* block, int group, int i) {
    return block[4 * group + i] | (nibbles(block, group) >> (4 * i) & 7) << 8;
  }
  static std::uint32_t signs(const unsigned char* block, int group) {
    std::uint32_t tops = nibbles(block, group) >> 3 & 0x1111u;
    tops = (tops | tops << 8) & 0x00110011u;
    return ((tops | tops << 4) & 0x01010101u) * 0xff;
  }
  static formats::Eight steps(const unsigned char* block, int eight) {
    const unsigned char* words = block + 48 + 4 * eight;
    return odd_steps(formats::spread_3_bits((formats::load_u16(words) & 0xfff) |
                                            (formats::load_u16(words + 2) & 0xfff) << 12));
  }
};

template <>
struct Codebook<formats::IQ2_XXS> : OfEighths {
  static constexpr int kPoints = 256;
  static constexpr std::uint64_t integers(unsigned n) {
    return formats::iq2_integers(formats::iq2_xxs_point(n), 0);
  }
  static unsigned point(const unsigned char* block, int group, int i) { return block[2 + 8 * group + i]; }
  static std::uint32_t signs(const unsigned char* block, int group) {
    return signs_of_28_bits(load_32_bits(block + 6 + 8 * group));
  }
  static formats::Eight steps(const unsigned char* block, int) {
    formats::Eight numbers = 0;
    for (int g = 0; g < 8; ++g) numbers |= static_cast<formats::Eight>(block[9 + 8 * g] >> 4) << (8 * g);
    return odd_steps(numbers);
  }
};

template <>
struct Codebook<formats::IQ2_XS> : OfEighths {
  static constexpr int kPoints = 512;
  static constexpr std::uint64_t integers(unsigned n) {
    return formats::iq2_integers(formats::iq2_xs_point(n), 0);
  }
  static unsigned point(const unsigned char* block, int group, int i) {
    return formats::load_u16(block + 2 + 8 * group + 2 * i) & 511;
  }
  static std::uint32_t signs(const unsigned char* block, int group) {
    const std::uint32_t first = load_32_bits(block + 2 + 8 * group) >> 9 & 0x007f007fu;
    const std::uint32_t second = load_32_bits(block + 6 + 8 * group) >> 9 & 0x007f007fu;
    return with_eighth_signs(((first | first >> 8) & 0xffffu) | (second | second >> 8) << 16);
  }
  static formats::Eight steps(const unsigned char* block, int eight) {
    return steps_of_nibbles(block + 66 + 4 * eight);
  }
};

template <>
struct Codebook<formats::IQ2_S> : OfEighths {
  static constexpr int kPoints = 1024;
  static constexpr std::uint64_t integers(unsigned n) {
    return formats::iq2_integers(formats::iq2_s_point(n), 0);
  }
  static unsigned point(const unsigned char* block, int group, int i) {
    return block[2 + 4 * group + i] | (static_cast<unsigned>(block[66 + group]) >> (2 * i) & 3) << 8;
  }
  static std::uint32_t signs(const unsigned char* block, int group) {
    return load_32_bits(block + 34 + 4 * group);
  }
  static formats::Eight steps(const unsigned char* block, int eight) {
    return steps_of_nibbles(block + 74 + 4 * eight);
  }
};

template <>
struct Codebook<formats::IQ3_XXS> : OfEighths {
  static constexpr int kStepParts = 4;
  static constexpr int kPointElements = 4;
  static constexpr int kPoints = 256;
  static constexpr std::uint64_t integers(unsigned n) {
    return formats::iq3_xxs_integers(formats::iq3_xxs_point(n), 0);
  }
  static unsigned point(const unsigned char* block, int group, int i) { return block[2 + 8 * group + i]; }
  static std::uint32_t signs(const unsigned char* block, int group) {
    return signs_of_28_bits(load_32_bits(block + 66 + 4 * group));
  }
  static formats::Eight steps(const unsigned char* block, int) {
    formats::Eight numbers = 0;
    for (int g = 0; g < 8; ++g) numbers |= static_cast<formats::Eight>(block[69 + 4 * g] >> 4) << (8 * g);
    return odd_steps(numbers);
  }
};

template <>
struct Codebook<formats::IQ3_S> : OfEighths {
  static constexpr int kStepParts = 1;
  static constexpr int kPointElements = 4;
  static constexpr int kPoints = 512;
  static constexpr std::uint64_t integers(unsigned n) {
    return formats::iq3_s_integers(formats::iq3_s_point(n), 0);
  }
  static unsigned point(const unsigned char* block, int group, int i) {
    return block[2 + 8 * group + i] | (static_cast<unsigned>(block[66 + group]) >> i & 1) << 8;
  }
  static std::uint32_t signs(const unsigned char* block, int group) {
    return load_32_bits(block + 74 + 4 * group);
  }
  static formats::Eight steps(const unsigned char* block, int) { return steps_of_nibbles(block + 106); }
};

/// The integers of each point of a format's table, without signs; IQ1's with the larger eighth.
template <class Format>
struct PointIntegers {
  using Point = std::conditional_t<Codebook<Format>::kPointElements == 8, std::uint64_t, std::uint32_t>;
  std::array<Point, Codebook<Format>::kPoints> points = {};

  constexpr PointIntegers() {
    for (unsigned n = 0; n < points.size(); ++n)
      points[n] = static_cast<Point>(Codebook<Format>::integers(n));
  }
};

#if HWY_TARGET != HWY_SCALAR
/// The integers of a vector's points from number `first` on. Where memory took them one by one, a vector
/// would wait for all to be written.
template <class Format, class D>
HWY_INLINE hn::Vec<D> look_up(D d, const unsigned char* block, int group, int first) {
  static constexpr PointIntegers<Format> kTable;
  using Point = typename PointIntegers<Format>::Point;
  const auto at = [&](int i) {
    return static_cast<std::make_signed_t<Point>>(
        kTable.points[Codebook<Format>::point(block, group, first + i)]);
  };
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  static_assert(hn::MaxLanes(D()) == 32);
  if constexpr (sizeof(Point) == 8) {
    return hn::Vec<D>{_mm256_setr_epi64x(at(0), at(1), at(2), at(3))};
  } else {
    return hn::Vec<D>{_mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))};
  }
#else
  alignas(32) std::make_signed_t<Point> points[hn::MaxLanes(D()) / sizeof(Point)];
  for (int i = 0; i < static_cast<int>(hn::MaxLanes(d) / sizeof(Point)); ++i) points[i] = at(i);
  return hn::Load(d, reinterpret_cast<const std::uint8_t*>(points));
#endif
}

template <class Format>
HWY_INLINE void unpack_codebook(const unsigned char* block, std::int8_t* out) {
  using Book = Codebook<Format>;
  const hn::CappedTag<std::uint8_t, 32> d;
  const hn::Repartition<std::uint64_t, decltype(d)> d64;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  // Which of four bytes, and which of its bits, an integer's sign is.
  alignas(32) static constexpr std::uint8_t kByte[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                                         2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
  const auto bits = hn::BitCast(d, hn::Set(d64, 0x8040201008040201u));
  for (int group = 0; group < Format::kElements / 32; ++group, out += 32) {
    const auto all_signs = hn::BitCast(d, hn::Set(d32, Book::signs(block, group)));
    for (std::size_t l = 0; l < 32; l += hn::Lanes(d)) {
      const auto integers = look_up<Format>(d, block, group, static_cast<int>(l) / Book::kPointElements);
      const auto is_set =
          hn::Eq(hn::And(hn::TableLookupBytes(all_signs, hn::Load(d, kByte + l)), bits), bits);
      const auto result = Book::kHasSigns
                              ? hn::IfThenElse(is_set, hn::Sub(hn::Zero(d), integers), integers)
                              : hn::Sub(integers, hn::IfThenElseZero(is_set, hn::Set(d, std::uint8_t{2})));
      hn::StoreU(result, d, reinterpret_cast<std::uint8_t*>(out) + l);
    }
  }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#endif
