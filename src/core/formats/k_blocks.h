#pragma once

#include "core/formats/groups.h"

// GGUF's "K" formats: 256 elements in groups of 16 or 32, whose steps are small integers times a half of the
// block's; where there is an offset, it is minus a small integer times another half.
//
// Integers of few bits lie apart by 32: of a half block of 128, byte l of 32 has the two bits of elements l,
// l + 32, l + 64 and l + 96, or byte l of a quarter the four of l and l + 32.

namespace tessera::formats {

/// Two bits of element i, of 64 bytes.
TESSERA_FORMAT int two_bits_of_256(const unsigned char* bytes, int i) {
  return (bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
}

/// Bit i / 32 of byte i % 32.
TESSERA_FORMAT int one_bit_of_256(const unsigned char* bytes, int i) {
  return (bytes[i % 32] >> (i / 32)) & 1;
}

/// Four bits of element i, of 128 bytes.
TESSERA_FORMAT int four_bits_of_256(const unsigned char* bytes, int i) {
  return (bytes[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4)) & 0xf;
}

/// The six bits of a group's step and of its offset in the 12 bytes that Q4_K and Q5_K have for eight groups.
TESSERA_FORMAT int six_bit_step(const unsigned char* bytes, int group) {
  return group < 4 ? bytes[group] & 63 : (bytes[group + 4] & 0xf) | (bytes[group - 4] >> 6) << 4;
}
TESSERA_FORMAT int six_bit_offset(const unsigned char* bytes, int group) {
  return group < 4 ? bytes[group + 4] & 63 : bytes[group + 4] >> 4 | (bytes[group] >> 6) << 4;
}

/// 16 bytes of steps (lower half) and offsets (upper), 64 of integers, the halves of both.
struct Q2_K : InGroups<Q2_K, 16, true> {
  static constexpr const char* kName = "q2_k";
  static constexpr int kElements = 256;
  static constexpr int kBytes = 84;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    return {static_cast<Number>(load_half(block + 80)) * static_cast<Number>(block[group] & 0xf),
            -static_cast<Number>(load_half(block + 82)) * static_cast<Number>(block[group] >> 4)};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    return two_bits_of_256(block + 16, i);
  }
};

/// 32 bytes of third bits, 64 of the lower two, 12 of steps, a half: half * (step - 32) * (bits - 4).
struct Q3_K : InGroups<Q3_K, 16, false> {
  static constexpr const char* kName = "q3_k";
  static constexpr int kElements = 256;
  static constexpr int kBytes = 110;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    const unsigned char* steps = block + 96;
    const int lower = group < 8 ? steps[group] & 0xf : steps[group - 8] >> 4;
    const int upper = (steps[8 + group % 4] >> (group / 4 * 2)) & 3;
    return {static_cast<Number>(load_half(block + 108)) * static_cast<Number>((lower | upper << 4) - 32), 0};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    return (two_bits_of_256(block + 32, i) | one_bit_of_256(block, i) << 2) - 4;
  }
};

/// The halves of steps and offsets, 12 bytes of both, 128 of integers.
struct Q4_K : InGroups<Q4_K, 32, true> {
  static constexpr const char* kName = "q4_k";
  static constexpr int kElements = 256;
  static constexpr int kBytes = 144;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    return {
        static_cast<Number>(load_half(block)) * static_cast<Number>(six_bit_step(block + 4, group)),
        -static_cast<Number>(load_half(block + 2)) * static_cast<Number>(six_bit_offset(block + 4, group))};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    return four_bits_of_256(block + 16, i);
  }
};

/// As Q4_K, with 32 bytes of fifth bits in front of the integers.
struct Q5_K : InGroups<Q5_K, 32, true> {
  static constexpr const char* kName = "q5_k";
  static constexpr int kElements = 256;
  static constexpr int kBytes = 176;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    return Q4_K::step<Number>(block, group);
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    return four_bits_of_256(block + 48, i) | one_bit_of_256(block + 16, i) << 4;
  }
};

/// 128 bytes of the lower four bits, 64 of the upper two, 16 steps of int8, a half: half * step * (bits -
/// 32). The lower bits of a half block: bytes l and l + 32 of 64 have elements l and l + 32, and 64 further
/// on.
struct Q6_K : InGroups<Q6_K, 16, false> {
  static constexpr const char* kName = "q6_k";
  static constexpr int kElements = 256;
  static constexpr int kBytes = 210;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int group) {
    const auto integer = static_cast<signed char>(block[192 + group]);
    return {static_cast<Number>(load_half(block + 208)) * static_cast<Number>(integer), 0};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    const int lower = (block[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4)) & 0xf;
    return (lower | two_bits_of_256(block + 128, i) << 4) - 32;
  }
};

}  // namespace tessera::formats
