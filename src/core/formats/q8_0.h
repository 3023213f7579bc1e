#pragma once

#include "core/formats/numbers.h"

namespace tessera::formats {

/// GGUF's Q8_0: 32 int8 values after one fp16 scale; element i = scale * value i, which fp32 holds exactly
/// (11 + 8 bits).
struct Q8_0 {
  static constexpr const char* kName = "q8_0";
  static constexpr int kElements = 32;
  static constexpr int kBytes = 34;
  static constexpr int kAlignment = 2;  ///< of blocks, for kernels that read them by more than a byte

  /// Elements [begin, begin + kCount) of the block.
  template <class Number, int kCount>
  TESSERA_FORMAT static void decode(const unsigned char* block, int begin, Number (&out)[kCount]) {
    const Number scale = static_cast<Number>(load_half(block));
    const signed char* values = reinterpret_cast<const signed char*>(block + 2) + begin;
    for (int i = 0; i < kCount; ++i) out[i] = scale * static_cast<Number>(values[i]);
  }

  /// A block of numbers that lie in [-limit, limit], cut off to steps of limit / 127; half: limit / 127 in
  /// fp16.
  TESSERA_FORMAT static void encode(const float (&values)[kElements], float limit, unsigned short half,
                                    unsigned char* block) {
    const float inverse = 127 / limit;
    block[0] = static_cast<unsigned char>(half & 0xff);
    block[1] = static_cast<unsigned char>(half >> 8);
    for (int i = 0; i < kElements; ++i) {
      block[2 + i] = static_cast<unsigned char>(static_cast<signed char>(values[i] * inverse));
    }
  }
};

}  // namespace tessera::formats
