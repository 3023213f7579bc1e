#pragma once

#include "sm80/block_bits.cuh"

// A piece's columns of x made ready for the bits of blocks' integers: by a warp, for all groups of rows of w
// that it multiplies them with.
//
// Operand b has eight columns. Of kXRows rows of x (1, 2, 4 or 8) each takes 8 / kXRows of them, in which
// only kXRows of a piece's eight groups aren't zero:
//
//   column n    row n % kXRows of x; groups first + i of a piece, i < kXRows and first = n / kXRows * kXRows
//
//   kXRows 2    n = 0        1        2        3        4        5        6        7
//   group 0         x row 0  x row 1  0        0        0        0        0        0
//   group 1         x row 0  x row 1  0        0        0        0        0        0
//   group 2         0        0        x row 0  x row 1  0        0        0        0      ...
//
// So the products of groups i, kXRows + i, ... add up in one accumulator without being mixed, each in columns
// of its own, and a lane multiplies two of these columns by its groups' scales: with one or two rows of x two
// scales a row of w in place of eight. Zeros cost nothing: the tensor cores have nothing else to do.

namespace tessera::kernels::bits {

/// A lane has two columns' sums; of one row of x these are of two groups, else of the same.
template <class Format, int kXRows>
using BitsOfRows = BlockBits<Format, larger_of(kXRows, 2)>;

/// What a lane has of x beside its operands, which XInRegisters, XInShared and XInBytes add.
template <class Format, int kXRows>
class XOfPiece {
 public:
  using Fragment = BitsOfRows<Format, kXRows>;
  static constexpr int kSteps = 32 / Fragment::kStepColumns;  // scales of a group
  static constexpr int kOffsetPairs = Fragment::kOffsetGroups / 8;
  static constexpr bool kIsBytes = false;
  static_assert(kSteps == 1 || Fragment::kLaneColumns == 4, "a lane's columns are of both steps");
  static_assert(Fragment::kOffsetGroups == 0 || Fragment::kOffsetGroups == kSteps * kPieceGroups);

  float factors[2];  // that take back what x's rows were multiplied by, of the lane's sums (add_up_lanes)
  /// Sums of x over offsets' columns, divided by kXSumFactor, as two fp16 parts.
  unsigned offset_pairs[2][kOffsetPairs > 0 ? kOffsetPairs : 1];

  /// of_warp: x_sums_of_piece() in shared memory.
  TESSERA_DEVICE XOfPiece(float* of_warp, int) : sums_(of_warp) {}

  /// What the sums of a group's step begin with: of the lane's i-th group, both columns.
  TESSERA_DEVICE Vector<float, 2> bias(int i, int step, int t) const {
    return *reinterpret_cast<const Vector<float, 2>*>(
        sums_ + (step * kPieceGroups + first_group_of_lane<kXRows>(t) + i) * kXRows + 2 * t % kXRows);
  }

 protected:
  static constexpr bool kHasSums = Fragment::kBias != 0 || kOffsetPairs > 0;

  TESSERA_DEVICE void store_sum(int step, int group, int row, float sum) {
    sums_[(step * kPieceGroups + group) * kXRows + row] =
        Fragment::kBias != 0 ? sum * (-Fragment::kBias / kUnit) : sum;
  }
  /// sum: of a lane's eight columns of a row, the warp's lane-th eight.
  TESSERA_DEVICE void store_sums(int row, float sum, int lane) {
    if constexpr (kHasSums) {
      constexpr int kLanes = Fragment::kStepColumns / 8;  // that share a scale's columns
      TESSERA_UNROLL
      for (int mask = 1; mask < kLanes; mask *= 2) sum += shuffle_xor(sum, mask);
      if (lane % kLanes == 0) store_sum(lane % 4 / kLanes, lane / 4, row, sum);
    }
  }
  /// Eight columns of a group as operands, fours of these steps.
  TESSERA_DEVICE static Vector<unsigned, 4> words_of(float (&v)[kGroupSize], int group, int first_step,
                                                     int second_step) {
    const float factor = 1.0f / static_cast<float>(1 << Fragment::place(group));
    TESSERA_UNROLL
    for (int j = 0; j < kGroupSize; ++j)
      v[j] *= (j < 4 ? first_step : second_step) == 0 ? factor : factor / Fragment::kSecondPlace;
    Vector<unsigned, 4> words;
    TESSERA_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int first = j / 2 * 4 + (Fragment::kIsInterleaved ? j % 2 : j % 2 * 2);
      words.element[j] = cvt_x2<f16>(v[first], v[first + (Fragment::kIsInterleaved ? 2 : 1)]);
    }
    return words;
  }
  /// Of the first kXRows columns: all groups' sums of a row. They are there.
  TESSERA_DEVICE void set_offset_pairs(int lane) {
    const int n = lane / 4, t = lane % 4;
    TESSERA_UNROLL
    for (int pair = 0; pair < kOffsetPairs; ++pair) {
      float v[2];
      TESSERA_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int group = kSteps == 1 ? 2 * t + i : t + 4 * pair;
        const int step = kSteps == 1 ? 0 : i;
        v[i] = n < kXRows ? sums_[(step * kPieceGroups + group) * kXRows + n] / kXSumFactor : 0.0f;
      }
      const unsigned high = cvt_x2<f16>(v[0], v[1]);
      offset_pairs[0][pair] = high;
      offset_pairs[1][pair] = cvt_x2<f16>(v[0] - to_float(f16{static_cast<unsigned short>(high)}),
                                          v[1] - to_float(f16{static_cast<unsigned short>(high >> 16)}));
    }
  }

 private:
  /// (kSteps, groups, rows of x) sums of x over a scale's columns; with a bias, what takes it off.
  float* sums_;
};

/// The largest magnitude of eight numbers, as fp32's bits, or `most`.
TESSERA_DEVICE unsigned larger_magnitude(unsigned most, const float (&v)[kGroupSize]) {
  TESSERA_UNROLL
  for (int j = 0; j < kGroupSize; ++j) most = maximum(most, bits_of_float(v[j]) & 0x7fffffffu);
  return most;
}

/// A lane's operands b in registers, of one or two rows.
template <class X, class Format, int kXRows>
class XInRegisters : public XOfPiece<Format, kXRows> {
  using Base = XOfPiece<Format, kXRows>;

 public:
  using Base::Base;
  using typename Base::Fragment;

  /// The lane's columns, of its column n = lane / 4, as stored.
  struct Stored {
    Vector<unsigned, 4> group[kXRows];

    /// x: row 0 from the piece's first column on; rows behind the last are the last.
    TESSERA_DEVICE void load(const X* x, int64 row_stride, int rows, int lane) {
      const int n = lane / 4, t = lane % 4;
      const X* from = x + minimum(n % kXRows, rows - 1) * row_stride + n / kXRows * kXRows * 32;
      TESSERA_UNROLL
      for (int i = 0; i < kXRows; ++i) {
        if constexpr (Fragment::kLaneColumns == 8) {
          group[i] = *reinterpret_cast<const Vector<unsigned, 4>*>(from + i * 32 + 8 * t);
        } else {
          TESSERA_UNROLL
          for (int step = 0; step < 2; ++step) {
            const auto four =
                *reinterpret_cast<const Vector<unsigned, 2>*>(from + i * 32 + step * 16 + 4 * t);
            group[i].element[2 * step] = four.element[0];
            group[i].element[2 * step + 1] = four.element[1];
          }
        }
      }
    }
    TESSERA_DEVICE void get(int i, float (&v)[kGroupSize]) const {
      TESSERA_UNROLL
      for (int j = 0; j < kGroupSize; ++j) v[j] = packed_element(group[i].element, j, X());
    }
  };

  /// By all lanes of a warp, none of which reads the piece before any more.
  TESSERA_DEVICE void set(const Stored& x, int lane) {
    const int n = lane / 4, t = lane % 4;
    const int row = n % kXRows, first_group = n - row;
    const RangeOfX range(largest(x));
    TESSERA_UNROLL
    for (int i = 0; i < 2; ++i)
      this->factors[i] = shuffle(range.back, (kXRows == 2 ? t / 2 : (2 * t + i) % kXRows) * 4);
    TESSERA_UNROLL
    for (int i = 0; i < kXRows; ++i) {
      float v[kGroupSize], sum[2] = {};
      x.get(i, v);
      TESSERA_UNROLL
      for (int j = 0; j < kGroupSize; ++j) {
        v[j] *= range.scale;
        sum[j / 4 * (Base::kSteps - 1)] += v[j];
      }
      TESSERA_UNROLL
      for (int step = 0; step < (Base::kHasSums ? Base::kSteps : 0); ++step) {
        sum[step] += shuffle_xor(sum[step], 1);
        sum[step] += shuffle_xor(sum[step], 2);
        if (t == 0) this->store_sum(step, first_group + i, row, sum[step]);
      }
      const Vector<unsigned, 4> words = Base::words_of(v, first_group + i, 0, 1);
      TESSERA_UNROLL
      for (int j = 0; j < 4 * kPieceGroups / kXRows; ++j) {
        const int group = i + j / 4 * kXRows;
        pairs_[group].element[j % 4] = first_group + i == group ? words.element[j % 4] : 0;
      }
    }
    sync_warp();
    this->set_offset_pairs(lane);
  }
  /// Of both steps of a group.
  TESSERA_DEVICE Vector<unsigned, 4> operands(int group) const { return pairs_[group]; }

 private:
  Vector<unsigned, 4> pairs_[kPieceGroups];

  /// Of a row's numbers in the piece.
  TESSERA_DEVICE static unsigned largest(const Stored& x) {
    unsigned most = 0;
    TESSERA_UNROLL
    for (int i = 0; i < kXRows; ++i) {
      float v[kGroupSize];
      x.get(i, v);
      most = larger_magnitude(most, v);
    }
    TESSERA_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) {
      if (mask < 4 || mask >= 4 * kXRows) most = maximum(most, shuffle_xor(most, mask));
    }
    return most;
  }
};

/// Operands b of four or eight rows, for which there are no registers, in shared memory.
template <class X, class Format, int kXRows>
class XInShared : public XOfPiece<Format, kXRows> {
  using Base = XOfPiece<Format, kXRows>;
  static_assert(kXRows == 4 || kXRows == 8);

 public:
  using typename Base::Fragment;

  TESSERA_DEVICE XInShared(float* of_warp, int lane)
      : Base(of_warp, lane), rows_(reinterpret_cast<unsigned char*>(of_warp + x_sums_of_piece(kXRows))) {
    const int n = lane / 4;
    const unsigned char* row = rows_ + n % kXRows * kXPieceRowBytes + lane % 4 * 16;
    lower_ = upper_ = row;
    if constexpr (kXRows == 4) {  // the other half of the columns are zeros
      unsigned char* zeros = rows_ + kXRows * kXPieceRowBytes;
      if (lane < kXZerosBytes / 16) reinterpret_cast<Vector<unsigned, 4>*>(zeros)[lane] = {};
      const unsigned char* of_lane = zeros + lane % 4 * 16;
      lower_ = n < kXRows ? row : of_lane;
      upper_ = n < kXRows ? of_lane - kXZerosBytes : row;
    }
  }

  /// Where a piece's columns are: set() loads some rows at once, as registers allow.
  struct Stored {
    const X* x;
    int64 row_stride;
    int rows;

    /// As XInRegisters::Stored.
    TESSERA_DEVICE void load(const X* from, int64 stride, int count, int) {
      x = from;
      row_stride = stride;
      rows = count;
    }
  };

  /// By all lanes of a warp, none of which reads the piece before any more. What rows behind the last become
  /// nobody reads.
  TESSERA_DEVICE void set(const Stored& stored, int lane) {
    constexpr int kTogether = 4;
    TESSERA_UNROLL
    for (int first = 0; first < kXRows; first += kTogether) {
      PackedGroup<X> packed[kTogether];  // eight columns of each row: a lane's are the warp's lane-th
      TESSERA_UNROLL
      for (int i = 0; i < kTogether; ++i)
        packed[i].load(stored.x + minimum(first + i, stored.rows - 1) * stored.row_stride, lane);
      TESSERA_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        if (first + i < stored.rows) set_row(first + i, packed[i], lane);
      }
    }
    sync_warp();
    this->set_offset_pairs(lane);
  }
  /// Of both steps of a group.
  TESSERA_DEVICE Vector<unsigned, 4> operands(int group) const {
    return *reinterpret_cast<const Vector<unsigned, 4>*>((group < 4 ? lower_ : upper_) + group * 64);
  }

 private:
  unsigned char* rows_;
  const unsigned char *lower_, *upper_;  // what a lane reads of groups 0 to 3, and of the others behind them

  TESSERA_DEVICE void set_row(int m, const PackedGroup<X>& packed, int lane) {
    float v[kGroupSize], sum = 0.0f;
    packed.get(v);
    const RangeOfX range(redux_max(larger_magnitude(0, v)));
    if (lane % (kXRows / 2) == m / 2) this->factors[m % 2] = range.back;
    TESSERA_UNROLL
    for (int j = 0; j < kGroupSize; ++j) {
      v[j] *= range.scale;
      sum += v[j];
    }
    this->store_sums(m, sum, lane);
    store_operands(m, v, lane);
  }
  TESSERA_DEVICE void store_operands(int m, float (&v)[kGroupSize], int lane) {
    const int t = lane % 4;
    unsigned char* group = rows_ + m * kXPieceRowBytes + lane / 4 * 64;
    if constexpr (Fragment::kLaneColumns == 8) {
      *reinterpret_cast<Vector<unsigned, 4>*>(group + t * 16) = Base::words_of(v, lane / 4, 0, 1);
    } else {  // all of one step, of two lanes' operands
      const auto words = Base::words_of(v, lane / 4, t / 2, t / 2);
      unsigned char* to = group + t % 2 * 32 + t / 2 * 8;
      *reinterpret_cast<Vector<unsigned, 2>*>(to) = {{words.element[0], words.element[1]}};
      *reinterpret_cast<Vector<unsigned, 2>*>(to + 16) = {{words.element[2], words.element[3]}};
    }
  }
};

/// One row as whole numbers of 24 bits, the unit of which is 2^-kByteBits of x as RangeOfX has it, in three
/// bytes each. Column n of operand b is group n; its bytes meet those of w's that have this group and the
/// group beside it.
template <class X, class Format>
class XInBytes : public XOfPiece<Format, 1> {
  using Base = XOfPiece<Format, 1>;
  static_assert(Base::Fragment::kLaneColumns == 8 && Base::kSteps == 1);

 public:
  using Base::Base;
  using typename Base::Fragment;
  using Stored = typename XInRegisters<X, Format, 1>::Stored;
  static constexpr bool kIsBytes = true;
  static constexpr int kParts = 3;     // from the lowest on; the last is signed
  static constexpr int kByteBits = 8;  // RangeOfX leaves 15 and the sign

  /// As XInRegisters.
  TESSERA_DEVICE void set(const Stored& x, int lane) {
    float v[kGroupSize], sum = 0.0f;
    x.get(0, v);
    const RangeOfX range(redux_max(larger_magnitude(0, v)));
    this->factors[0] = this->factors[1] = range.back;
    int whole[kGroupSize];
    TESSERA_UNROLL
    for (int j = 0; j < kGroupSize; ++j) {
      v[j] *= range.scale;
      sum += v[j];
      whole[j] = round_to_int(v[j] * static_cast<float>(1 << kByteBits));
    }
    this->store_sums(0, sum, lane);
    TESSERA_UNROLL
    for (int part = 0; part < kParts; ++part) {
      unsigned words[2];
      TESSERA_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int* four = whole + 4 * i;
        const unsigned pair = static_cast<unsigned>(part | (part + 4) << 4);
        words[i] =
            byte_permute(byte_permute(four[0], four[1], pair), byte_permute(four[2], four[3], pair), 0x5410u);
      }
      TESSERA_UNROLL
      for (int j = 0; j < kPieceGroups / 2; ++j) {
        TESSERA_UNROLL
        for (int i = 0; i < 2; ++i) words_[j][part].element[i] = lane / 8 == j ? words[i] : 0;
      }
    }
    sync_warp();
    this->set_offset_pairs(lane);
  }
  /// Of groups 2 j and 2 j + 1.
  TESSERA_DEVICE Vector<unsigned, 2> words(int j, int part) const { return words_[j][part]; }

 private:
  Vector<unsigned, 2> words_[kPieceGroups / 2][kParts];
};

/// Which of them.
template <class X, class Format, int kXRows>
struct XOfRows {
  using Type = XInShared<X, Format, kXRows>;
};
template <class X, class Format>
struct XOfRows<X, Format, 1> {
  using Type = XInRegisters<X, Format, 1>;
};
template <class X>
struct XOfRows<X, formats::Q4_K, 1> {  // two groups' integers share bytes
  using Type = XInBytes<X, formats::Q4_K>;
};
template <class X, class Format>
struct XOfRows<X, Format, 2> {
  using Type = XInRegisters<X, Format, 2>;
};

}  // namespace tessera::kernels::bits
