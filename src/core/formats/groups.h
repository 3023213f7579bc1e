#pragma once

#include "core/formats/numbers.h"

namespace tessera::formats {

/// What makes numbers of a group's integers: number = step * integer + offset. Both are products of a half
/// and a few bits, which fp32 holds exactly, as it does step * integer: the sum rounds once.
template <class Number>
struct Step {
  Number step, offset;
};

/// `decode` of a format whose groups of kGroup consecutive elements share a Step. The format says
///
///   template <class Number> static Step<Number> step(const unsigned char* block, int group);
///   static int integer(const unsigned char* block, int i);  // of element i, -128 to 127
///   static constexpr bool kHasOffset;                        // else offsets are 0
template <class Format, int kGroup_, bool kHasOffset_>
struct InGroups {
  static constexpr int kGroup = kGroup_;
  static constexpr bool kHasOffset = kHasOffset_;
  static constexpr bool kHasCodebook = false;  ///< integers are points of a table (codebooks.h)

  /// Elements [begin, begin + kCount) of the block.
  template <class Number, int kCount>
  TESSERA_FORMAT static void decode(const unsigned char* block, int begin, Number (&out)[kCount]) {
    Step<Number> s{};
    for (int i = 0; i < kCount; ++i) {
      if (i == 0 || (begin + i) % kGroup == 0) s = Format::template step<Number>(block, (begin + i) / kGroup);
      out[i] = s.step * static_cast<Number>(Format::integer(block, begin + i));
      if (kHasOffset) out[i] += s.offset;
    }
  }

  /// The same where `begin` is a multiple of kCount, so that all lie in one group.
  template <class Number, int kCount>
  TESSERA_FORMAT static void decode_part(const unsigned char* block, int begin, Number (&out)[kCount]) {
    static_assert(kGroup % kCount == 0, "a part lies in one group");
    const Step<Number> s = Format::template step<Number>(block, begin / kGroup);
    for (int i = 0; i < kCount; ++i) {
      out[i] = s.step * static_cast<Number>(Format::integer(block, begin + i));
      if (kHasOffset) out[i] += s.offset;
    }
  }
};

/// Element i of 32 in 16 bytes: the lower halves of all, then the upper ones.
TESSERA_FORMAT int nibble_of_32(const unsigned char* bytes, int i) {
  return i < 16 ? bytes[i] & 0xf : bytes[i - 16] >> 4;
}

}  // namespace tessera::formats
