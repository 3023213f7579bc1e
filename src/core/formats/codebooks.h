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

/// The integers whose places among a format's magnitudes are 2 or 3 bits of `places` each, negative where
/// `signs` has a bit.
TESSERA_FORMAT int iq2_integer(unsigned places, unsigned signs, int j) {
  const int place = static_cast<int>(places >> (2 * j)) & 3;
  const int magnitude = 8 + 17 * place + (place >> 1);  // 8, 25 or 43
  return (signs >> j & 1) != 0 ? -magnitude : magnitude;
}
TESSERA_FORMAT int iq3_xxs_integer(unsigned places, unsigned signs, int j) {
  const int place = static_cast<int>(places >> (3 * j)) & 7;
  const int magnitude = 4 + 8 * place + ((place + 1) >> 3 << 1);  // 4 to 52 by 8, 62
  return (signs >> j & 1) != 0 ? -magnitude : magnitude;
}
TESSERA_FORMAT int iq3_s_integer(unsigned places, unsigned signs, int j) {
  const int magnitude = 1 + 2 * (static_cast<int>(places >> (3 * j)) & 7);
  return (signs >> j & 1) != 0 ? -magnitude : magnitude;
}

/// In eighths: -1, 0 or 1, and an eighth more or less.
TESSERA_FORMAT int iq1_integer(unsigned places, bool is_less, int j) {
  return 8 * (static_cast<int>(places >> (2 * j)) & 3) - 8 + (is_less ? -1 : 1);
}

/// What a format says instead of `integer`:
///
///   static int integer_of(const unsigned char* block, int part, int j);  // of element 8 part + j
template <class Format, int kGroup_>
struct OfCodebook : InGroups<Format, kGroup_, false> {
  static constexpr bool kHasCodebook = true;
  static constexpr int kElements = 256;

  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    return Format::integer_of(block, i / 8, i % 8);
  }

  /// As of other formats; all lie in one part of 8 elements, whose point is then looked up once.
  template <class Number, int kCount>
  TESSERA_FORMAT static void decode_part(const unsigned char* block, int begin, Number (&out)[kCount]) {
    static_assert(8 % kCount == 0, "elements of one part");
    const Step<Number> s = Format::template step<Number>(block, begin / kGroup_);
    const int part = begin / 8;
    const int first = kCount == 8 ? 0 : begin % 8;
    for (int i = 0; i < kCount; ++i)
      out[i] = s.step * static_cast<Number>(Format::integer_of(block, part, first + i));
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
  TESSERA_FORMAT static int integer_of(const unsigned char* block, int part, int j) {
    const unsigned upper = load_u16(block + 34 + part / 4 * 2);
    const unsigned number = block[2 + part] | (upper >> (part % 4 * 3) & 7) << 8;
    return iq1_integer(iq1_point(number), (upper & 0x8000u) != 0, j);
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
  TESSERA_FORMAT static int integer_of(const unsigned char* block, int part, int j) {
    const unsigned upper = static_cast<unsigned>(nibble_at(block + 32, part));
    return iq1_integer(iq1_point(block[part] | (upper & 7) << 8), (upper & 8) != 0, j);
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
  TESSERA_FORMAT static int integer_of(const unsigned char* block, int part, int j) {
    const unsigned char* group = block + 2 + part / 4 * 8;
    const unsigned signs = even_signs(load_u32(group + 4) >> (part % 4 * 7) & 0x7f);
    const unsigned places = iq2_xxs_point(group[part % 4]);
    return iq2_integer(places, signs, j);
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
  TESSERA_FORMAT static int integer_of(const unsigned char* block, int part, int j) {
    const unsigned bits = load_u16(block + 2 + 2 * part);
    const unsigned signs = even_signs(bits >> 9);
    const unsigned places = iq2_xs_point(bits & 511);
    return iq2_integer(places, signs, j);
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
  TESSERA_FORMAT static int integer_of(const unsigned char* block, int part, int j) {
    const unsigned upper = static_cast<unsigned>(block[66 + part / 4]) >> (part % 4 * 2) & 3;
    const unsigned places = iq2_s_point(block[2 + part] | upper << 8);
    return iq2_integer(places, block[34 + part], j);
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
  TESSERA_FORMAT static int integer_of(const unsigned char* block, int part, int j) {
    const unsigned signs = even_signs(load_u32(block + 66 + part / 4 * 4) >> (part % 4 * 7) & 0x7f);
    return iq3_xxs_integer(iq3_xxs_point(block[2 + 2 * part + j / 4]), signs >> (j / 4 * 4), j % 4);
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
  TESSERA_FORMAT static int integer_of(const unsigned char* block, int part, int j) {
    const unsigned ninth = static_cast<unsigned>(block[66 + part / 4]) >> (part % 4 * 2 + j / 4) & 1;
    const unsigned number = block[2 + 2 * part + j / 4] | ninth << 8;
    const unsigned signs = static_cast<unsigned>(block[74 + part]) >> (j / 4 * 4);
    return iq3_s_integer(iq3_s_point(number), signs, j % 4);
  }
};

}  // namespace tessera::formats
