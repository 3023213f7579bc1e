#pragma once

#include "matrix/matrix.hip.h"

// Keys and values of 8 bits (e4m3), widened in registers to what the matrix units multiply. Exponent and
// mantissa of e4m3 begin those of f16, whose exponent is then 8 too small, subnormal numbers included: what
// comes out is 2^-8 of the number, exactly, in f16, bf16 and fp32 alike, and the products' results are
// multiplied with 2^8 once. gfx942's own conversions are of another format (FNUZ), in which -0 is NaN.

namespace tessera::kernels {

/// What products with widened numbers are to be multiplied with.
template <class Kv>
constexpr float kWidenedUnit = 1.0f;
template <>
constexpr float kWidenedUnit<f8e4m3> = 256.0f;

/// Selector of v_perm(second, first, …) that puts byte `low` of `first` and byte `high` of `second` into the
/// upper bytes of halves.
TESSERA_DEVICE constexpr unsigned spread_bytes(int low, int high) {
  constexpr unsigned kZero = 0x0c;
  return static_cast<unsigned>(4 + high) << 24 | kZero << 16 | static_cast<unsigned>(low) << 8 | kZero;
}

/// Two numbers of 8 bits, in the upper bytes of the halves of `x`, as f16.
TESSERA_DEVICE unsigned halves_of_e4m3(unsigned x) {
  // 1 for the exponent, which f16 has a bit more of; the sign comes down with it.
  const Short2 shifted = __builtin_bit_cast(Short2, x) >> Short2(1);
  const unsigned halves = __builtin_bit_cast(unsigned, shifted) & 0xbfffbfffu;
  // A NaN has all of its bits set: 1 more reaches the exponent's upper bit, with which it is f16's NaN.
  return ((halves + 0x00800080u) & 0x40004000u) | halves;
}

/// Two numbers of 8 bits as Ts, in sizeof(T) / 2 words: byte `low` of `first` and byte `high` of `second`.
template <class T>
TESSERA_DEVICE void widen_pair(unsigned first, int low, unsigned second, int high, unsigned* words) {
  const unsigned halves = halves_of_e4m3(__builtin_amdgcn_perm(second, first, spread_bytes(low, high)));
  if constexpr (__is_same(T, f16)) {
    words[0] = halves;
  } else {
    const Half2 pair = __builtin_bit_cast(Half2, halves);
    const unsigned a = bits_of_float(static_cast<float>(pair[0]));
    const unsigned b = bits_of_float(static_cast<float>(pair[1]));
    if constexpr (sizeof(T) == 2) {
      words[0] = __builtin_amdgcn_perm(b, a, 0x07060302u);
    } else {
      words[0] = a;
      words[1] = b;
    }
  }
}

/// A word's four numbers of 8 bits as Ts, in sizeof(T) words.
template <class T>
TESSERA_DEVICE void widen_word(unsigned word, unsigned* words) {
  widen_pair<T>(word, 0, word, 1, words);
  widen_pair<T>(word, 2, word, 3, words + sizeof(T) / 2);
}

}  // namespace tessera::kernels
