#pragma once

#include "core/formats/groups.h"

namespace tessera::formats {

/// GGUF's Q8_0: 32 int8 values after one fp16 scale; element i = scale * value i, which fp32 holds exactly
/// (11 + 8 bits).
struct Q8_0 : InGroups<Q8_0, 32, false> {
  static constexpr const char* kName = "q8_0";
  static constexpr int kElements = 32;
  static constexpr int kBytes = 34;
  static constexpr int kAlignment = 2;  ///< of blocks, for kernels that read them by more than a byte

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int) {
    return {static_cast<Number>(load_half(block)), 0};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    return static_cast<signed char>(block[2 + i]);
  }
};

}  // namespace tessera::formats
