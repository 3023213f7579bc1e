#pragma once

#include "common/rows.cuh"
#include "sm80/block_rows.cuh"
#include "sm80/gemm_blocks_traits.h"
#include "sm80/ptx.cuh"

// Weights of blocks as the fp16 operands of tensor cores, without rounding: small integers, several of which
// come out of a word at once. Bits below the exponent of 1024 are 1024 + the integer, whose last place is 1.
//
// A piece is 256 columns of a row, eight groups of 32. Lane 4 g + t takes rows g and g + 8 of a tile of w,
// row g of a tile of x, and of each group eight columns, four for each of two instructions of 16 columns
// (steps).
//
//   BlockFragment<Format>
//     kStepColumns            columns whose products one scale() multiplies, 16 or 32; 256: the integers
//                             already have their groups' integer steps in them
//     kOffsetGroups           groups of a piece that have an offset: 0, 8 or 16
//     kIsInterleaved          an operand has columns (0, 2) or (1, 3) of four; else (0, 1) or (2, 3)
//     kLaneColumns            lane t's columns begin at 4 t and 16 + 4 t, or at 8 t (8 in a row)
//     load(rows, t)           what all groups share
//     operands(group, a)      of both steps; groups are asked for in order
//     scale(group, step, r)   fp32, of row g + 8 r
//     offsets(a)              operand a of the products with sums of x: pairs of groups 2 t (and 2 t + 8)
//     final_scale(r), final_offset_scale(r)

namespace tessera::kernels {

/// An fp16 number twice.
TESSERA_TRAIT unsigned both_halves(unsigned bits) { return bits | bits << 16; }

constexpr unsigned kAbove = both_halves(0x6400);  // 1024
constexpr unsigned kMinus1024 = both_halves(0xe400);

/// Bytes `first` and `second` of `word`, each as 1024 + itself.
TESSERA_DEVICE unsigned spread_bytes(unsigned word, int first, int second) {
  return byte_permute(word, 0x64646464u, static_cast<unsigned>(first | second << 8) | 0x5040u);
}

/// 1024 + q + kBias as q, for both halves.
template <int kBias>
TESSERA_DEVICE unsigned without_bias(unsigned above) {
  return add_x2_f16(above, both_halves(0xe400u + kBias));
}
/// 1024 + 16 (q + kBias) as q.
template <int kBias>
TESSERA_DEVICE unsigned without_bias_of_16(unsigned above) {
  return fma_x2<f16>(above, both_halves(0x2c00), both_halves(0xd400u + 16 * kBias));
}

/// fp32 of a byte that is the number + 128.
TESSERA_DEVICE float float_of_biased_byte(unsigned word, int byte) {
  return float_of_bits(byte_permute(word, 0x4b000000u, 0x7440u | static_cast<unsigned>(byte))) -
         (8388608.0f + 128.0f);
}

/// Operands of row r from a word of 4-bit places: low bits are columns 4 t to 4 t + 3, high ones 16 further
/// on. The table has numbers + 128.
TESSERA_DEVICE void look_up_operands(const unsigned (&table)[4], unsigned word, int r, BlockOperands& a) {
  TESSERA_UNROLL
  for (int pair = 0; pair < 2; ++pair) {
    const unsigned bytes = look_up(table, word >> (16 * pair));
    a[0][2 * pair + r] = without_bias<128>(spread_bytes(bytes, 0, 2));
    a[1][2 * pair + r] = without_bias<128>(spread_bytes(bytes, 1, 3));
  }
}

/// What most formats share.
template <int kStepColumns_, int kOffsetGroups_, bool kIsInterleaved_, int kLaneColumns_ = 4,
          bool kIsShifted = false>
struct FragmentOf {
  using Rows = PieceRows<kIsShifted>;
  static constexpr int kStepColumns = kStepColumns_;
  static constexpr int kOffsetGroups = kOffsetGroups_;
  static constexpr bool kIsInterleaved = kIsInterleaved_;
  static constexpr int kLaneColumns = kLaneColumns_;
  Rows rows;
  int t;

  TESSERA_DEVICE void load(const Rows& piece, int lane_of_row) {
    rows = piece;
    t = lane_of_row;
  }
  TESSERA_DEVICE float scale(int, int, int) const { return 1.0f; }
  TESSERA_DEVICE void offsets(unsigned (&)[4]) const {}
  TESSERA_DEVICE float final_scale(int) const { return 1.0f; }
  TESSERA_DEVICE float final_offset_scale(int) const { return 1.0f; }
};

template <class Format>
struct BlockFragment;

// ---- Blocks of 32: a piece has eight.

/// A half, perhaps another for the offset, then integers.
template <class Format, bool kIsInterleaved>
struct FragmentOf32 : FragmentOf<32, Format::kHasOffset ? 8 : 0, kIsInterleaved> {
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

template <class Format, int kBias>
struct FragmentOfNibbles : FragmentOf32<Format, true> {
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const unsigned word = this->rows.word(r, group * Format::kBytes + Format::kBytes - 16, 4 * this->t);
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        a[0][2 * pair + r] = without_bias<kBias>(and_or(word >> (8 * pair), 0x000f000fu, kAbove));
        a[1][2 * pair + r] = without_bias_of_16<kBias>(and_or(word >> (8 * pair), 0x00f000f0u, kAbove));
      }
    }
  }
};
template <>
struct BlockFragment<formats::Q4_0> : FragmentOfNibbles<formats::Q4_0, 8> {};
template <>
struct BlockFragment<formats::Q4_1> : FragmentOfNibbles<formats::Q4_1, 0> {};

template <class Format, int kBias>
struct FragmentOfFiveBits : FragmentOf32<Format, true> {
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int end = (group + 1) * Format::kBytes;
      const unsigned fifth = this->rows.word(r, end - 20) >> (4 * this->t);
      const unsigned word = this->rows.word(r, end - 16, 4 * this->t);
      TESSERA_UNROLL
      for (int step = 0; step < 2; ++step) {
        const unsigned bits = fifth >> (16 * step);  // of columns 0 to 3, the lowest four
        const unsigned nibbles = word >> (4 * step);
        a[step][r] =
            without_bias<kBias>(and_or(nibbles, 0x000f000fu, kAbove) | (bits & 1) << 4 | (bits & 4) << 18);
        a[step][2 + r] = without_bias<kBias>(and_or(nibbles >> 8, 0x000f000fu, kAbove) | (bits & 2) << 3 |
                                             (bits & 8) << 17);
      }
    }
  }
};
template <>
struct BlockFragment<formats::Q5_0> : FragmentOfFiveBits<formats::Q5_0, 16> {};
template <>
struct BlockFragment<formats::Q5_1> : FragmentOfFiveBits<formats::Q5_1, 0> {};

template <>
struct BlockFragment<formats::Q8_0> : FragmentOf32<formats::Q8_0, false> {
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      TESSERA_UNROLL
      for (int step = 0; step < 2; ++step) {
        const unsigned word =
            rows.word(r, group * formats::Q8_0::kBytes + 2 + 16 * step, 4 * t) ^ 0x80808080u;
        a[step][r] = without_bias<128>(spread_bytes(word, 0, 1));
        a[step][2 + r] = without_bias<128>(spread_bytes(word, 2, 3));
      }
    }
  }
};

template <>
struct BlockFragment<formats::IQ4_NL> : FragmentOf32<formats::IQ4_NL, false> {
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    constexpr unsigned kTable[4] = {0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u};
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r)
      look_up_operands(kTable, rows.word(r, group * formats::IQ4_NL::kBytes + 2, 4 * t), r, a);
  }
};

/// Numbers of a sign, two bits of an exponent and one of a mantissa are fp16's as they are, but 2^14 times as
/// small; those of 0 as exponent are subnormal in both. The format's integers are twice as large.
template <>
struct BlockFragment<formats::MXFP4> : FragmentOf<32, 0, true> {
  TESSERA_DEVICE void operands(int group, BlockOperands& a) const {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const unsigned word = rows.any_word(r, group * formats::MXFP4::kBytes + 1, 4 * t);
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        a[0][2 * pair + r] = numbers_at(word, 8 * pair);
        a[1][2 * pair + r] = numbers_at(word, 8 * pair + 4);
      }
    }
  }
  TESSERA_DEVICE float scale(int group, int, int r) const {
    return formats::MXFP4::step<float>(rows.row[r] + rows.behind[r] + group * formats::MXFP4::kBytes, 0).step;
  }
  TESSERA_DEVICE float final_scale(int) const { return 32768.0f; }

 private:
  /// Those from `bit` and from bit + 16 on.
  TESSERA_DEVICE static unsigned numbers_at(unsigned word, int bit) {
    const unsigned magnitudes = bit <= 9 ? word << maximum(9 - bit, 0) : word >> maximum(bit - 9, 0);
    return (word << (12 - bit) & 0x80008000u) | (magnitudes & 0x0e000e00u);
  }
};

// ---- Blocks of 256: a piece is one.

/// Q4_K and Q5_K: six-bit steps and offsets of eight groups. Integers times steps are below 2048.
template <bool kHasFifthBits>
struct FragmentOfFourBitK : FragmentOf<256, 8, true, 8> {
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
      offset[r] = without_bias<0>(spread_bytes(t % 2 == 0 ? four : four >> 16, 0, 1));
      if (kHasFifthBits) fifth[r] = *reinterpret_cast<const Vector<unsigned, 2>*>(rows.row[r] + 16 + 8 * t);
    }
  }
  TESSERA_DEVICE void operands(int group, BlockOperands& a) {
    const bool is_high = group % 2 != 0;
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (!is_high) {
        nibbles[r] = *reinterpret_cast<const Vector<unsigned, 2>*>(rows.row[r] + (kHasFifthBits ? 48 : 16) +
                                                                   group / 2 * 32 + 8 * t);
      }
      // High bits are 16 times the integer: step / 16 for them.
      const unsigned above = spread_bytes(steps[r][group / 4], group % 4, group % 4);
      const unsigned step = is_high ? without_bias_of_16<0>(above) : without_bias<0>(above);
      const unsigned bias = fma_x2<f16>(step, kMinus1024, 0);
      const unsigned mask = is_high ? 0x00f000f0u : 0x000f000fu;
      TESSERA_UNROLL
      for (int s = 0; s < 2; ++s) {
        TESSERA_UNROLL
        for (int pair = 0; pair < 2; ++pair) {
          unsigned bits = and_or(nibbles[r].element[s] >> (8 * pair), mask, kAbove);
          if (kHasFifthBits) {
            const int place = 8 * pair + group;  // of the first byte's bit; wanted at 4 or 8
            const int wanted = is_high ? 8 : 4;
            const unsigned word = fifth[r].element[s];
            bits = and_or(place < wanted ? word << (wanted - place) : word >> (place - wanted),
                          0x00010001u << wanted, bits);
          }
          a[s][2 * pair + r] = fma_x2<f16>(bits, step, bias);
        }
      }
    }
  }
  TESSERA_DEVICE void offsets(unsigned (&a)[4]) const {
    a[0] = a[2] = offset[0];
    a[1] = a[3] = offset[1];
  }
  TESSERA_DEVICE float final_scale(int r) const { return scales[r]; }
  TESSERA_DEVICE float final_offset_scale(int r) const { return offset_scales[r]; }
};
template <>
struct BlockFragment<formats::Q4_K> : FragmentOfFourBitK<false> {};
template <>
struct BlockFragment<formats::Q5_K> : FragmentOfFourBitK<true> {};

/// Integers times steps would not fit fp16.
template <>
struct BlockFragment<formats::Q6_K> : FragmentOf<16, 0, true, 4, true> {
  unsigned steps[2][4];                  // bytes, + 128
  unsigned lower[2][2][2], upper[2][2];  // [row][step][quarter]

  TESSERA_DEVICE void load(const Rows& piece, int lane_of_row) {
    rows = piece;
    t = lane_of_row;
    TESSERA_UNROLL
    for (int i = 0; i < 8; ++i) steps[i / 4][i % 4] = rows.word(i / 4, 192 + i % 4 * 4) ^ 0x80808080u;
  }
  TESSERA_DEVICE void operands(int group, BlockOperands& a) {
    const int half = group / 4, quarter = group % 4;
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2, s = i % 2;
      if (quarter == 0) {
        upper[r][s] = rows.word(r, 128 + 32 * half + 16 * s, 4 * t);
        lower[r][s][0] = rows.word(r, 64 * half + 16 * s, 4 * t);
        lower[r][s][1] = rows.word(r, 64 * half + 32 + 16 * s, 4 * t);
      }
      const unsigned nibbles = lower[r][s][quarter % 2];
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        const int place = 8 * pair + 2 * quarter;  // of the upper bits
        const int wanted = quarter < 2 ? 4 : 8;
        const unsigned moved =
            place < wanted ? upper[r][s] << (wanted - place) : upper[r][s] >> (place - wanted);
        if (quarter < 2) {
          a[s][2 * pair + r] = without_bias<32>(
              and_or(moved, 0x00300030u, and_or(nibbles >> (8 * pair), 0x000f000fu, kAbove)));
        } else {
          a[s][2 * pair + r] = without_bias_of_16<32>(
              and_or(moved, 0x03000300u, and_or(nibbles >> (8 * pair), 0x00f000f0u, kAbove)));
        }
      }
    }
  }
  TESSERA_DEVICE float scale(int group, int step, int r) const {
    const int place = 2 * group + step;
    return float_of_biased_byte(steps[r][place / 4], place % 4);
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 208); }
};

/// Two bits of four bytes, those of groups 2 (group % 4), and 1024.
TESSERA_DEVICE unsigned two_bits(unsigned word, int group, int pair) {
  return and_or(word >> (8 * pair + 2 * (group % 4)), 0x00030003u, kAbove);
}

template <>
struct BlockFragment<formats::Q2_K> : FragmentOf<256, 16, true> {
  unsigned steps[2][4];
  unsigned word[2][2];

  TESSERA_DEVICE void load(const Rows& piece, int lane_of_row) {
    rows = piece;
    t = lane_of_row;
    TESSERA_UNROLL
    for (int i = 0; i < 8; ++i) steps[i / 4][i % 4] = rows.word(i / 4, i % 4 * 4);
  }
  TESSERA_DEVICE void operands(int group, BlockOperands& a) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2, s = i % 2;
      if (group % 4 == 0) word[r][s] = rows.word(r, 16 + group / 4 * 32 + 16 * s, 4 * t);
      const int place = (2 * group + s) % 4;
      const unsigned step =
          without_bias<0>(spread_bytes(steps[r][(2 * group + s) / 4] & 0x0f0f0f0fu, place, place));
      const unsigned bias = fma_x2<f16>(step, kMinus1024, 0);
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair)
        a[s][2 * pair + r] = fma_x2<f16>(two_bits(word[r][s], group, pair), step, bias);
    }
  }
  TESSERA_DEVICE void offsets(unsigned (&a)[4]) const {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i % 2, eight = i / 2;
      const unsigned four = t < 2 ? steps[r][2 * eight] : steps[r][2 * eight + 1];
      const unsigned upper = four >> 4 & 0x0f0f0f0fu;
      a[i] = without_bias<0>(spread_bytes(t % 2 == 0 ? upper : upper >> 16, 0, 1));
    }
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 80); }
  TESSERA_DEVICE float final_offset_scale(int r) const { return -rows.half(r, 82); }
};

template <>
struct BlockFragment<formats::Q3_K> : FragmentOf<256, 0, true, 4, true> {
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
  TESSERA_DEVICE void operands(int group, BlockOperands& a) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2, s = i % 2;
      if (group % 4 == 0) word[r][s] = rows.word(r, 32 + group / 4 * 32 + 16 * s, 4 * t);
      const int place = (2 * group + s) % 4;
      const unsigned step = without_bias<32>(spread_bytes(steps[r][(2 * group + s) / 4], place, place));
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        const int bit = 8 * pair + group;
        const unsigned moved = bit < 2 ? third[r][s] << (2 - bit) : third[r][s] >> (bit - 2);
        const unsigned q = without_bias<4>(and_or(moved, 0x00040004u, two_bits(word[r][s], group, pair)));
        a[s][2 * pair + r] = fma_x2<f16>(q, step, 0);
      }
    }
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 108); }
};

template <>
struct BlockFragment<formats::TQ2_0> : FragmentOf<256, 0, true, 4, true> {
  unsigned word[2][2];

  TESSERA_DEVICE void operands(int group, BlockOperands& a) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2, s = i % 2;
      if (group % 4 == 0) word[r][s] = rows.word(r, group / 4 * 32 + 16 * s, 4 * t);
      TESSERA_UNROLL
      for (int pair = 0; pair < 2; ++pair)
        a[s][2 * pair + r] = without_bias<1>(two_bits(word[r][s], group, pair));
    }
  }
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 64); }
};

template <>
struct BlockFragment<formats::IQ4_XS> : FragmentOf<32, 0, false> {
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
  TESSERA_DEVICE float final_scale(int r) const { return rows.half(r, 0); }
};

}  // namespace tessera::kernels
