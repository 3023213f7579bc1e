#pragma once

#include "core/formats/groups.h"

// Formats whose 4 bits are the place in a table of 16 integers.

namespace tessera::formats {

/// The integers of IQ4_NL and IQ4_XS: closer together near 0, where weights are dense.
TESSERA_FORMAT int iq4_integer(int bits) {
  constexpr signed char kIntegers[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
  return kIntegers[bits];
}

/// A half, then 4 bits an element.
struct IQ4_NL : InGroups<IQ4_NL, 32, false> {
  static constexpr const char* kName = "iq4_nl";
  static constexpr int kElements = 32;
  static constexpr int kBytes = 18;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int) {
    return {static_cast<Number>(load_half(block)), 0};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    return iq4_integer(nibble_of_32(block + 2, i));
  }
};

/// A half, the upper two bits of eight groups' steps in two bytes, the lower four in four, then groups of 32
/// elements as IQ4_NL has them: half * (step - 32) * integer.
struct IQ4_XS : InGroups<IQ4_XS, 32, false> {
  static constexpr const char* kName = "iq4_xs";
  static constexpr int kElements = 256;
  static constexpr int kBytes = 136;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    const int upper = (block[2 + group / 4] >> (group % 4 * 2)) & 3;
    const int lower = (block[4 + group / 2] >> (group % 2 * 4)) & 0xf;
    return {static_cast<Number>(load_half(block)) * static_cast<Number>((lower | upper << 4) - 32), 0};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    return iq4_integer(nibble_of_32(block + 8 + i / 32 * 16, i % 32));
  }
};

/// OCP's MXFP4 ("Microscaling Formats (MX) Specification", 2023): a power of two, then numbers of a sign, two
/// bits of exponent and one of fraction, here as twice their value.
struct MXFP4 : InGroups<MXFP4, 32, false> {
  static constexpr const char* kName = "mxfp4";
  static constexpr int kElements = 32;
  static constexpr int kBytes = 17;
  static constexpr int kAlignment = 1;

  /// 2^(byte - 127) / 2.
  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int) {
    const unsigned exponent = block[0];
    const unsigned bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
    return {static_cast<Number>(float_of_word(bits)), 0};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    constexpr signed char kIntegers[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return kIntegers[nibble_of_32(block + 1, i)];
  }
};

}  // namespace tessera::formats
