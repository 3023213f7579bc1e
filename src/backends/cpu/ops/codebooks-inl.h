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

/// What of a block is where (core/formats/codebooks.h): the number of its point i; the signs of eight
/// elements from 8 part on, or of IQ1 whether their eighth is less; a group's step, half() times step() over
/// kStepParts. And what a point's integers are.
template <class Format>
struct Codebook;

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
  static unsigned point(const unsigned char* block, int i) {
    return block[2 + i] | (word(block, i / 4) >> (i % 4 * 3) & 7) << 8;
  }
  static unsigned signs(const unsigned char* block, int part) { return word(block, part / 4) >> 15; }
  static unsigned step(const unsigned char* block, int group) {
    return 2 * (word(block, group) >> 12 & 7) + 1;
  }
};

template <>
struct Codebook<formats::IQ1_M> : OfIQ1 {
  static unsigned nibble(const unsigned char* block, int i) {
    return static_cast<unsigned>(formats::nibble_at(block + 32, i));
  }
  static float half(const unsigned char* block) {
    unsigned bits = 0;
    for (int i = 0; i < 4; ++i) bits |= formats::load_u16(block + 48 + 2 * i) >> 12 << (4 * i);
    return formats::float_of_half(static_cast<std::uint16_t>(bits));
  }
  static unsigned point(const unsigned char* block, int i) { return block[i] | (nibble(block, i) & 7) << 8; }
  static unsigned signs(const unsigned char* block, int part) { return nibble(block, part) >> 3; }
  static unsigned step(const unsigned char* block, int group) {
    return 2 * (formats::load_u16(block + 48 + group / 4 * 2) >> (group % 4 * 3) & 7) + 1;
  }
};

template <>
struct Codebook<formats::IQ2_XXS> : OfEighths {
  static constexpr int kPoints = 256;
  static constexpr std::uint64_t integers(unsigned n) {
    return formats::iq2_integers(formats::iq2_xxs_point(n), 0);
  }
  static unsigned point(const unsigned char* block, int i) { return block[2 + i / 4 * 8 + i % 4]; }
  static unsigned signs(const unsigned char* block, int part) {
    return formats::even_signs(formats::load_u32(block + 6 + part / 4 * 8) >> (part % 4 * 7) & 0x7f);
  }
  static unsigned step(const unsigned char* block, int group) { return 2u * (block[9 + 8 * group] >> 4) + 1; }
};

template <>
struct Codebook<formats::IQ2_XS> : OfEighths {
  static constexpr int kPoints = 512;
  static constexpr std::uint64_t integers(unsigned n) {
    return formats::iq2_integers(formats::iq2_xs_point(n), 0);
  }
  static unsigned point(const unsigned char* block, int i) {
    return formats::load_u16(block + 2 + 2 * i) & 511;
  }
  static unsigned signs(const unsigned char* block, int part) {
    return formats::even_signs(block[3 + 2 * part] >> 1);
  }
  static unsigned step(const unsigned char* block, int group) {
    return 2 * static_cast<unsigned>(formats::nibble_at(block + 66, group)) + 1;
  }
};

template <>
struct Codebook<formats::IQ2_S> : OfEighths {
  static constexpr int kPoints = 1024;
  static constexpr std::uint64_t integers(unsigned n) {
    return formats::iq2_integers(formats::iq2_s_point(n), 0);
  }
  static unsigned point(const unsigned char* block, int i) {
    return block[2 + i] | (static_cast<unsigned>(block[66 + i / 4]) >> (i % 4 * 2) & 3) << 8;
  }
  static unsigned signs(const unsigned char* block, int part) { return block[34 + part]; }
  static unsigned step(const unsigned char* block, int group) {
    return 2 * static_cast<unsigned>(formats::nibble_at(block + 74, group)) + 1;
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
  static unsigned point(const unsigned char* block, int i) { return block[2 + i]; }
  static unsigned signs(const unsigned char* block, int part) {
    return formats::even_signs(formats::load_u32(block + 66 + part / 4 * 4) >> (part % 4 * 7) & 0x7f);
  }
  static unsigned step(const unsigned char* block, int group) {
    return 2u * (block[69 + 4 * group] >> 4) + 1;
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
  static unsigned point(const unsigned char* block, int i) {
    return block[2 + i] | (static_cast<unsigned>(block[66 + i / 8]) >> (i % 8) & 1) << 8;
  }
  static unsigned signs(const unsigned char* block, int part) { return block[74 + part]; }
  static unsigned step(const unsigned char* block, int group) {
    return 2 * static_cast<unsigned>(formats::nibble_at(block + 106, group)) + 1;
  }
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
template <class Format>
HWY_INLINE void unpack_codebook(const unsigned char* block, std::int8_t* out) {
  using Book = Codebook<Format>;
  static constexpr PointIntegers<Format> kTable;
  constexpr int kPointsOf32 = 32 / Book::kPointElements;
  const hn::CappedTag<std::uint8_t, 32> d;
  const hn::Repartition<std::uint64_t, decltype(d)> d64;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  // Which of four bytes, and which of its bits, an integer's sign is.
  alignas(32) static constexpr std::uint8_t kByte[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                                         2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
  const auto bits = hn::BitCast(d, hn::Set(d64, 0x8040201008040201u));
  for (int group = 0; group < Format::kElements / 32; ++group, out += 32) {
    alignas(32) typename PointIntegers<Format>::Point points[kPointsOf32];
    for (int i = 0; i < kPointsOf32; ++i)
      points[i] = kTable.points[Book::point(block, kPointsOf32 * group + i)];
    std::uint32_t signs = 0;
    for (int part = 0; part < 4; ++part) {
      const unsigned of_part = Book::signs(block, 4 * group + part);
      signs |= (Book::kHasSigns ? of_part : 0xff * of_part) << (8 * part);
    }
    const auto all_signs = hn::BitCast(d, hn::Set(d32, signs));
    for (std::size_t l = 0; l < 32; l += hn::Lanes(d)) {
      const auto integers = hn::Load(d, reinterpret_cast<const std::uint8_t*>(points) + l);
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
