#pragma once

#include "common/rows.cuh"
#include "sm80/block_rows.cuh"
#include "sm80/gemm_blocks_traits.h"
#include "sm80/ptx.cuh"

// Weights of blocks as the fp16 operands of tensor cores, without rounding and without converting them: bits
// of an integer below 1024 are by themselves the (subnormal) fp16 number integer * 2^-24, which the tensor
// cores multiply as any other. So a mask makes two operands. What the integers stand too high in their words,
// by a place of so many bits, x is divided by; what they are too large, a bias, is taken off by the sum that
// the products are added to.
//
// A piece is 256 columns of a row, eight groups of 32. Lane 4 g + t takes rows g and g + 8 of a tile of w,
// and of each group eight columns, four for each of two instructions of 16 columns (steps). Its sums of
// products are those of kXRows groups alone (2, 4 or 8: XOfPiece), from first_group_of_lane() on; it has
// their scales.
//
//   BlockBits<Format, kXRows>
//     kStepColumns            columns whose products one scale() multiplies, 16 or 32
//     kBias                   by which the operands' integers are too large
//     place(group)            by how many bits a group's operands stand too high
//     kSecondPlace            times what the second step's stand higher than the first's
//     kOffsetGroups           groups of a piece that have an offset: 0, 8 or 16
//     kIsInterleaved          an operand has columns (0, 2) or (1, 3) of four; else (0, 1) or (2, 3)
//     kLaneColumns            lane t's columns begin at 4 t and 16 + 4 t, or at 8 t (8 in a row)
//     load(rows, t)           what all groups share
//     operands(group, a)      of both steps; groups are asked for in order
//     scale(i, step, r)       fp32, of the lane's i-th group and row g + 8 r
//     offsets(a)              operand a of the products with sums of x: pairs of groups 2 t (and 2 t + 8)
//     final_scale(r), final_offset_scale(r)   with kUnit for operands (steps, offsets) that are bits
//     bytes(j, a), scale_of_bytes(r)          of Q4_K, whose one row of x is multiplied as bytes (XInBytes)

namespace tessera::kernels::bits {

/// What makes an operand's number of the integer that its bits are.
constexpr float kUnit = 16777216.0f;

/// The first of the groups whose sums of products lane 4 g + t has.
template <int kXRows>
TESSERA_DEVICE int first_group_of_lane(int t) {
  return 2 * t / kXRows * kXRows;
}

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
template <int kXRows, int kStepColumns_, int kBias_, int kOffsetGroups_, bool kIsInterleaved_,
          int kLaneColumns_ = 4, bool kIsShifted = false>
struct BitsOf {
  using Rows = BitsRows<kIsShifted>;
  static constexpr int kStepColumns = kStepColumns_;
  static constexpr int kBias = kBias_;
  static constexpr int kSecondPlace = 1;
  static constexpr int kOffsetGroups = kOffsetGroups_;
  static constexpr bool kIsInterleaved = kIsInterleaved_;
  static constexpr int kLaneColumns = kLaneColumns_;
  Rows rows;
  int t, first_group;

  TESSERA_DEVICE void load(const Rows& piece, int lane_of_row) {
    rows = piece;
    t = lane_of_row;
    first_group = first_group_of_lane<kXRows>(t);
  }
  static TESSERA_DEVICE int place(int) { return 0; }
  TESSERA_DEVICE void offsets(unsigned (&)[4]) const {}
  TESSERA_DEVICE float final_scale(int) const { return kUnit; }
  TESSERA_DEVICE float final_offset_scale(int) const { return 1.0f; }
};

template <class Format, int kXRows>
struct BlockBits;

// ---- Blocks of 32: a piece has eight.

/// A half, perhaps another for the offset, then integers.
template <class Format, int kXRows, int kBias, bool kIsInterleaved>
struct BitsOf32 : BitsOf<kXRows, 32, kBias, Format::kHasOffset ? 8 : 0, kIsInterleaved> {
  TESSERA_DEVICE float scale(int i, int, int r) const {
    return this->rows.half(r, this->first_group * Format::kBytes + i * Format::kBytes);
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
template <class Format, int kXRows, int kBias>
struct BitsOfNibbles : BitsOf32<Format, kXRows, kBias, true> {
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
template <int kXRows>
struct BlockBits<formats::Q4_0, kXRows> : BitsOfNibbles<formats::Q4_0, kXRows, 8> {};
template <int kXRows>
struct BlockBits<formats::Q4_1, kXRows> : BitsOfNibbles<formats::Q4_1, kXRows, 0> {};

template <class Format, int kXRows, int kBias>
struct BitsOfFiveBits : BitsOf32<Format, kXRows, kBias, true> {
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
template <int kXRows>
struct BlockBits<formats::Q5_0, kXRows> : BitsOfFiveBits<formats::Q5_0, kXRows, 16> {};
template <int kXRows>
struct BlockBits<formats::Q5_1, kXRows> : BitsOfFiveBits<formats::Q5_1, kXRows, 0> {};

template <int kXRows>
struct BlockBits<formats::Q8_0, kXRows> : BitsOf32<formats::Q8_0, kXRows, 128, true> {
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      TESSERA_UNROLL
      for (int step = 0; step < 2; ++step) {
        const unsigned word = this->rows.word(r, group * formats::Q8_0::kBytes + 2 + 16 * step, 4 * this->t);
        TESSERA_UNROLL
        for (int pair = 0; pair < 2; ++pair)
          a[step][2 * pair + r] = and_xor(word >> (8 * pair), 0x00ff00ffu, 0x00800080u);
      }
    }
  }
};

template <int kXRows>
struct BlockBits<formats::IQ4_NL, kXRows> : BitsOf32<formats::IQ4_NL, kXRows, 128, false> {
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    constexpr unsigned kTable[4] = {0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u};
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r)
      look_up_operands(kTable, this->rows.word(r, group * formats::IQ4_NL::kBytes + 2, 4 * this->t), r, a);
  }
};

template <int kXRows>
struct BlockBits<formats::MXFP4, kXRows> : BitsOf<kXRows, 32, 12, 0, false> {
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    constexpr unsigned kTable[4] = {0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u};
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r)
      look_up_operands(kTable, this->rows.word(r, group * formats::MXFP4::kBytes + 1, 4 * this->t), r, a);
  }
  TESSERA_DEVICE float scale(int i, int, int r) const {
    return formats::MXFP4::step<float>(this->rows.row[r] + (this->first_group + i) * formats::MXFP4::kBytes,
                                       0)
        .step;
  }
};

// ---- Blocks of 256: a piece is one.

/// Q4_K and Q5_K: six-bit steps and offsets of eight groups; a word's upper bits are the next group's.
template <int kXRows, bool kHasFifthBits>
struct BitsOfFourBitK : BitsOf<kXRows, 32, 0, 8, true, 8> {
  using Base = BitsOf<kXRows, 32, 0, 8, true, 8>;
  using Base::rows, Base::t;
  float scales[2], offset_scales[2];
  unsigned steps[2][(kXRows + 3) / 4];  // bytes; of two groups, spread
  unsigned offset[2];                   // of groups 2 t and 2 t + 1
  Vector<unsigned, 2> fifth[2], nibbles[2];

  TESSERA_DEVICE void load(const typename Base::Rows& piece, int lane_of_row) {
    Base::load(piece, lane_of_row);
    // Lanes of the upper four groups have steps' lower bits in another word than the upper ones.
    const unsigned low = t < 2 ? 0x3f3f3f3fu : 0x0f0f0f0fu, high = t < 2 ? 0u : 0x30303030u;
    const unsigned of_two = 0x4140u + 0x0202u * static_cast<unsigned>(t % 2);
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const auto head = *reinterpret_cast<const Vector<unsigned, 4>*>(rows.row[r]);
      const unsigned(&word)[4] = head.element;
      scales[r] = to_float(f16{static_cast<unsigned short>(word[0])});
      offset_scales[r] = -to_float(f16{static_cast<unsigned short>(word[0] >> 16)});
      if constexpr (kXRows == 8) {
        steps[r][0] = word[1] & 0x3f3f3f3fu;
        steps[r][1] = (word[3] & 0x0f0f0f0fu) | (word[1] >> 2 & 0x30303030u);
      } else {
        steps[r][0] = and_or(t < 2 ? word[1] : word[3], low, word[1] >> 2 & high);
        if (kXRows == 2) steps[r][0] = byte_permute(steps[r][0], 0u, of_two);
      }
      offset[r] = byte_permute(and_or(t < 2 ? word[2] : word[3] >> 4, low, word[2] >> 2 & high), 0u, of_two);
      if (kHasFifthBits) fifth[r] = *reinterpret_cast<const Vector<unsigned, 2>*>(rows.row[r] + 16 + 8 * t);
    }
  }
  static TESSERA_DEVICE int place(int group) { return group % 2 * 4; }
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
  /// Operand a of groups 2 j and 2 j + 1 as bytes, each a column of the first and, 16 times that, one of the
  /// second.
  TESSERA_DEVICE void bytes(int j, unsigned (&a)[4]) const {
    static_assert(!kHasFifthBits);
    // Word by word, although two stand side by side: an operand's words of a row are no neighbours.
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i)
      a[i] = *reinterpret_cast<const volatile unsigned*>(rows.row[i % 2] + 16 + j * 32 + 8 * t + i / 2 * 4);
  }
  TESSERA_DEVICE float scale_of_bytes(int r) const { return scales[r] * kUnit; }
  TESSERA_DEVICE float scale(int i, int, int r) const {
    if constexpr (kXRows == 2)
      return to_float(f16{static_cast<unsigned short>(i == 0 ? steps[r][0] : steps[r][0] >> 16)});
    return number_of_byte(steps[r][i / 4], i % 4);
  }
  TESSERA_DEVICE void offsets(unsigned (&a)[4]) const {
    a[0] = a[2] = offset[0];
    a[1] = a[3] = offset[1];
  }
  TESSERA_DEVICE float final_scale(int r) const { return scales[r] * kUnit * kUnit; }
  TESSERA_DEVICE float final_offset_scale(int r) const { return offset_scales[r] * kUnit; }
};
template <int kXRows>
struct BlockBits<formats::Q4_K, kXRows> : BitsOfFourBitK<kXRows, false> {};
template <int kXRows>
struct BlockBits<formats::Q5_K, kXRows> : BitsOfFourBitK<kXRows, true> {};

template <int kXRows>
struct BlockBits<formats::Q6_K, kXRows> : BitsOf<kXRows, 16, 32, 0, true, 4, true> {
  using Base = BitsOf<kXRows, 16, 32, 0, true, 4, true>;
  using Base::rows, Base::t, Base::first_group;
  unsigned steps[2][kXRows / 2];         // bytes, + 128
  unsigned lower[2][2][2], upper[2][2];  // [row][step][quarter]

  TESSERA_DEVICE void load(const typename Base::Rows& piece, int lane_of_row) {
    Base::load(piece, lane_of_row);
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      TESSERA_UNROLL
      for (int i = 0; i < kXRows / 2; ++i)
        steps[r][i] = rows.word(r, 192 + i * 4, 2 * first_group) ^ 0x80808080u;
    }
  }
  static TESSERA_DEVICE int place(int group) { return group % 4 / 2 * 4; }
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
  TESSERA_DEVICE float scale(int i, int step, int r) const {
    const int byte = 2 * i + step;
    return number_of_biased_byte(steps[r][byte / 4], byte % 4, 128, rows.above);
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 208) * kUnit; }
};

/// Two bits of four bytes where they stand, those of group % 4.
TESSERA_DEVICE unsigned two_bits(unsigned word, int group, int pair) {
  return word >> (8 * pair) & 0x00030003u << (2 * (group % 4));
}

template <int kXRows>
struct BlockBits<formats::Q2_K, kXRows> : BitsOf<kXRows, 16, 0, 16, true> {
  using Base = BitsOf<kXRows, 16, 0, 16, true>;
  using Base::rows, Base::t, Base::first_group;
  unsigned steps[2][kXRows / 2];
  unsigned word[2][2];

  TESSERA_DEVICE void load(const typename Base::Rows& piece, int lane_of_row) {
    Base::load(piece, lane_of_row);
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      TESSERA_UNROLL
      for (int i = 0; i < kXRows / 2; ++i) steps[r][i] = rows.word(r, i * 4, 2 * first_group) & 0x0f0f0f0fu;
    }
  }
  static TESSERA_DEVICE int place(int group) { return group % 4 * 2; }
  TESSERA_DEVICE void operands(int group, BlockOperands& a) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2, s = i % 2;
      if (group % 4 == 0) word[r][s] = rows.word(r, 16 + group / 4 * 32 + 16 * s, 4 * t);
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair) a[s][2 * pair + r] = two_bits(word[r][s], group, pair);
    }
  }
  TESSERA_DEVICE float scale(int i, int step, int r) const {
    const int byte = 2 * i + step;
    return number_of_byte(steps[r][byte / 4], byte % 4);
  }
  TESSERA_DEVICE void offsets(unsigned (&a)[4]) const {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i)
      a[i] = spread_bytes(rows.half_bits(i % 2, 2 * t + i / 2 * 8) >> 4 & 0x0f0fu, 0, 1);
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 80) * kUnit * kUnit; }
  TESSERA_DEVICE float final_offset_scale(int r) const { return -rows.half(r, 82) * kUnit; }
};

template <int kXRows>
struct BlockBits<formats::Q3_K, kXRows> : BitsOf<kXRows, 16, 4, 0, true, 4, true> {
  using Base = BitsOf<kXRows, 16, 4, 0, true, 4, true>;
  using Base::rows, Base::t, Base::first_group;
  unsigned steps[2][kXRows / 2];
  unsigned third[2][2], word[2][2];

  TESSERA_DEVICE void load(const typename Base::Rows& piece, int lane_of_row) {
    Base::load(piece, lane_of_row);
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const unsigned upper = rows.word(r, 104);
      TESSERA_UNROLL
      for (int i = 0; i < kXRows / 2; ++i) {
        const int four = first_group / 2 + i;  // steps
        steps[r][i] = (rows.word(r, 96, four % 2 * 4) >> (four / 2 * 4) & 0x0f0f0f0fu) |
                      (upper >> (2 * four) & 0x03030303u) << 4;
      }
      third[r][0] = rows.word(r, 0, 4 * t);
      third[r][1] = rows.word(r, 16, 4 * t);
    }
  }
  static TESSERA_DEVICE int place(int group) { return group % 4 * 2; }
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
  TESSERA_DEVICE float scale(int i, int step, int r) const {
    const int byte = 2 * i + step;
    return number_of_biased_byte(steps[r][byte / 4], byte % 4, 32, rows.above);
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 108) * kUnit; }
};

template <int kXRows>
struct BlockBits<formats::TQ2_0, kXRows> : BitsOf<kXRows, 32, 1, 0, true, 4, true> {
  using Base = BitsOf<kXRows, 32, 1, 0, true, 4, true>;
  using Base::rows, Base::t;
  unsigned word[2][2];

  static TESSERA_DEVICE int place(int group) { return group % 4 * 2; }
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

template <int kXRows>
struct BlockBits<formats::IQ4_XS, kXRows> : BitsOf<kXRows, 32, 128, 0, false> {
  using Base = BitsOf<kXRows, 32, 128, 0, false>;
  using Base::rows, Base::t, Base::first_group;
  unsigned upper[2], lower[2];  // of the lane's groups, from the lowest bits on

  TESSERA_DEVICE void load(const typename Base::Rows& piece, int lane_of_row) {
    Base::load(piece, lane_of_row);
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      upper[r] = rows.half_bits(r, 2) >> (2 * first_group);
      lower[r] = rows.word(r, 4) >> (4 * first_group);
    }
  }
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    constexpr unsigned kTable[4] = {0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u};
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) look_up_operands(kTable, rows.word(r, 8 + 16 * group, 4 * t), r, a);
  }
  TESSERA_DEVICE float scale(int i, int, int r) const {
    const unsigned step = (lower[r] >> (4 * i) & 0xfu) | (upper[r] >> (2 * i) & 3u) << 4;
    return float_of_bits(0x4b000000u | step) - (8388608.0f + 32.0f);
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 0) * kUnit; }
};

}  // namespace tessera::kernels::bits
