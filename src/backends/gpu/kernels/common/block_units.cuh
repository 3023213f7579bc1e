#pragma once

#include "common/gemv_blocks_traits.h"
#include "common/rows.cuh"

// How a lane of gemv_blocks.cu takes a format's blocks apart: 32 columns, a unit, as four octets of
// consecutive columns. An octet's integers become fp32 numbers with few instructions, and those of columns
// that share a step are multiplied with x before the step is:
//
//   sum of w x = step * (sum of integer x) + offset * (sum of x)
//
// Bits of an integer below 1024 are by themselves the subnormal half integer * 2^-24: one `and` makes two of
// them, wherever they stand in the lower ten bits of their half of the word. An integer that is signed is a
// positive one less a constant, which halves subtract exactly, two at a time. AMD's GPUs multiply halves with
// fp32 numbers as they are; others convert them. Products are 2^-24 of what they should be until the step's
// 2^24, so what x has below 2^-78 is not all kept.
//
// BlockUnit<Format> has:
// - kGroups: groups of 4 / kGroups octets that share a step; kHasOffset: else offset() says nothing;
// - column(j): the first column, in the block, of its unit j;
// - octet_column(o): the first of octet o, behind it;
// - load(b, j): reads unit j of block b;
// - octet(o): octet o's numbers, an Octet or what has its functions; step(g), offset(g): of group g.

namespace tessera::kernels {

/// A block in shared memory.
template <class Format>
struct StagedBlock {
  // Of every block of a row that begins at a multiple of 16 bytes.
  static constexpr int kAlignment =
      (Format::kBytes & -Format::kBytes) < kMovedBytes ? (Format::kBytes & -Format::kBytes) : kMovedBytes;
  const unsigned char* row;  // at a multiple of 16 bytes
  int begin;                 // of the block, behind it

  /// Of places whose alignment the block's allows.
  TESSERA_DEVICE unsigned byte(int at) const { return row[begin + at]; }
  TESSERA_DEVICE unsigned half(int at) const {
    static_assert(kAlignment >= 2, "halves at multiples of 2 bytes");
    return *reinterpret_cast<const unsigned short*>(row + begin + at);
  }
  TESSERA_DEVICE float number(int at) const {
    return formats::float_of_half(static_cast<unsigned short>(half(at)));
  }

  /// The words at `at`, a multiple of kAlign.
  template <int kAlign, int kWords>
  TESSERA_DEVICE void words(int at, unsigned (&out)[kWords]) const {
    constexpr int kKnown = kAlign < kAlignment ? kAlign : kAlignment;
    if constexpr (kKnown >= 4) {
      constexpr int kVector = kWords * 4 < kKnown ? kWords : kKnown / 4;  // words of a load
      const auto* from = reinterpret_cast<const WordsAtOnce<kVector>*>(row + begin + at);
      TESSERA_UNROLL
      for (int n = 0; n < kWords / kVector; ++n) {
        const WordsAtOnce<kVector> loaded = from[n];
        TESSERA_UNROLL
        for (int i = 0; i < kVector; ++i) out[n * kVector + i] = word_of(loaded, i);
      }
    } else {
      // Where `at` is a multiple of 4 all fields have the block's own place in a word.
      const auto position = static_cast<unsigned>(kAlign >= 4 ? begin : begin + at);
      const auto* word = reinterpret_cast<const unsigned*>(row + (position & ~3u) + (kAlign >= 4 ? at : 0));
      unsigned low = word[0];
      TESSERA_UNROLL
      for (int i = 0; i < kWords; ++i) {
        const unsigned high = word[i + 1];
        out[i] = join_words(low, high, position);
        low = high;
      }
    }
  }
};

/// Eight numbers as halves: 0 and 2, 1 and 3, 4 and 6, 5 and 7.
struct Octet {
  unsigned halves[4];

  /// sum + number i * x.
  TESSERA_DEVICE float multiply(int i, float x, float sum) const {
    return i % 4 < 2 ? fma_low_half(halves[word(i)], x, sum) : fma_high_half(halves[word(i)], x, sum);
  }
  TESSERA_DEVICE void get(float (&q)[kGroupSize]) const {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i)
      q[i] = formats::float_of_half(static_cast<unsigned short>(halves[word(i)] >> (i % 4 / 2 * 16)));
  }

 private:
  TESSERA_DEVICE static constexpr int word(int i) { return i / 4 * 2 + i % 2; }
};

/// Integers below 1024, as halves of words, less kBias: 2^-24 of them.
template <int kBias>
TESSERA_DEVICE Octet octet_of_halves(const unsigned (&integers)[4]) {
  constexpr unsigned kMinusBias = kBias == 0 ? 0u : (0x8000u | kBias) * 0x10001u;
  Octet q;
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) q.halves[i] = kBias == 0 ? integers[i] : add_halves(integers[i], kMinusBias);
  return q;
}

/// Of bytes' bits `kMask`.
template <unsigned kMask, int kBias>
TESSERA_DEVICE Octet octet_of_bytes(unsigned low, unsigned high) {
  constexpr unsigned kBoth = kMask * 0x10001u;
  const unsigned halves[4] = {low & kBoth, (low >> 8) & kBoth, high & kBoth, (high >> 8) & kBoth};
  return octet_of_halves<kBias>(halves);
}

/// Of bytes' bits kMask, and bits kMore of the halves that begin with the bytes of `low_more` shifted by
/// kShift to the left.
template <unsigned kMask, unsigned kMore, int kShift, int kBias>
TESSERA_DEVICE Octet octet_of_two(unsigned low, unsigned high, unsigned low_more, unsigned high_more) {
  constexpr unsigned kBoth = kMask * 0x10001u, kBothMore = kMore * 0x10001u;
  const auto shifted = [](unsigned x, int left) { return left >= 0 ? x << left : x >> -left; };
  const unsigned halves[4] = {
      (low & kBoth) | (shifted(low_more, kShift) & kBothMore),
      ((low >> 8) & kBoth) | (shifted(low_more, kShift - 8) & kBothMore),
      (high & kBoth) | (shifted(high_more, kShift) & kBothMore),
      ((high >> 8) & kBoth) | (shifted(high_more, kShift - 8) & kBothMore),
  };
  return octet_of_halves<kBias>(halves);
}

constexpr float kOfSubnormal = 0x1p24f;

/// Any format, by its integers; none of them shares a step here.
template <class Format>
struct BlockUnit {
  static constexpr int kGroups = 4;
  static constexpr bool kHasOffset = false;
  StagedBlock<Format> block;
  int first;

  TESSERA_DEVICE static int column(int j) { return kUnitColumns * j; }
  TESSERA_DEVICE static constexpr int octet_column(int o) { return kGroupSize * o; }
  TESSERA_DEVICE void load(const StagedBlock<Format>& b, int j) {
    block = b;
    first = column(j);
  }
  struct Numbers {
    float number[kGroupSize];

    TESSERA_DEVICE float multiply(int i, float x, float sum) const { return fmaf(number[i], x, sum); }
    TESSERA_DEVICE void get(float (&q)[kGroupSize]) const {
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) q[i] = number[i];
    }
  };
  TESSERA_DEVICE Numbers octet(int o) const {
    Numbers q;
    Format::decode_part(block.row + block.begin, first + octet_column(o), q.number);
    return q;
  }
  TESSERA_DEVICE float step(int) const { return 1.0f; }
  TESSERA_DEVICE float offset(int) const { return 0.0f; }
};

/// What units have in common of which 16 bytes are the four bits of two runs of 16 columns, first those in
/// lower halves.
template <bool kHasOffset_>
struct NibbleUnit {
  static constexpr int kGroups = 2;
  static constexpr bool kHasOffset = kHasOffset_;
  unsigned word[4];
  float steps[2], offsets[2];

  TESSERA_DEVICE float step(int g) const { return steps[g]; }
  TESSERA_DEVICE float offset(int g) const { return offsets[g]; }

  /// The four bits of octet o less kBias.
  template <int kBias>
  TESSERA_DEVICE Octet octet_less(int o) const {
    const int i = o % 2 * 2;
    if (o < 2) return octet_of_bytes<0xf, kBias>(word[i], word[i + 1]);
    return octet_of_bytes<0xf0, 16 * kBias>(word[i], word[i + 1]);
  }

  /// One step and offset for all columns; the upper halves' integers are 16 times as large.
  TESSERA_DEVICE void set(float step, float offset) {
    steps[0] = step * kOfSubnormal;
    steps[1] = step * (kOfSubnormal / 16.0f);
    offsets[0] = offsets[1] = offset;
  }
};

/// Blocks of 32: the unit is the block.
template <bool kHasOffset>
struct NibbleBlock : NibbleUnit<kHasOffset> {
  TESSERA_DEVICE static int column(int) { return 0; }
  TESSERA_DEVICE static constexpr int octet_column(int o) { return kGroupSize * o; }
};

template <>
struct BlockUnit<formats::Q4_0> : NibbleBlock<false> {
  TESSERA_DEVICE void load(const StagedBlock<formats::Q4_0>& b, int) {
    b.words<2>(2, word);
    set(b.number(0), 0.0f);
  }
  TESSERA_DEVICE Octet octet(int o) const { return octet_less<8>(o); }
};

template <>
struct BlockUnit<formats::Q4_1> : NibbleBlock<true> {
  TESSERA_DEVICE void load(const StagedBlock<formats::Q4_1>& b, int) {
    b.words<4>(4, word);
    set(b.number(0), b.number(2));
  }
  TESSERA_DEVICE Octet octet(int o) const { return octet_less<0>(o); }
};

template <>
struct BlockUnit<formats::Q8_0> {
  static constexpr int kGroups = 1;
  static constexpr bool kHasOffset = false;
  unsigned word[8];
  float step_of_block;

  TESSERA_DEVICE static int column(int) { return 0; }
  TESSERA_DEVICE static constexpr int octet_column(int o) { return kGroupSize * o; }
  TESSERA_DEVICE void load(const StagedBlock<formats::Q8_0>& b, int) {
    b.words<2>(2, word);
    step_of_block = b.number(0) * kOfSubnormal;
  }
  /// A byte and 128 is the byte with its sign the other way.
  TESSERA_DEVICE Octet octet(int o) const {
    return octet_of_bytes<0xff, 128>(word[2 * o] ^ 0x80808080u, word[2 * o + 1] ^ 0x80808080u);
  }
  TESSERA_DEVICE float step(int) const { return step_of_block; }
  TESSERA_DEVICE float offset(int) const { return 0.0f; }
};

/// Fifth bits as Q5_0 and Q5_1 have them, a word in the columns' order.
template <bool kHasOffset, int kBias>
struct FifthBitBlock : NibbleBlock<kHasOffset> {
  unsigned fifths;

  TESSERA_DEVICE Octet octet(int o) const {
    const int i = o % 2 * 2;
    const unsigned low = spread(fifths >> (8 * o)), high = spread(fifths >> (8 * o + 4));
    const unsigned first = this->word[i], second = this->word[i + 1];
    if (o < 2) return octet_of_two<0xf, 0x10, 4, kBias>(first, second, low, high);
    return octet_of_two<0xf0, 0x100, 8, 16 * kBias>(first, second, low, high);
  }

 private:
  /// Four bits as the lowest of four bytes.
  TESSERA_DEVICE static unsigned spread(unsigned bits) { return (bits & 0xfu) * 0x204081u & 0x01010101u; }
};

template <>
struct BlockUnit<formats::Q5_0> : FifthBitBlock<false, 16> {
  TESSERA_DEVICE void load(const StagedBlock<formats::Q5_0>& b, int) {
    unsigned all[5];
    b.words<2>(2, all);
    fifths = all[0];
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) word[i] = all[i + 1];
    set(b.number(0), 0.0f);
  }
};

template <>
struct BlockUnit<formats::Q5_1> : FifthBitBlock<true, 0> {
  TESSERA_DEVICE void load(const StagedBlock<formats::Q5_1>& b, int) {
    b.words<8>(8, word);
    unsigned bits[1];
    b.words<4>(4, bits);
    fifths = bits[0];
    set(b.number(0), b.number(2));
  }
};

/// A table of 16 bytes.
struct ByteTable {
  unsigned word[4];

  /// Of the places that are four bits of each byte of `places`, from bit kShift on.
  template <int kShift>
  TESSERA_DEVICE unsigned at(unsigned places) const {
    const unsigned place_of_half = places >> kShift & 0x07070707u;
    const unsigned lower = pick_bytes(word[0], word[1], place_of_half);
    const unsigned upper = pick_bytes(word[2], word[3], place_of_half);
    return pick_bytes(lower, upper, (places >> (kShift + 1) & 0x04040404u) | 0x03020100u);
  }
};

/// IQ4_NL's integers and 128.
TESSERA_DEVICE ByteTable iq4_table() { return {{0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u}}; }
/// The upper bytes of MXFP4's integers as halves, whose lower ones are 0.
TESSERA_DEVICE ByteTable mxfp4_table() { return {{0x42403c00u, 0x4a484644u, 0xc2c0bc00u, 0xcac8c6c4u}}; }

TESSERA_DEVICE Octet iq4_octet(const unsigned (&word)[4], int o) {
  const int i = o % 2 * 2;
  const ByteTable table = iq4_table();
  if (o < 2) return octet_of_bytes<0xff, 128>(table.at<0>(word[i]), table.at<0>(word[i + 1]));
  return octet_of_bytes<0xff, 128>(table.at<4>(word[i]), table.at<4>(word[i + 1]));
}

template <>
struct BlockUnit<formats::IQ4_NL> : NibbleBlock<false> {
  static constexpr int kGroups = 1;
  TESSERA_DEVICE void load(const StagedBlock<formats::IQ4_NL>& b, int) {
    b.words<2>(2, word);
    set(b.number(0), 0.0f);
  }
  TESSERA_DEVICE Octet octet(int o) const { return iq4_octet(word, o); }
};

template <>
struct BlockUnit<formats::IQ4_XS> : NibbleUnit<false> {
  static constexpr int kGroups = 1;
  TESSERA_DEVICE static int column(int j) { return kUnitColumns * j; }
  TESSERA_DEVICE static constexpr int octet_column(int o) { return kGroupSize * o; }
  TESSERA_DEVICE void load(const StagedBlock<formats::IQ4_XS>& b, int j) {
    b.words<8>(8 + 16 * j, word);
    const unsigned upper = b.half(2) >> (2 * j) & 3u;
    const unsigned lower = b.byte(4 + j / 2) >> (j % 2 * 4) & 0xfu;
    set(b.number(0) * static_cast<float>(static_cast<int>(lower | upper << 4) - 32), 0.0f);
  }
  TESSERA_DEVICE Octet octet(int o) const { return iq4_octet(word, o); }
};

template <>
struct BlockUnit<formats::MXFP4> : NibbleBlock<false> {
  static constexpr int kGroups = 1;
  TESSERA_DEVICE void load(const StagedBlock<formats::MXFP4>& b, int) {
    b.words<1>(1, word);
    steps[0] = formats::MXFP4::step<float>(b.row + b.begin, 0).step;
  }
  TESSERA_DEVICE Octet octet(int o) const {
    const int i = o % 2 * 2;
    const ByteTable table = mxfp4_table();
    const unsigned low = o < 2 ? table.at<0>(word[i]) : table.at<4>(word[i]);
    const unsigned high = o < 2 ? table.at<0>(word[i + 1]) : table.at<4>(word[i + 1]);
    const unsigned halves[4] = {low << 8 & 0xff00ff00u, low & 0xff00ff00u, high << 8 & 0xff00ff00u,
                                high & 0xff00ff00u};
    return octet_of_halves<0>(halves);
  }
};

// ---- Blocks of 256: a block has eight units. Of four-bit formats unit j has 16 bytes of integers, the lower
// halves of columns 64 (j / 2) + 16 (j % 2) on, the upper of those 32 further on.

/// Q4_K's and Q5_K's steps and offsets.
template <class Format>
struct SixBitUnit : NibbleUnit<true> {
  TESSERA_DEVICE static int column(int j) { return j / 2 * 64 + j % 2 * 16; }
  TESSERA_DEVICE static constexpr int octet_column(int o) { return o / 2 * 32 + o % 2 * kGroupSize; }

 protected:
  /// Two groups' six bits each, in bytes: of groups 0 to 3 whole, of others with the upper two bits apart.
  TESSERA_DEVICE void load_steps(const StagedBlock<Format>& b, int j) {
    const bool is_whole = j < 4;
    const int pair = j / 2 % 2 * 2;
    const unsigned first = b.half(4 + pair), second = b.half(8 + pair), lower = b.half(12 + pair);
    const unsigned of_lower = is_whole ? 0u : 0x0f0fu, of_upper = is_whole ? 0x3f3fu : 0x3030u;
    const int shift = is_whole ? 0 : 2;
    const unsigned step = (lower & of_lower) | (first >> shift & of_upper);
    const unsigned offset = (lower >> 4 & of_lower) | (second >> shift & of_upper);
    const float step_unit = b.number(0), offset_unit = -b.number(2);
    steps[0] = step_unit * kOfSubnormal * static_cast<float>(step & 0xffu);
    steps[1] = step_unit * (kOfSubnormal / 16.0f) * static_cast<float>(step >> 8);
    offsets[0] = offset_unit * static_cast<float>(offset & 0xffu);
    offsets[1] = offset_unit * static_cast<float>(offset >> 8);
  }
};

template <>
struct BlockUnit<formats::Q4_K> : SixBitUnit<formats::Q4_K> {
  TESSERA_DEVICE void load(const StagedBlock<formats::Q4_K>& b, int j) {
    b.words<16>(16 + 16 * j, word);
    load_steps(b, j);
  }
  TESSERA_DEVICE Octet octet(int o) const { return octet_less<0>(o); }
};

template <>
struct BlockUnit<formats::Q5_K> : SixBitUnit<formats::Q5_K> {
  unsigned fifths[4];  // bit 0 of each byte: of lower halves; bit 1: of upper ones

  TESSERA_DEVICE void load(const StagedBlock<formats::Q5_K>& b, int j) {
    b.words<16>(48 + 16 * j, word);
    b.words<16>(16 + 16 * (j % 2), fifths);
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) fifths[i] >>= j / 2 * 2;
    load_steps(b, j);
  }
  TESSERA_DEVICE Octet octet(int o) const {
    const int i = o % 2 * 2;
    if (o < 2) return octet_of_two<0xf, 0x10, 4, 0>(word[i], word[i + 1], fifths[i], fifths[i + 1]);
    return octet_of_two<0xf0, 0x100, 7, 0>(word[i], word[i + 1], fifths[i], fifths[i + 1]);
  }
};

/// Units of 8 bytes whose bits belong to columns 32 apart, in half a block: bytes 8 (j % 4) on.
template <bool kHasOffset_, int kGroups_>
struct ApartUnit {
  static constexpr int kGroups = kGroups_;
  static constexpr bool kHasOffset = kHasOffset_;
  float steps[kGroups];

  TESSERA_DEVICE static int column(int j) { return j / 4 * 128 + j % 4 * kGroupSize; }
  TESSERA_DEVICE static constexpr int octet_column(int o) { return 32 * o; }
  /// The group of 16 columns that octet o belongs to.
  TESSERA_DEVICE static int group(int j, int o) { return j / 4 * 8 + j % 4 / 2 + 2 * o; }
  TESSERA_DEVICE float step(int g) const { return steps[g]; }
  TESSERA_DEVICE float offset(int) const { return 0.0f; }
};

template <>
struct BlockUnit<formats::Q6_K> : ApartUnit<false, 4> {
  unsigned near[2], far[2], upper[2];  // lower bits of octets 0 and 2, of 1 and 3, upper bits of all

  TESSERA_DEVICE void load(const StagedBlock<formats::Q6_K>& b, int j) {
    const int first = j / 4 * 64 + j % 4 * 8;
    b.words<8>(first, near);
    b.words<8>(first + 32, far);
    b.words<8>(128 + j * 8, upper);
    const float unit = b.number(208);
    TESSERA_UNROLL
    for (int o = 0; o < 4; ++o) {
      const auto integer = static_cast<signed char>(b.byte(192 + group(j, o)));
      steps[o] = unit * (o < 2 ? kOfSubnormal : kOfSubnormal / 16.0f) * static_cast<float>(integer);
    }
  }
  TESSERA_DEVICE Octet octet(int o) const {
    switch (o) {
      case 0:
        return octet_of_two<0xf, 0x30, 4, 32>(near[0], near[1], upper[0], upper[1]);
      case 1:
        return octet_of_two<0xf, 0x30, 2, 32>(far[0], far[1], upper[0], upper[1]);
      case 2:
        return octet_of_two<0xf0, 0x300, 4, 32 * 16>(near[0], near[1], upper[0], upper[1]);
      default:
        return octet_of_two<0xf0, 0x300, 2, 32 * 16>(far[0], far[1], upper[0], upper[1]);
    }
  }
};

/// 2^24 of the subnormal half whose integer stands two bits higher for each octet.
TESSERA_DEVICE constexpr float of_two_bits(int o) { return kOfSubnormal / static_cast<float>(1 << (2 * o)); }

/// The bytes' bits 2 o and 2 o + 1 less kBias.
template <int kBias>
TESSERA_DEVICE Octet two_bits_less(const unsigned (&word)[2], int o) {
  switch (o) {
    case 0:
      return octet_of_bytes<0x3, kBias>(word[0], word[1]);
    case 1:
      return octet_of_bytes<0xc, 4 * kBias>(word[0], word[1]);
    case 2:
      return octet_of_bytes<0x30, 16 * kBias>(word[0], word[1]);
    default:
      return octet_of_bytes<0xc0, 64 * kBias>(word[0], word[1]);
  }
}

template <>
struct BlockUnit<formats::Q2_K> : ApartUnit<true, 4> {
  unsigned word[2];
  float offsets[4];

  TESSERA_DEVICE void load(const StagedBlock<formats::Q2_K>& b, int j) {
    b.words<4>(16 + 8 * j, word);
    const float step_unit = b.number(80), offset_unit = -b.number(82);
    TESSERA_UNROLL
    for (int o = 0; o < 4; ++o) {
      const unsigned both = b.byte(group(j, o));
      steps[o] = step_unit * of_two_bits(o) * static_cast<float>(both & 0xfu);
      offsets[o] = offset_unit * static_cast<float>(both >> 4);
    }
  }
  TESSERA_DEVICE float offset(int g) const { return offsets[g]; }
  TESSERA_DEVICE Octet octet(int o) const { return two_bits_less<0>(word, o); }
};

template <>
struct BlockUnit<formats::TQ2_0> : ApartUnit<false, 4> {
  unsigned word[2];

  TESSERA_DEVICE void load(const StagedBlock<formats::TQ2_0>& b, int j) {
    b.words<8>(8 * j, word);
    const float unit = b.number(64);
    TESSERA_UNROLL
    for (int o = 0; o < 4; ++o) steps[o] = unit * of_two_bits(o);
  }
  TESSERA_DEVICE Octet octet(int o) const { return two_bits_less<1>(word, o); }
};

template <>
struct BlockUnit<formats::Q3_K> : ApartUnit<false, 4> {
  unsigned word[2], thirds[2];  // bit o of each byte: of octet o

  TESSERA_DEVICE void load(const StagedBlock<formats::Q3_K>& b, int j) {
    b.words<8>(32 + 8 * j, word);
    b.words<8>(8 * (j % 4), thirds);
    thirds[0] >>= j / 4 * 4;
    thirds[1] >>= j / 4 * 4;
    const float unit = b.number(108);
    // Groups 0 to 7 have the lower halves of bytes 96 to 103, the others the upper ones.
    const int low_shift = j / 4 * 4, first = j % 4 / 2;
    TESSERA_UNROLL
    for (int o = 0; o < 4; ++o) {
      const unsigned lower = b.byte(96 + first + 2 * o) >> low_shift & 0xfu;
      const unsigned upper = b.byte(104 + first + o % 2 * 2) >> (low_shift + o / 2 * 2) & 3u;
      steps[o] = unit * of_two_bits(o) * static_cast<float>(static_cast<int>(lower | upper << 4) - 32);
    }
  }
  TESSERA_DEVICE Octet octet(int o) const {
    switch (o) {
      case 0:
        return octet_of_two<0x3, 0x4, 2, 4>(word[0], word[1], thirds[0], thirds[1]);
      case 1:
        return octet_of_two<0xc, 0x10, 3, 16>(word[0], word[1], thirds[0], thirds[1]);
      case 2:
        return octet_of_two<0x30, 0x40, 4, 64>(word[0], word[1], thirds[0], thirds[1]);
      default:
        return octet_of_two<0xc0, 0x100, 5, 256>(word[0], word[1], thirds[0], thirds[1]);
    }
  }
};

}  // namespace tessera::kernels
