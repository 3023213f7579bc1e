#pragma once

#include "common/rows.cuh"
#include "sm80/block_rows.cuh"
#include "sm80/gemm_blocks_traits.h"
#include "sm80/ptx.cuh"

// Weights of blocks as the fp16 operands of tensor cores, without rounding and without converting them: bits
// of an integer below 1024 are by themselves the (subnormal) fp16 number integer * 2^-24, which the tensor
// cores multiply as any other. So a mask makes two operands. What the integers stand too high in their words,
// by a place of so many bits, their scale takes back; what they are too large, a bias, is taken off by the
// sum that the products are added to.
//
// A piece is 256 columns of a row, eight groups of 32. Lane 4 g + t takes rows g and g + 8 of a tile of w,
// row g of a tile of x, and of each group eight columns, four for each of two instructions of 16 columns
// (steps).
//
//   BlockBits<Format>
//     kStepColumns            columns whose products one scale() multiplies, 16 or 32
//     kBias                   by which the operands' integers are too large
//     kPlaces, place(group)   1, 2 or 4 places in which groups' operands (the first step's) stand, and which:
//     times
//                             1 and 16, or 1, 4, 16 and 64
//     kSecondPlace            times what the second step's stand higher than the first's: x is divided by it
//     kOffsetGroups           groups of a piece that have an offset: 0, 8 or 16
//     kIsInterleaved          an operand has columns (0, 2) or (1, 3) of four; else (0, 1) or (2, 3)
//     kLaneColumns            lane t's columns begin at 4 t and 16 + 4 t, or at 8 t (8 in a row)
//     load(rows, t)           what all groups share
//     operands(group, a)      of both steps; groups are asked for in order
//     scale(group, step, r)   fp32, of row g + 8 r
//     offsets(a)              operand a of the products with sums of x: pairs of groups 2 t (and 2 t + 8)
//     final_scale(r), final_offset_scale(r)   with kUnit for operands (steps, offsets) that are bits

namespace tessera::kernels::bits {

/// What makes an operand's number of the integer that its bits are.
constexpr float kUnit = 16777216.0f;

/// A lane's two rows of a piece, and what number_of_biased_byte needs.
template <bool kIsShifted>
struct BitsRows : PieceRows<kIsShifted> {
  unsigned above;  // 2^23 as fp32
};

/// Bytes `first` and `second` of `word`, each an operand.
TESSERA_DEVICE unsigned spread_bytes(unsigned word, int first, int second) {
  return byte_permute(word, 0u, static_cast<unsigned>(first | second << 8) | 0x4040u);
}

/// The bits of `word` under `mask` after it has been moved by `bits` to the left, or to the right if
/// negative.
TESSERA_DEVICE unsigned moved_bits(unsigned word, int bits, unsigned mask) {
  return (bits >= 0 ? word << maximum(bits, 0) : word >> maximum(-bits, 0)) & mask;
}

/// fp32 of byte `byte` of `word`, divided by kUnit.
TESSERA_DEVICE float number_of_byte(unsigned word, int byte) {
  const unsigned pair = spread_bytes(word, byte / 2 * 2, byte / 2 * 2 + 1);
  return to_float(f16{static_cast<unsigned short>(byte % 2 == 0 ? pair : pair >> 16)});
}

/// fp32 of a byte less `bias`.
TESSERA_DEVICE float number_of_biased_byte(unsigned word, int byte, int bias, unsigned above) {
  return float_of_bits(byte_permute(word, above, 0x7440u | static_cast<unsigned>(byte))) -
         (8388608.0f + static_cast<float>(bias));
}

/// Operands of row r from a word of 4-bit places: low bits are columns 4 t to 4 t + 3, high ones 16 further
/// on. The table has numbers + the format's bias.
TESSERA_DEVICE void look_up_operands(const unsigned (&table)[4], unsigned word, int r, BlockOperands& a) {
  TESSERA_UNROLL
  for (int pair = 0; pair < 2; ++pair) {
    const unsigned bytes = look_up(table, word >> (16 * pair));
    a[0][2 * pair + r] = spread_bytes(bytes, 0, 2);
    a[1][2 * pair + r] = spread_bytes(bytes, 1, 3);
  }
}

/// What most formats share.
template <int kStepColumns_, int kBias_, int kOffsetGroups_, bool kIsInterleaved_, int kLaneColumns_ = 4,
          bool kIsShifted = false>
struct BitsOf {
  using Rows = BitsRows<kIsShifted>;
  static constexpr int kStepColumns = kStepColumns_;
  static constexpr int kBias = kBias_;
  static constexpr int kPlaces = 1;
  static constexpr int kSecondPlace = 1;
  static constexpr int kOffsetGroups = kOffsetGroups_;
  static constexpr bool kIsInterleaved = kIsInterleaved_;
  static constexpr int kLaneColumns = kLaneColumns_;
  Rows rows;
  int t;

  TESSERA_DEVICE void load(const Rows& piece, int lane_of_row) {
    rows = piece;
    t = lane_of_row;
  }
  static TESSERA_DEVICE int place(int) { return 0; }
  TESSERA_DEVICE void offsets(unsigned (&)[4]) const {}
  TESSERA_DEVICE float final_scale(int) const { return kUnit; }
  TESSERA_DEVICE float final_offset_scale(int) const { return 1.0f; }
};

template <class Format>
struct BlockBits;

// ---- Blocks of 32: a piece has eight.

/// A half, perhaps another for the offset, then integers.
template <class Format, int kBias, bool kIsInterleaved>
struct BitsOf32 : BitsOf<32, kBias, Format::kHasOffset ? 8 : 0, kIsInterleaved> {
  TESSERA_DEVICE float scale(int group, int, int r) const {
    return this->rows.half(r, group * Format::kBytes);
  }
  TESSERA_DEVICE void offsets(unsigned (&a)[4]) const {
    const int first = 2 * this->t * Format::kBytes + 2;
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r)
      a[r] = a[2 + r] = this->rows.half_bits(r, first) | this->rows.half_bits(r, first + Format::kBytes)
                                                             << 16;
  }
};

/// The lower bits of 16 bytes are the first 16 columns, the upper bits the others.
template <class Format, int kBias>
struct BitsOfNibbles : BitsOf32<Format, kBias, true> {
  static constexpr int kSecondPlace = 16;
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const unsigned word = this->rows.word(r, group * Format::kBytes + Format::kBytes - 16, 4 * this->t);
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        a[0][2 * pair + r] = word >> (8 * pair) & 0x000f000fu;
        a[1][2 * pair + r] = word >> (8 * pair) & 0x00f000f0u;
      }
    }
  }
};
template <>
struct BlockBits<formats::Q4_0> : BitsOfNibbles<formats::Q4_0, 8> {};
template <>
struct BlockBits<formats::Q4_1> : BitsOfNibbles<formats::Q4_1, 0> {};

template <class Format, int kBias>
struct BitsOfFiveBits : BitsOf32<Format, kBias, true> {
  static constexpr int kSecondPlace = 16;
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int end = (group + 1) * Format::kBytes;
      const unsigned fifth = this->rows.word(r, end - 20) >> (4 * this->t);
      const unsigned word = this->rows.word(r, end - 16, 4 * this->t);
      // The fifth bits of four columns, twice: the first's at bit 4 of both halves (8 of the second step),
      // were the upper half moved by two.
      const unsigned first = (fifth & 0xfu) * 0x00040010u;
      const unsigned second = (fifth >> 16 & 0xfu) * 0x00400100u;
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        a[0][2 * pair + r] = and_or(word >> (8 * pair), 0x000f000fu, first >> pair & 0x00100010u);
        a[1][2 * pair + r] = and_or(word >> (8 * pair), 0x00f000f0u, second >> pair & 0x01000100u);
      }
    }
  }
};
template <>
struct BlockBits<formats::Q5_0> : BitsOfFiveBits<formats::Q5_0, 16> {};
template <>
struct BlockBits<formats::Q5_1> : BitsOfFiveBits<formats::Q5_1, 0> {};

template <>
struct BlockBits<formats::Q8_0> : BitsOf32<formats::Q8_0, 128, true> {
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      TESSERA_UNROLL
      for (int step = 0; step < 2; ++step) {
        const unsigned word = rows.word(r, group * formats::Q8_0::kBytes + 2 + 16 * step, 4 * t);
        TESSERA_UNROLL
        for (int pair = 0; pair < 2; ++pair)
          a[step][2 * pair + r] = and_xor(word >> (8 * pair), 0x00ff00ffu, 0x00800080u);
      }
    }
  }
};

template <>
struct BlockBits<formats::IQ4_NL> : BitsOf32<formats::IQ4_NL, 128, false> {
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    constexpr unsigned kTable[4] = {0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u};
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r)
      look_up_operands(kTable, rows.word(r, group * formats::IQ4_NL::kBytes + 2, 4 * t), r, a);
  }
};

template <>
struct BlockBits<formats::MXFP4> : BitsOf<32, 12, 0, false> {
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    constexpr unsigned kTable[4] = {0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u};
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r)
      look_up_operands(kTable, rows.word(r, group * formats::MXFP4::kBytes + 1, 4 * t), r, a);
  }
  TESSERA_DEVICE float scale(int group, int, int r) const {
    return formats::MXFP4::step<float>(rows.row[r] + group * formats::MXFP4::kBytes, 0).step;
  }
};

// ---- Blocks of 256: a piece is one.

/// Q4_K and Q5_K: six-bit steps and offsets of eight groups; a word's upper bits are the next group's.
template <bool kHasFifthBits>
struct BitsOfFourBitK : BitsOf<32, 0, 8, true, 8> {
  static constexpr int kPlaces = 2;
  float scales[2], offset_scales[2];
  unsigned steps[2][2];  // bytes
  unsigned offset[2];    // of groups 2 t and 2 t + 1
  Vector<unsigned, 2> fifth[2], nibbles[2];

  TESSERA_DEVICE void load(const Rows& piece, int lane_of_row) {
    rows = piece;
    t = lane_of_row;
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const auto head = *reinterpret_cast<const Vector<unsigned, 4>*>(rows.row[r]);
      const unsigned(&word)[4] = head.element;
      scales[r] = to_float(f16{static_cast<unsigned short>(word[0])});
      offset_scales[r] = -to_float(f16{static_cast<unsigned short>(word[0] >> 16)});
      steps[r][0] = word[1] & 0x3f3f3f3fu;
      steps[r][1] = (word[3] & 0x0f0f0f0fu) | (word[1] >> 2 & 0x30303030u);
      const unsigned four =
          t < 2 ? word[2] & 0x3f3f3f3fu : (word[3] >> 4 & 0x0f0f0f0fu) | (word[2] >> 2 & 0x30303030u);
      offset[r] = spread_bytes(t % 2 == 0 ? four : four >> 16, 0, 1);
      if (kHasFifthBits) fifth[r] = *reinterpret_cast<const Vector<unsigned, 2>*>(rows.row[r] + 16 + 8 * t);
    }
  }
  static TESSERA_DEVICE int place(int group) { return group % 2; }
  TESSERA_DEVICE void operands(int group, BlockOperands& a) {
    const bool is_high = group % 2 != 0;
    const int bits = is_high ? 4 : 0;
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (!is_high) {
        nibbles[r] = *reinterpret_cast<const Vector<unsigned, 2>*>(rows.row[r] + (kHasFifthBits ? 48 : 16) +
                                                                   group / 2 * 32 + 8 * t);
      }
      TESSERA_UNROLL
      for (int s = 0; s < 2; ++s) {
        TESSERA_UNROLL
        for (int pair = 0; pair < 2; ++pair) {
          const unsigned word = nibbles[r].element[s] >> (8 * pair);
          unsigned operand = word & 0x000f000fu << bits;
          if (kHasFifthBits) {
            operand =
                and_or(word, 0x000f000fu << bits,
                       moved_bits(fifth[r].element[s], 4 + bits - 8 * pair - group, 0x00100010u << bits));
          }
          a[s][2 * pair + r] = operand;
        }
      }
    }
  }
  TESSERA_DEVICE float scale(int group, int, int r) const {
    return number_of_byte(steps[r][group / 4], group % 4);
  }
  TESSERA_DEVICE void offsets(unsigned (&a)[4]) const {
    a[0] = a[2] = offset[0];
    a[1] = a[3] = offset[1];
  }
  TESSERA_DEVICE float final_scale(int r) const { return scales[r] * kUnit * kUnit; }
  TESSERA_DEVICE float final_offset_scale(int r) const { return offset_scales[r] * kUnit; }
};
template <>
struct BlockBits<formats::Q4_K> : BitsOfFourBitK<false> {};
template <>
struct BlockBits<formats::Q5_K> : BitsOfFourBitK<true> {};

template <>
struct BlockBits<formats::Q6_K> : BitsOf<16, 32, 0, true, 4, true> {
  static constexpr int kPlaces = 2;
  unsigned steps[2][4];                  // bytes, + 128
  unsigned lower[2][2][2], upper[2][2];  // [row][step][quarter]

  TESSERA_DEVICE void load(const Rows& piece, int lane_of_row) {
    rows = piece;
    t = lane_of_row;
    TESSERA_UNROLL
    for (int i = 0; i < 8; ++i) steps[i / 4][i % 4] = rows.word(i / 4, 192 + i % 4 * 4) ^ 0x80808080u;
  }
  static TESSERA_DEVICE int place(int group) { return group % 4 / 2; }
  TESSERA_DEVICE void operands(int group, BlockOperands& a) {
    const int half = group / 4, quarter = group % 4;
    const int bits = quarter < 2 ? 0 : 4;
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2, s = i % 2;
      if (quarter == 0) {
        upper[r][s] = rows.word(r, 128 + 32 * half + 16 * s, 4 * t);
        lower[r][s][0] = rows.word(r, 64 * half + 16 * s, 4 * t);
        lower[r][s][1] = rows.word(r, 64 * half + 32 + 16 * s, 4 * t);
      }
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        const unsigned above =
            moved_bits(upper[r][s], 4 + bits - 8 * pair - 2 * quarter, 0x00300030u << bits);
        a[s][2 * pair + r] = and_or(lower[r][s][quarter % 2] >> (8 * pair), 0x000f000fu << bits, above);
      }
    }
  }
  TESSERA_DEVICE float scale(int group, int step, int r) const {
    const int byte = 2 * group + step;
    return number_of_biased_byte(steps[r][byte / 4], byte % 4, 128, rows.above);
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 208) * kUnit; }
};

/// Two bits of four bytes where they stand, those of group % 4.
TESSERA_DEVICE unsigned two_bits(unsigned word, int group, int pair) {
  return word >> (8 * pair) & 0x00030003u << (2 * (group % 4));
}

template <>
struct BlockBits<formats::Q2_K> : BitsOf<16, 0, 16, true> {
  static constexpr int kPlaces = 4;
  unsigned steps[2][4];
  unsigned word[2][2];

  TESSERA_DEVICE void load(const Rows& piece, int lane_of_row) {
    rows = piece;
    t = lane_of_row;
    TESSERA_UNROLL
    for (int i = 0; i < 8; ++i) steps[i / 4][i % 4] = rows.word(i / 4, i % 4 * 4);
  }
  static TESSERA_DEVICE int place(int group) { return group % 4; }
  TESSERA_DEVICE void operands(int group, BlockOperands& a) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2, s = i % 2;
      if (group % 4 == 0) word[r][s] = rows.word(r, 16 + group / 4 * 32 + 16 * s, 4 * t);
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair) a[s][2 * pair + r] = two_bits(word[r][s], group, pair);
    }
  }
  TESSERA_DEVICE float scale(int group, int step, int r) const {
    const int byte = 2 * group + step;
    return number_of_byte(steps[r][byte / 4] & 0x0f0f0f0fu, byte % 4);
  }
  TESSERA_DEVICE void offsets(unsigned (&a)[4]) const {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i % 2, eight = i / 2;
      const unsigned four = t < 2 ? steps[r][2 * eight] : steps[r][2 * eight + 1];
      const unsigned upper = four >> 4 & 0x0f0f0f0fu;
      a[i] = spread_bytes(t % 2 == 0 ? upper : upper >> 16, 0, 1);
    }
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 80) * kUnit * kUnit; }
  TESSERA_DEVICE float final_offset_scale(int r) const { return -rows.half(r, 82) * kUnit; }
};

template <>
struct BlockBits<formats::Q3_K> : BitsOf<16, 4, 0, true, 4, true> {
  static constexpr int kPlaces = 4;
  unsigned steps[2][4];
  unsigned third[2][2], word[2][2];

  TESSERA_DEVICE void load(const Rows& piece, int lane_of_row) {
    rows = piece;
    t = lane_of_row;
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const unsigned upper = rows.word(r, 104);
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        steps[r][i] = (rows.word(r, 96 + i % 2 * 4) >> (i / 2 * 4) & 0x0f0f0f0fu) |
                      (upper >> (2 * i) & 0x03030303u) << 4;
      }
      third[r][0] = rows.word(r, 0, 4 * t);
      third[r][1] = rows.word(r, 16, 4 * t);
    }
  }
  static TESSERA_DEVICE int place(int group) { return group % 4; }
  TESSERA_DEVICE void operands(int group, BlockOperands& a) {
    const int bits = 2 * (group % 4) + 2;  // below the third
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2, s = i % 2;
      if (group % 4 == 0) word[r][s] = rows.word(r, 32 + group / 4 * 32 + 16 * s, 4 * t);
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        a[s][2 * pair + r] = and_or(word[r][s] >> (8 * pair), 0x00030003u << (bits - 2),
                                    moved_bits(third[r][s], bits - 8 * pair - group, 0x00010001u << bits));
      }
    }
  }
  TESSERA_DEVICE float scale(int group, int step, int r) const {
    const int byte = 2 * group + step;
    return number_of_biased_byte(steps[r][byte / 4], byte % 4, 32, rows.above);
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 108) * kUnit; }
};

template <>
struct BlockBits<formats::TQ2_0> : BitsOf<32, 1, 0, true, 4, true> {
  static constexpr int kPlaces = 4;
  unsigned word[2][2];

  static TESSERA_DEVICE int place(int group) { return group % 4; }
  TESSERA_DEVICE void operands(int group, BlockOperands& a) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2, s = i % 2;
      if (group % 4 == 0) word[r][s] = rows.word(r, group / 4 * 32 + 16 * s, 4 * t);
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair) a[s][2 * pair + r] = two_bits(word[r][s], group, pair);
    }
  }
  TESSERA_DEVICE float scale(int, int, int) const { return 1.0f; }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 64) * kUnit; }
};

template <>
struct BlockBits<formats::IQ4_XS> : BitsOf<32, 128, 0, false> {
  unsigned upper[2], lower[2];

  TESSERA_DEVICE void load(const Rows& piece, int lane_of_row) {
    rows = piece;
    t = lane_of_row;
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      upper[r] = rows.half_bits(r, 2);
      lower[r] = rows.word(r, 4);
    }
  }
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    constexpr unsigned kTable[4] = {0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u};
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) look_up_operands(kTable, rows.word(r, 8 + 16 * group, 4 * t), r, a);
  }
  TESSERA_DEVICE float scale(int group, int, int r) const {
    const unsigned step = (lower[r] >> (4 * group) & 0xfu) | (upper[r] >> (2 * group) & 3u) << 4;
    return float_of_bits(0x4b000000u | step) - (8388608.0f + 32.0f);
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 0) * kUnit; }
};

}  // namespace tessera::kernels::bits
