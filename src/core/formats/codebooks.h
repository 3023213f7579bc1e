#pragma once

#include "core/formats/codebook_tables.h"
#include "core/formats/groups.h"

// GGUF's formats of 1 to 3 bits: 256 elements, eight or four of which together are a point of a table, by its
// number. Signs are bits of their own but in IQ1, whose numbers lie off the table's by an eighth.

namespace tessera::formats {

TESSERA_FORMAT unsigned load_u16(const unsigned char* bytes) {
  return bytes[0] | static_cast<unsigned>(bytes[1]) << 8;
}
TESSERA_FORMAT unsigned load_u32(const unsigned char* bytes) {
  return load_u16(bytes) | load_u16(bytes + 2) << 16;
}

/// Four bits of number i.
TESSERA_FORMAT int nibble_at(const unsigned char* bytes, int i) {
  return (bytes[i / 2] >> (i % 2 * 4)) & 0xf;
}

/// Seven signs, and the eighth that makes their number even.
TESSERA_FORMAT unsigned even_signs(unsigned seven) {
  const unsigned folded = seven ^ seven >> 4;
  return seven | ((0x6996u >> (folded & 0xf)) & 1) << 7;
}

/// Eight integers of a byte each, the first lowest.
using Eight = unsigned long long;

/// A byte in all eight places.
TESSERA_FORMAT Eight eight_of(unsigned byte) { return 0x0101010101010101u * static_cast<Eight>(byte); }

/// Eight numbers of 2 or 3 bits, apart: their halves, then these halves' halves, move up.
TESSERA_FORMAT Eight spread_2_bits(Eight x) {
  x = (x | x << 24) & 0x000000ff000000ffu;
  x = (x | x << 12) & 0x000f000f000f000fu;
  return (x | x << 6) & eight_of(3);
}
TESSERA_FORMAT Eight spread_3_bits(Eight x) {
  x = (x | x << 20) & 0x00000fff00000fffu;
  x = (x | x << 10) & 0x003f003f003f003fu;
  return (x | x << 5) & eight_of(7);
}

/// Magnitudes of at least 1, negative where `signs` has a bit. A byte's bit is carried to its top, then down.
TESSERA_FORMAT Eight with_signs(Eight magnitudes, unsigned signs) {
  const Eight bits = eight_of(signs) & 0x8040201008040201u;
  const Eight ones = (bits + eight_of(0x7f)) >> 7 & eight_of(1);
  return (magnitudes ^ ones * 0xff) + ones;
}

/// The integers whose places among a format's magnitudes are 2 or 3 bits of `places` each. No sum or product
/// leaves its byte.
TESSERA_FORMAT Eight iq2_integers(unsigned places, unsigned signs) {
  const Eight place = spread_2_bits(places);
  return with_signs(eight_of(8) + 17 * place + (place >> 1 & eight_of(1)), signs);  // 8, 25 or 43
}
TESSERA_FORMAT Eight iq3_xxs_integers(unsigned places, unsigned signs) {
  const Eight place = spread_3_bits(places);
  const Eight is_last = (place + eight_of(1)) >> 3 & eight_of(1);
  return with_signs(eight_of(4) + 8 * place + 2 * is_last, signs);  // 4 to 52 by 8, 62
}
TESSERA_FORMAT Eight iq3_s_integers(unsigned places, unsigned signs) {
  return with_signs(eight_of(1) + 2 * spread_3_bits(places), signs);
}

/// In eighths: -1, 0 or 1, and an eighth more or less. The bytes' signs are taken out of the sum's way.
TESSERA_FORMAT Eight iq1_integers(unsigned places, bool is_less) {
  const unsigned least = is_less ? 0x77u : 0x79u;  // -9 or -7, but for the sign
  return (8 * spread_2_bits(places) + eight_of(least)) ^ eight_of(0x80);
}

/// What a format says instead of `integer`:
///
///   static Eight integers(const unsigned char* block, int part);  // of elements from 8 part on
template <class Format, int kGroup_>
struct OfCodebook : InGroups<Format, kGroup_, false> {
  static constexpr bool kHasCodebook = true;
  static constexpr int kElements = 256;

  TESSERA_FORMAT static int integer_of(Eight integers, int j) {
    return static_cast<signed char>(integers >> (8 * j) & 0xff);
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    return integer_of(Format::integers(block, i / 8), i % 8);
  }

  /// As of other formats; all lie in one part of 8 elements, whose point is then looked up once.
  template <class Number, int kCount>
  TESSERA_FORMAT static void decode_part(const unsigned char* block, int begin, Number (&out)[kCount]) {
    static_assert(8 % kCount == 0, "elements of one part");
    const Step<Number> s = Format::template step<Number>(block, begin / kGroup_);
    const Eight integers = Format::integers(block, begin / 8);
    const int first = kCount == 8 ? 0 : begin % 8;
    for (int i = 0; i < kCount; ++i) out[i] = s.step * static_cast<Number>(integer_of(integers, first + i));
  }
};

/// 32 bytes of points' lower eight bits; for each 32 elements two bytes: four points' upper three bits, three
/// of the step, and whether the eighth is less.
struct IQ1_S : OfCodebook<IQ1_S, 32> {
  static constexpr const char* kName = "iq1_s";
  static constexpr int kBytes = 50;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    const int odd = 2 * (static_cast<int>(load_u16(block + 34 + 2 * group) >> 12) & 7) + 1;
    return {static_cast<Number>(load_half(block)) * (static_cast<Number>(odd) / 8), 0};
  }
  TESSERA_FORMAT static Eight integers(const unsigned char* block, int part) {
    const unsigned upper = load_u16(block + 34 + part / 4 * 2);
    const unsigned number = block[2 + part] | (upper >> (part % 4 * 3) & 7) << 8;
    return iq1_integers(iq1_point(number), (upper & 0x8000u) != 0);
  }
};

/// 32 bytes as in IQ1_S; a nibble for each 8 elements: the point's upper three bits and whether the eighth is
/// less; four words of four steps of three bits for 16 elements each and, at the top, four bits of the half.
struct IQ1_M : OfCodebook<IQ1_M, 16> {
  static constexpr const char* kName = "iq1_m";
  static constexpr int kBytes = 56;
  static constexpr int kAlignment = 1;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    const unsigned char* steps = block + 48;
    const unsigned half = load_u16(steps) >> 12 | load_u16(steps + 2) >> 12 << 4 |
                          load_u16(steps + 4) >> 12 << 8 | load_u16(steps + 6) >> 12 << 12;
    const int odd = 2 * (static_cast<int>(load_u16(steps + group / 4 * 2) >> (group % 4 * 3)) & 7) + 1;
    return {static_cast<Number>(float_of_half(static_cast<unsigned short>(half))) *
                (static_cast<Number>(odd) / 8),
            0};
  }
  TESSERA_FORMAT static Eight integers(const unsigned char* block, int part) {
    const unsigned upper = static_cast<unsigned>(nibble_at(block + 32, part));
    return iq1_integers(iq1_point(block[part] | (upper & 7) << 8), (upper & 8) != 0);
  }
};

/// For each 32 elements four bytes of points and a word: seven signs for each point, then four bits of the
/// step.
struct IQ2_XXS : OfCodebook<IQ2_XXS, 32> {
  static constexpr const char* kName = "iq2_xxs";
  static constexpr int kBytes = 66;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    const int odd = 2 * (block[9 + 8 * group] >> 4) + 1;
    return {static_cast<Number>(load_half(block)) * (static_cast<Number>(odd) / 8), 0};
  }
  TESSERA_FORMAT static Eight integers(const unsigned char* block, int part) {
    const unsigned char* group = block + 2 + part / 4 * 8;
    const unsigned signs = even_signs(load_u32(group + 4) >> (part % 4 * 7) & 0x7f);
    const unsigned places = iq2_xxs_point(group[part % 4]);
    return iq2_integers(places, signs);
  }
};

/// Two bytes for each 8 elements: nine bits of the point, seven signs; then nibbles of steps for 16 elements.
struct IQ2_XS : OfCodebook<IQ2_XS, 16> {
  static constexpr const char* kName = "iq2_xs";
  static constexpr int kBytes = 74;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    const int odd = 2 * nibble_at(block + 66, group) + 1;
    return {static_cast<Number>(load_half(block)) * (static_cast<Number>(odd) / 8), 0};
  }
  TESSERA_FORMAT static Eight integers(const unsigned char* block, int part) {
    const unsigned bits = load_u16(block + 2 + 2 * part);
    const unsigned signs = even_signs(bits >> 9);
    const unsigned places = iq2_xs_point(bits & 511);
    return iq2_integers(places, signs);
  }
};

/// 32 bytes of points' lower eight bits, 32 of signs, 8 of points' upper two bits, nibbles of steps for 16
/// elements.
struct IQ2_S : OfCodebook<IQ2_S, 16> {
  static constexpr const char* kName = "iq2_s";
  static constexpr int kBytes = 82;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    const int odd = 2 * nibble_at(block + 74, group) + 1;
    return {static_cast<Number>(load_half(block)) * (static_cast<Number>(odd) / 8), 0};
  }
  TESSERA_FORMAT static Eight integers(const unsigned char* block, int part) {
    const unsigned upper = static_cast<unsigned>(block[66 + part / 4]) >> (part % 4 * 2) & 3;
    const unsigned places = iq2_s_point(block[2 + part] | upper << 8);
    return iq2_integers(places, block[34 + part]);
  }
};

/// 64 bytes of points of four, then for each 32 elements a word as in IQ2_XXS, with seven signs for each two
/// points.
struct IQ3_XXS : OfCodebook<IQ3_XXS, 32> {
  static constexpr const char* kName = "iq3_xxs";
  static constexpr int kBytes = 98;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    const int odd = 2 * (block[69 + 4 * group] >> 4) + 1;
    return {static_cast<Number>(load_half(block)) * (static_cast<Number>(odd) / 4), 0};
  }
  TESSERA_FORMAT static Eight integers(const unsigned char* block, int part) {
    const unsigned signs = even_signs(load_u32(block + 66 + part / 4 * 4) >> (part % 4 * 7) & 0x7f);
    const unsigned char* points = block + 2 + 2 * part;
    return iq3_xxs_integers(iq3_xxs_point(points[0]) | iq3_xxs_point(points[1]) << 12, signs);
  }
};

/// 64 bytes of lower bits of points of four, 8 of their ninth bits, 32 of signs, nibbles of steps for 32
/// elements.
struct IQ3_S : OfCodebook<IQ3_S, 32> {
  static constexpr const char* kName = "iq3_s";
  static constexpr int kBytes = 110;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    const int odd = 2 * nibble_at(block + 106, group) + 1;
    return {static_cast<Number>(load_half(block)) * static_cast<Number>(odd), 0};
  }
  TESSERA_FORMAT static Eight integers(const unsigned char* block, int part) {
    const unsigned char* points = block + 2 + 2 * part;
    const unsigned ninths = static_cast<unsigned>(block[66 + part / 4]) >> (part % 4 * 2);
    const unsigned first = points[0] | (ninths & 1) << 8;
    const unsigned second = points[1] | (ninths & 2) << 7;
    return iq3_s_integers(iq3_s_point(first) | iq3_s_point(second) << 12, block[74 + part]);
  }
};

}  // namespace tessera::formats
