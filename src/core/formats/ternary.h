#pragma once

#include "core/formats/groups.h"

// Formats of -1, 0 and 1 times one half for 256 elements.

namespace tessera::formats {

/// Five elements a byte, which is their number to the base 3 as a fraction of 256: the digit in front of the
/// point after multiplying by a power of 3. 32 bytes have elements 32 apart, 16 those 16 apart, 4 four each.
struct TQ1_0 : InGroups<TQ1_0, 256, false> {
  static constexpr const char* kName = "tq1_0";
  static constexpr int kElements = 256;
  static constexpr int kBytes = 54;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int) {
    return {static_cast<Number>(load_half(block + 52)), 0};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    if (i < 160) return digit(block[i % 32], i / 32);
    if (i < 240) return digit(block[32 + i % 16], (i - 160) / 16);
    return digit(block[48 + i % 4], (i - 240) / 4);
  }

 private:
  TESSERA_FORMAT static int digit(unsigned char fraction, int place) {
    const unsigned power = place == 0 ? 1 : place == 1 ? 3 : place == 2 ? 9 : place == 3 ? 27 : 81;
    return static_cast<int>(((fraction * power) & 0xffu) * 3u >> 8) - 1;
  }
};

/// Two bits an element in 64 bytes, as Q2_K has them.
struct TQ2_0 : InGroups<TQ2_0, 256, false> {
  static constexpr const char* kName = "tq2_0";
  static constexpr int kElements = 256;
  static constexpr int kBytes = 66;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int) {
    return {static_cast<Number>(load_half(block + 64)), 0};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    return ((block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3) - 1;
  }
};

}  // namespace tessera::formats
