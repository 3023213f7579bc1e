#pragma once

#include "common/rows.cuh"
#include "sm80/ptx.cuh"

// How weights of blocks lie in shared memory for a lane of the tensor cores' products, whatever operands are
// made of them: see block_fragments.cuh and block_bits.cuh.

namespace tessera::kernels {

/// A lane's two rows of a piece, in shared memory. kIsShifted: they may begin at any multiple of 2 bytes.
template <bool kIsShifted>
struct PieceRows {
  const unsigned char* row[2];  // at a multiple of 4 bytes
  unsigned behind[2];           // the piece begins so many bytes further on: 0 or 2

  /// The word at `constant` + `variable` bytes, multiples of 4 if the piece may be shifted. `constant` is
  /// known when loops are unrolled; `variable` is always a multiple of 4.
  TESSERA_DEVICE unsigned word(int r, int constant, int variable = 0) const {
    const int bytes_behind = constant % 4;
    const unsigned* words = reinterpret_cast<const unsigned*>(row[r] + constant - bytes_behind + variable);
    if (kIsShifted) return byte_permute(words[0], words[1], 0x3210u + behind[r] * 0x1111u);
    if (bytes_behind == 0) return words[0];
    return byte_permute(words[0], words[1], 0x3210u + static_cast<unsigned>(bytes_behind) * 0x1111u);
  }
  /// The same of rows that begin at any multiple of 2 bytes and constants of any.
  TESSERA_DEVICE unsigned any_word(int r, int constant, int variable = 0) const {
    const unsigned shift = static_cast<unsigned>(constant % 4) + behind[r];
    const unsigned* words =
        reinterpret_cast<const unsigned*>(row[r] + constant / 4 * 4 + variable + shift / 4 * 4);
    return byte_permute(words[0], words[1], 0x3210u + shift % 4 * 0x1111u);
  }
  TESSERA_DEVICE unsigned half_bits(int r, int offset) const {
    return *reinterpret_cast<const unsigned short*>(row[r] + offset + behind[r]);
  }
  TESSERA_DEVICE float half(int r, int offset) const {
    return to_float(f16{static_cast<unsigned short>(half_bits(r, offset))});
  }
};

/// What sums of x are divided by, to fit fp16.
constexpr float kXSumFactor = 64.0f;

/// The power of two that brings numbers of x into fp16's range, and what takes it back.
struct RangeOfX {
  float scale, back;

  /// Of the largest magnitude, as fp32's bits.
  TESSERA_DEVICE explicit RangeOfX(unsigned largest) {
    constexpr int kTarget = 14;  // the exponent of the largest, so that it stays below 2^15
    const int exponent = static_cast<int>(largest >> 23) - 127;
    const int shift = kTarget - minimum(maximum(exponent, -112), 127);  // both stay normal numbers
    scale = float_of_bits(static_cast<unsigned>(127 + shift) << 23);
    back = float_of_bits(static_cast<unsigned>(127 - shift) << 23);
  }
};

/// Of both steps: rows g and g + 8 of the first pairs of columns, then of the second.
using BlockOperands = unsigned[2][4];

/// Four places of four bits in a table of 16 bytes, from the lowest bits on.
TESSERA_DEVICE unsigned look_up(const unsigned (&table)[4], unsigned places) {
  const unsigned in_half = places & 0x7777u;
  const unsigned lower = byte_permute(table[0], table[1], in_half);
  const unsigned upper = byte_permute(table[2], table[3], in_half);
  return byte_permute(lower, upper, 0x3210u | (places & 0x8888u) >> 1);
}

}  // namespace tessera::kernels
