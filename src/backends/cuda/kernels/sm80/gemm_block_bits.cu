// out = x w^T (+ bias) (+ out), or gated, for up to eight rows of 16-bit x and weights of blocks
// (TESSERA_BLOCKS), bound by reading w once: the tensor cores multiply the bits of the blocks' integers
// (block_bits.cuh). Of one or two rows x may be made here, the RMSNorm of fp32 rows, and the result rotated
// and appended to the cache. Where w's lower rows are of another format (TESSERA_LOWER_BLOCKS), the grid's
// last blocks take them and have code of their own.
//
// Grid and warps as gemm_blocks.cu has them. What differs is x: a warp makes its rows' columns of a piece
// ready in shared memory, eight columns a lane, in the order in which lanes read them as operands, and reads
// them anew for each group of rows of w. That takes a tenth of the instructions where rows are few, and no
// registers.

#include "sm80/block_bits.cuh"
#include "sm80/block_units.cuh"

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

/// Dynamic shared memory: the buffers; x of the warps' pieces; the sums; normed x; cosines and sines of each
/// row of x.
template <class X, class Format, bool kIsNormed>
TESSERA_DEVICE void gemm_block_bits(const BlockGemmParams& params, int block) {
  using Unit = WeightPiece<Format>;
  using Fragment = BlockBits<Format>;
  using Piece = XPiece<X, Fragment>;
  TESSERA_DYNAMIC_SHARED(shared);
  const StreamParams& stream = params.stream;
  const GemmParams& p = stream.gemm;
  const int lane = thread_x() % 32;
  const int warp = thread_x() / 32;
  const int warps = block_size() / 32;
  const int at_once = params.groups_at_once;
  const int pieces = static_cast<int>(p.k / kPieceColumns);
  const int x_rows = static_cast<int>(p.m);
  const int num_stages = params.stages;
  const unsigned row_bytes = static_cast<unsigned>(pieces) * Unit::kBytes;
  const Groups groups(params, block);
  unsigned char* stages = shared + warp * num_stages * Unit::kUnitBytes;
  unsigned char* x_pieces = shared + warps * num_stages * Unit::kUnitBytes;
  const int x_bytes = x_piece_bytes(x_rows);
  const SumTable table{reinterpret_cast<Sums*>(x_pieces + warps * x_bytes), at_once, (x_rows + 1) / 2};
  Words* normed = reinterpret_cast<Words*>(table.at(warps, 0, 0, 0));
  float* turns = reinterpret_cast<float*>(normed + (kIsNormed ? p.m * p.k / kGroupSize : 0));

  allow_next_kernel();
  const UnitCopies<Format> copies(stream, row_bytes, lane);
  UnitCursor next(groups, warp, pieces, at_once);
  const auto load_next = [&](int stage) {
    if (!next.is_done(groups)) {
      const unsigned offset = static_cast<unsigned>(groups.first_row(next.group)) * row_bytes +
                              static_cast<unsigned>(next.piece) * Unit::kBytes;
      copies.start(shared_address(stages + stage * Unit::kUnitBytes), p.weight.data, offset,
                   static_cast<unsigned>(p.n) * row_bytes, lane);
      next.advance(groups, warp, pieces, warps, at_once);
    }
    cp_async_commit();
  };
  const auto fill_stages = [&] {
    TESSERA_UNROLL_BY(1)
    for (int stage = 0; stage < num_stages; ++stage) load_next(stage);
  };
  if constexpr (kIsNormed) {
    const NormWeights<X, kNormedRowGroups> weights(stream, block_size());
    const Turn<kMostNormedRows> turn(stream);
    fill_stages();
    turn.store(stream, turns);
    wait_for_prior_kernels();
    const int x_groups = static_cast<int>(p.k / kGroupSize);
    if (p.m == 1) {
      norm_x<X, 1>(stream, block_size(), x_groups, weights, normed);
    } else {
      norm_x<X, kMostNormedRows>(stream, block_size(), x_groups, weights, normed);
    }
    sync_threads();
  } else {
    fill_stages();
    wait_for_prior_kernels();
  }
  const auto load_x = [&](int m, int piece, PackedGroup<X>& packed) {
    const X* row = kIsNormed ? reinterpret_cast<const X*>(normed) + m * p.k
                             : static_cast<const X*>(p.x.data) + m * p.x.row_stride;
    packed.load(row + static_cast<int64>(piece) * kPieceColumns, lane);
  };
  const Piece x(x_pieces + warp * x_bytes, x_rows);
  const XOperands<Piece> x_operands(x, x_rows, lane);
  // 2^23, from what is never negative: of a constant known to the compiler byte_permute takes its selector to
  // a register.
  const unsigned above = 0x4b000000u | static_cast<unsigned>(stream.group_shift >> 31);
  PackedGroup<X> ahead;  // of the first row in the next piece, which memory takes its time for
  if (warp < pieces) load_x(0, warp, ahead);

  int stage = 0;
  for (int first_group = groups.begin; first_group < groups.end; first_group += at_once) {
    const int count = minimum(at_once, groups.end - first_group);
    // Only lanes of rows of x that exist keep sums, each in a place of its own.
    const bool has_sums = lane % 4 < table.pairs;
    const auto sums_of = [&](int group) { return table.at(warp, group, lane / 4, lane % 4); };
    for (int group = 0; group < count; ++group) {
      if (has_sums) *sums_of(group) = {};
    }
    for (int piece = warp; piece < pieces; piece += warps) {
      x.store_row(0, ahead, lane);
      constexpr int kTogether = 4;  // as many as registers allow
      for (int first = 1; first < x_rows; first += kTogether) {
        PackedGroup<X> packed[kTogether];
        TESSERA_UNROLL
        for (int i = 0; i < kTogether; ++i) load_x(minimum(first + i, x_rows - 1), piece, packed[i]);
        TESSERA_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          if (first + i < x_rows) x.store_row(first + i, packed[i], lane);
        }
      }
      load_x(0, piece + warps < pieces ? piece + warps : warp, ahead);
      sync_warp();
      for (int group = 0; group < count; ++group) {
        if (num_stages == Unit::kStages) {
          cp_async_wait<Unit::kStages - 1>();
        } else {
          cp_async_wait<kLeastStages - 1>();
        }
        sync_warp();
        typename Fragment::Rows rows;
        rows.above = above;
        TESSERA_UNROLL
        for (int r = 0; r < 2; ++r) {
          // Where the row's piece begins in the first of its vectors: a multiple of 2 bytes.
          const unsigned row =
              static_cast<unsigned>(groups.first_row(first_group + group) + lane / 4 + r * stream.rows_apart);
          const unsigned begin =
              Unit::kIsAligned ? 0 : (row * row_bytes + static_cast<unsigned>(piece) * Unit::kBytes) % 16;
          rows.row[r] =
              stages + stage * Unit::kUnitBytes + (lane / 4 + 8 * r) * Unit::kStrideBytes + begin / 4 * 4;
          rows.behind[r] = Unit::kBytes % 4 == 0 ? 0 : begin % 4;
        }
        Fragment w;
        w.load(rows, lane % 4);
        float sum[4];
        multiply_unit(sum, w, x_operands);
        Sums total = {};  // on the way while the next unit is asked for
        if (has_sums) total = *sums_of(group);
        const Vector<float, 2> factors = x_operands.factors();
        sync_warp();
        load_next(stage);
        stage = stage + 1 == num_stages ? 0 : stage + 1;
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) total.element[i] = fmaf(sum[i], factors.element[i % 2], total.element[i]);
        if (has_sums) *sums_of(group) = total;
      }
    }
    sync_threads();
    store_groups<X>(groups, first_group, count, table, turns);
    sync_threads();
  }
}

/// Of w's rows in two formats: each block takes groups of one of them.
template <class X, class Upper, class Lower, bool kIsNormed>
TESSERA_DEVICE void gemm_block_bits_of_two(const TwoBlockGemmParams& params) {
  if (block_x() < params.upper_blocks) {
    gemm_block_bits<X, Upper, kIsNormed>(params.upper, block_x());
  } else {
    gemm_block_bits<X, Lower, kIsNormed>(params.lower, block_x() - params.upper_blocks);
  }
}

}  // namespace tessera::kernels::bits

using namespace tessera::kernels;

using Format = tessera::formats::TESSERA_BLOCKS;

#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#ifdef TESSERA_LOWER_BLOCKS
using LowerFormat = tessera::formats::TESSERA_LOWER_BLOCKS;
#define TESSERA_BITS_KERNEL(name, T, kIsNormed)                         \
  TESSERA_KERNEL(name, 512)(const TwoBlockGemmParams p) {               \
    bits::gemm_block_bits_of_two<T, Format, LowerFormat, kIsNormed>(p); \
  }
#else
#define TESSERA_BITS_KERNEL(name, T, kIsNormed)                \
  TESSERA_KERNEL(name, 512)(const BlockGemmParams p) {         \
    bits::gemm_block_bits<T, Format, kIsNormed>(p, block_x()); \
  }
#endif
#define TESSERA_BITS_KERNELS(T)                      \
  TESSERA_BITS_KERNEL(gemm_block_bits_##T, T, false) \
  TESSERA_BITS_KERNEL(gemm_block_bits_normed_##T, T, true)
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_BITS_KERNELS(f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 3
TESSERA_BITS_KERNELS(bf16)
#endif
