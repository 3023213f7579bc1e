#pragma once

#include "sm80/block_bits.cuh"
#include "sm80/block_units.cuh"

// A warp's rows of x made ready for the bits of blocks' integers, and a unit's products with them:
// gemm_block_bits.cu and sm90/gemm_block_stream.cu, which differ in how blocks come to shared memory.

namespace tessera::kernels::bits {

/// What operands that stand in a place are multiplied by.
template <class Fragment>
TESSERA_DEVICE float times_of_place(int place) {
  return static_cast<float>(1 << (place * (Fragment::kPlaces == 2 ? 4 : 2)));
}

/// Rows of x in a piece's columns in a warp's part of shared memory, as operands b: of each row its groups'
/// quads of words for t = 0 .. 3, and the sums that offsets are multiplied with; then for all rows what takes
/// off the operands' bias; then factors.
template <class X, class Fragment>
struct XPiece {
  static constexpr int kBias = Fragment::kBias;
  static constexpr int kSums =
      Fragment::kOffsetGroups / 8;  // for each t: pairs of groups, 2 t and 8 further on
  static constexpr int kSteps = kPieceColumns / Fragment::kStepColumns;

  unsigned char* data;
  float* biases;  // (steps, pairs of rows, 4): both rows' twice, as sums have them

  TESSERA_DEVICE XPiece(unsigned char* to, int rows)
      : data(to), biases(reinterpret_cast<float*>(to + rows * kXPieceRowBytes)) {}
  TESSERA_DEVICE float* factors() const { return biases + kXPieceMostSteps * 2 * kTileM; }

  /// Row m, whose columns of the piece are `packed`, eight a lane. By all lanes of a warp.
  TESSERA_DEVICE void store_row(int m, const PackedGroup<X>& packed, int lane) const {
    float v[kGroupSize];
    packed.get(v);
    unsigned largest = 0;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) largest = maximum(largest, bits_of_float(v[i]) & 0x7fffffffu);
    largest = redux_max(largest);
    const RangeOfX range(largest);
    if (lane == 0) factors()[m] = range.back;
    float sum = 0.0f;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      v[i] *= range.scale;
      sum += v[i];
    }
    store_operands(m, v, lane);
    store_sums(m, sum, lane);
  }

  TESSERA_DEVICE void store_operands(int m, float (&v)[kGroupSize], int lane) const {
    constexpr bool kIsInterleaved = Fragment::kIsInterleaved;
    const int l = lane % 4;
    if (Fragment::kSecondPlace != 1) {
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) v[i] = l < 2 ? v[i] : v[i] * (1.0f / Fragment::kSecondPlace);
    }
    unsigned words[4];
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int first = i / 2 * 4 + (kIsInterleaved ? i % 2 : i % 2 * 2);
      words[i] = cvt_x2<f16>(v[first], v[first + (kIsInterleaved ? 2 : 1)]);
    }
    unsigned char* group = data + m * kXPieceRowBytes + lane / 4 * 64;
    if (Fragment::kLaneColumns == 8) {
      *reinterpret_cast<Vector<unsigned, 4>*>(group + l * 16) = {{words[0], words[1], words[2], words[3]}};
    } else {
      unsigned char* to = group + l % 2 * 32 + l / 2 * 8;
      *reinterpret_cast<Vector<unsigned, 2>*>(to) = {{words[0], words[1]}};
      *reinterpret_cast<Vector<unsigned, 2>*>(to + 16) = {{words[2], words[3]}};
    }
  }

  /// Of the lanes' sums of eight columns.
  TESSERA_DEVICE void store_sums(int m, float sum, int lane) const {
    if constexpr (kBias == 0 && kSums == 0) return;
    constexpr int kLanes = Fragment::kStepColumns / 8;  // that share a step's columns
    TESSERA_UNROLL
    for (int mask = 1; mask < kLanes; mask *= 2) sum += shuffle_xor(sum, mask);
    if constexpr (kBias != 0) {
      if (lane % kLanes == 0) {
        float* to = biases + (lane / kLanes * (kTileM / 2) + m / 2) * 4 + m % 2;
        to[0] = to[2] = sum * (-kBias / kUnit) * times_of_place<Fragment>(Fragment::place(lane / 4));
      }
    }
    if constexpr (kSums > 0) {
      static_assert(Fragment::kOffsetGroups == kSteps, "offsets are those of the steps' columns");
      const float next = shuffle_xor(sum, kLanes);
      const float v[2] = {sum / kXSumFactor, next / kXSumFactor};
      const unsigned high = cvt_x2<f16>(v[0], v[1]);
      const unsigned low = cvt_x2<f16>(v[0] - to_float(f16{static_cast<unsigned short>(high)}),
                                       v[1] - to_float(f16{static_cast<unsigned short>(high >> 16)}));
      const int pair = lane / (2 * kLanes);
      if (lane % (2 * kLanes) == 0) {
        *reinterpret_cast<Vector<unsigned, 2>*>(data + m * kXPieceRowBytes + kXPieceOperandBytes +
                                                (pair % 4 * kSums + pair / 4) * 8) = {{high, low}};
      }
    }
  }
};

/// All rows of a piece made ready. load_x(m, piece, packed) starts to load row m's columns; the first row's
/// are here. By all lanes of a warp.
template <class X, class Fragment, class LoadX>
TESSERA_DEVICE void store_piece(const XPiece<X, Fragment>& x, int rows, int piece,
                                const PackedGroup<X>& first_row, const LoadX& load_x, int lane) {
  x.store_row(0, first_row, lane);
  constexpr int kTogether = 4;  // as many as registers allow
  for (int first = 1; first < rows; first += kTogether) {
    PackedGroup<X> packed[kTogether];
    TESSERA_UNROLL
    for (int i = 0; i < kTogether; ++i) load_x(minimum(first + i, rows - 1), piece, packed[i]);
    TESSERA_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      if (first + i < rows) x.store_row(first + i, packed[i], lane);
    }
  }
}

/// 2^23, from what is never negative: of a constant known to the compiler byte_permute takes its selector to
/// a register.
TESSERA_DEVICE unsigned opaque_two_to_the_23(const StreamParams& stream) {
  return 0x4b000000u | static_cast<unsigned>(stream.group_shift >> 31);
}

/// What lane 4 g + t reads of an XPiece: row g, or the last.
template <class Piece>
struct XOperands {
  const unsigned char *row, *row_sums;
  const float *biases, *row_factors;

  TESSERA_DEVICE XOperands(const Piece& piece, int rows, int lane)
      : row(piece.data + minimum(lane / 4, rows - 1) * kXPieceRowBytes + lane % 4 * 16),
        row_sums(row - lane % 4 * 16 + kXPieceOperandBytes + lane % 4 * Piece::kSums * 8),
        biases(piece.biases + lane % 4 * 4),
        row_factors(piece.factors() + lane % 4 * 2) {}
  /// Of both steps of a group.
  TESSERA_DEVICE Vector<unsigned, 4> pairs(int group) const {
    return *reinterpret_cast<const Vector<unsigned, 4>*>(row + group * 64);
  }
  /// What the sums of a step's products begin with.
  TESSERA_DEVICE Vector<float, 4> bias(int step) const {
    return *reinterpret_cast<const Vector<float, 4>*>(biases + step * (kTileM / 2) * 4);
  }
  TESSERA_DEVICE Vector<float, 2> factors() const {
    return *reinterpret_cast<const Vector<float, 2>*>(row_factors);
  }
  /// Sums of x: pair `n` of groups as two fp16 parts.
  TESSERA_DEVICE Vector<unsigned, 2> sums(int n) const {
    return *reinterpret_cast<const Vector<unsigned, 2>*>(row_sums + n * 8);
  }
};

/// sum = a unit's products with x, but for x's factors.
template <class Piece, class Fragment>
TESSERA_DEVICE void multiply_unit(float (&sum)[4], Fragment& w, const XOperands<Piece>& x) {
  // The tensor cores cut off what an addition leaves over: only short sums are made there. Those of some
  // groups are under way together, as each instruction takes its time.
  constexpr int kStepsTogether = Fragment::kStepColumns / 16;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 900
  constexpr int kTogether = Fragment::kOffsetGroups == 8 ? 2 : 4;  // groups, as many as registers allow
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  constexpr int kTogether = kStepsTogether == 1 ? 2 : 4;
#else
  constexpr int kTogether = 4;
#endif
  float of_place[Fragment::kPlaces][4] = {};
  TESSERA_UNROLL
  for (int first = 0; first < kPieceGroups; first += kTogether) {
    BlockOperands a[kTogether];
    Vector<unsigned, 4> b[kTogether];
    float c[kTogether][4];
    TESSERA_UNROLL
    for (int n = 0; n < kTogether; ++n) {
      w.operands(first + n, a[n]);
      b[n] = x.pairs(first + n);
    }
    TESSERA_UNROLL
    for (int step = 0; step < 2; ++step) {
      TESSERA_UNROLL
      for (int n = 0; n < kTogether; ++n) {
        const unsigned* pair = b[n].element + 2 * step;
        const bool begins = step % kStepsTogether == 0;
        if (begins && Piece::kBias != 0) {
          const auto bias = x.bias((2 * (first + n) + step) / kStepsTogether);
          TESSERA_UNROLL
          for (int i = 0; i < 4; ++i) c[n][i] = bias.element[i];
        }
        if (begins && Piece::kBias == 0) {
          mma_m16n8k16_first<f16>(c[n], a[n][step], pair[0], pair[1]);
        } else {
          mma_m16n8k16<f16>(c[n], a[n][step], pair[0], pair[1]);
        }
      }
      if (step % kStepsTogether != kStepsTogether - 1) continue;
      TESSERA_UNROLL
      for (int i = 0; i < kTogether * 4; ++i) {
        const int n = i / 4;
        float& to = of_place[Fragment::place(first + n)][i % 4];
        to = fmaf(c[n][i % 4], w.scale(first + n, step, i % 4 / 2), to);
      }
    }
  }
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) {
    float total = of_place[0][i];
    TESSERA_UNROLL
    for (int place = 1; place < Fragment::kPlaces; ++place)
      total = fmaf(of_place[place][i], 1.0f / times_of_place<Fragment>(place), total);
    sum[i] = total * w.final_scale(i / 2);
  }
  if constexpr (Fragment::kOffsetGroups > 0) {
    unsigned a[4];
    float c[4];
    w.offsets(a);
    const auto first = x.sums(0);
    if constexpr (Fragment::kOffsetGroups == 8) {
      mma_m16n8k16_first<f16>(c, a, first.element[0], first.element[1]);
    } else {
      const auto second = x.sums(1);
      mma_m16n8k16_first<f16>(c, a, first.element[1], second.element[1]);
      mma_m16n8k16<f16>(c, a, first.element[0], second.element[0]);
    }
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) sum[i] = fmaf(c[i], w.final_offset_scale(i / 2) * kXSumFactor, sum[i]);
  }
}

}  // namespace tessera::kernels::bits
