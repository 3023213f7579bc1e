// out = x w^T (+ bias) (+ out), or gated, for a few rows of x and weights of blocks (TESSERA_BLOCKS), bound
// by reading w once: the tensor cores multiply the blocks' integers exactly (block_fragments.cuh). For fp32
// x, and for nine rows and more of 16 bits; gemm_block_bits.cu is for fewer.
//
// Grid: one block a multiprocessor or two, which take equal shares of the groups of 16 rows of w (gated: 8 of
// the gate and the 8 of the up projection that they are multiplied with; rotated: 8 of a head's first half
// and those that they are rotated with). Each of a block's warps streams every n-th piece of 256 columns, n
// being the warps of a block, through buffers of its own, some groups after the other, so that what it loads
// of x serves them all; there is no barrier between warps until these groups' sums meet. The first pieces are
// asked for before the kernel waits for the one that makes x.
//
// x is brought into the range of fp16 piece by piece, by a power of two, which leaves the bits of 16-bit
// types as they are; fp32 is cut into two fp16 numbers. What is left out is less than 2^-24 of a number, or
// 2^-39 of the piece's largest.

#include "sm80/block_fragments.cuh"
#include "sm80/block_units.cuh"

namespace tessera::kernels {

/// A lane's part of rows of x in a piece's columns, as operands b.
template <class X, class Fragment, int kTiles>
struct XPiece {
  static constexpr int kParts = is_same<X, float> ? 2 : 1;
  static constexpr int kHalfDistance = Fragment::kLaneColumns == 4 ? 16 : 4;
  static constexpr int kSums = Fragment::kOffsetGroups / 8;

  unsigned pair[kParts][kTiles][kPieceGroups][4];
  /// Of the columns of groups 2 t and 2 t + 1 (and 8 further on), divided by kXSumFactor to fit; two parts.
  unsigned sums[kTiles][2][kSums > 0 ? kSums : 1];
  float factors[kTiles][2];  // of the lane's i-th row of x among the sums of products

  /// Columns of a tile's row from `row` on.
  TESSERA_DEVICE void load_tile(int tile, const X* row, int t) {
    constexpr int kWords = sizeof(X);  // of four columns
    Vector<unsigned, kWords> stored[kPieceGroups][2];
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kPieceGroups; ++i) {
      const int column = i / 2 * 32 + Fragment::kLaneColumns * t + i % 2 * kHalfDistance;
      stored[i / 2][i % 2] = *reinterpret_cast<const Vector<unsigned, kWords>*>(row + column);
    }
    const auto value = [&](int group, int step, int i) {
      return packed_element(stored[group][step].element, i, X());
    };
    float largest = 0.0f;
    TESSERA_UNROLL
    for (int i = 0; i < 8 * kPieceGroups; ++i)
      largest = fmaxf(largest, fabsf(value(i / 8, i / 4 % 2, i % 4)));
    largest = fmaxf(largest, shuffle_xor(largest, 1));
    largest = fmaxf(largest, shuffle_xor(largest, 2));
    const RangeOfX range(bits_of_float(largest));
    TESSERA_UNROLL
    for (int i = 0; i < 2; ++i) factors[tile][i] = shuffle(range.back, (t * 2 + i) * 4);

    float sum[kSums > 0 ? 8 * kSums : 1] = {};
    TESSERA_UNROLL
    for (int i = 0; i < 4 * kPieceGroups; ++i) {
      const int group = i / 4, step = i / 2 % 2, n = i % 2;
      const float first = value(group, step, Fragment::kIsInterleaved ? n : 2 * n) * range.scale;
      const float second = value(group, step, Fragment::kIsInterleaved ? n + 2 : 2 * n + 1) * range.scale;
      const unsigned high = cvt_x2<f16>(first, second);
      pair[0][tile][group][2 * step + n] = high;
      if constexpr (kParts == 2) {
        pair[1][tile][group][2 * step + n] =
            cvt_x2<f16>(first - to_float(f16{static_cast<unsigned short>(high)}),
                        second - to_float(f16{static_cast<unsigned short>(high >> 16)}));
      }
      if constexpr (kSums > 0) sum[kSums == 1 ? group : 2 * group + step] += first + second;
    }
    TESSERA_UNROLL
    for (int n = 0; n < kSums; ++n) set_sums(tile, n, sum + 8 * n, t);
  }

  /// From the lanes' sums of eight groups.
  TESSERA_DEVICE void set_sums(int tile, int n, float* sum, int t) {
    TESSERA_UNROLL
    for (int i = 0; i < 8; ++i) {
      sum[i] += shuffle_xor(sum[i], 1);
      sum[i] += shuffle_xor(sum[i], 2);
    }
    float v[2];
    TESSERA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float of_two = t % 2 == 0 ? sum[i] : sum[2 + i];
      const float of_next = t % 2 == 0 ? sum[4 + i] : sum[6 + i];
      v[i] = (t < 2 ? of_two : of_next) / kXSumFactor;
    }
    const unsigned high = cvt_x2<f16>(v[0], v[1]);
    sums[tile][0][n] = high;
    sums[tile][1][n] = cvt_x2<f16>(v[0] - to_float(f16{static_cast<unsigned short>(high)}),
                                   v[1] - to_float(f16{static_cast<unsigned short>(high >> 16)}));
  }
};

/// sum = a unit's products with x, but for x's factors.
template <class Fragment, class Piece, int kTiles>
TESSERA_DEVICE void multiply_unit(float (&sum)[kTiles][4], Fragment& w, const Piece& x) {
  // The tensor cores cut off what an addition leaves over: sums of fp32 x must be short to be fp32's.
  constexpr int kStepColumns =
      Piece::kParts == 2 && Fragment::kStepColumns == 256 ? 32 : Fragment::kStepColumns;
  // Sums of a whole piece alternate, so that an instruction waits for the one before the last.
  constexpr int kChains = kStepColumns == 256 && kTiles == 1 ? 2 : 1;
  float chain[kChains][kTiles][4];
  TESSERA_UNROLL
  for (int group = 0; group < kPieceGroups; ++group) {
    BlockOperands a;
    w.operands(group, a);
    TESSERA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      float c[4];
      TESSERA_UNROLL
      for (int step = 0; step < 2; ++step) {
        TESSERA_UNROLL
        for (int part = Piece::kParts - 1; part >= 0; --part) {  // the smaller first
          const unsigned* b = &x.pair[part][tile][group][2 * step];
          const bool is_first_part = part == Piece::kParts - 1;
          if constexpr (kStepColumns == 256) {
            float(&to)[4] = chain[step % kChains][tile];
            if (group == 0 && is_first_part && step < kChains) {
              mma_m16n8k16_first<f16>(to, a[step], b[0], b[1]);
            } else {
              mma_m16n8k16<f16>(to, a[step], b[0], b[1]);
            }
          } else if (is_first_part && (kStepColumns == 16 || step == 0)) {
            mma_m16n8k16_first<f16>(c, a[step], b[0], b[1]);
          } else {
            mma_m16n8k16<f16>(c, a[step], b[0], b[1]);
          }
        }
        if constexpr (kStepColumns != 256) {
          if (kStepColumns == 32 && step == 0) continue;
          TESSERA_UNROLL
          for (int i = 0; i < 4; ++i) sum[tile][i] = fmaf(c[i], w.scale(group, step, i / 2), sum[tile][i]);
        }
      }
    }
  }
  if constexpr (kStepColumns == 256) {
    TESSERA_UNROLL
    for (int i = 0; i < 4 * kTiles; ++i)
      sum[i / 4][i % 4] =
          kChains == 1 ? chain[0][i / 4][i % 4] : chain[0][i / 4][i % 4] + chain[kChains - 1][i / 4][i % 4];
  }
  TESSERA_UNROLL
  for (int i = 0; i < 4 * kTiles; ++i) sum[i / 4][i % 4] *= w.final_scale(i % 4 / 2);
  if constexpr (Fragment::kOffsetGroups > 0) {
    unsigned a[4];
    w.offsets(a);
    TESSERA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      float c[4];
      const auto& parts = x.sums[tile];
      if constexpr (Fragment::kOffsetGroups == 8) {
        mma_m16n8k16_first<f16>(c, a, parts[0][0], parts[1][0]);
      } else {
        mma_m16n8k16_first<f16>(c, a, parts[1][0], parts[1][1]);
        mma_m16n8k16<f16>(c, a, parts[0][0], parts[0][1]);
      }
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i)
        sum[tile][i] = fmaf(c[i], w.final_offset_scale(i / 2) * kXSumFactor, sum[tile][i]);
    }
  }
}

/// Dynamic shared memory: the buffers; the sums.
template <class X, class Format, int kTiles>
TESSERA_DEVICE void gemm_blocks(const BlockGemmParams& params) {
  using Unit = WeightPiece<Format>;
  using Fragment = BlockFragment<Format>;
  TESSERA_DYNAMIC_SHARED(shared);
  const StreamParams& stream = params.stream;
  const GemmParams& p = stream.gemm;
  const int lane = thread_x() % 32;
  const int warp = thread_x() / 32;
  const int warps = block_size() / 32;
  const int at_once = params.groups_at_once;
  const int pieces = static_cast<int>(p.k / kPieceColumns);
  const unsigned row_bytes = static_cast<unsigned>(pieces) * Unit::kBytes;
  const Groups groups(params, block_x());
  unsigned char* stages = shared + warp * Unit::kStages * Unit::kUnitBytes;
  const SumTable table{reinterpret_cast<Sums*>(shared + warps * Unit::kStages * Unit::kUnitBytes), at_once,
                       static_cast<int>(p.m + 1) / 2};

  allow_next_kernel();
  const UnitCopies<Format> copies(stream.rows_apart, row_bytes, lane);
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
    for (int stage = 0; stage < Unit::kStages; ++stage) load_next(stage);
  };
  fill_stages();
  wait_for_prior_kernels();
  const auto row_of_x = [&](int64 m) {
    const int64 row = minimum(m, p.m - 1);  // what is multiplied beyond the last row is not stored
    return static_cast<const X*>(p.x.data) + row * p.x.row_stride;
  };

  int stage = 0;
  for (int first_group = groups.begin; first_group < groups.end; first_group += at_once) {
    const int count = minimum(at_once, groups.end - first_group);
    // Only lanes of rows of x that exist keep sums, each in a place of its own.
    const auto has_sums = [&](int tile) { return tile * (kTileM / 2) + lane % 4 < table.pairs; };
    const auto sums_of = [&](int group, int tile) {
      return table.at(warp, group, lane / 4, tile * (kTileM / 2) + lane % 4);
    };
    for (int group = 0; group < count; ++group) {
      TESSERA_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        if (has_sums(tile)) *sums_of(group, tile) = {};
      }
    }
    for (int piece = warp; piece < pieces; piece += warps) {
      XPiece<X, Fragment, kTiles> x;
      TESSERA_UNROLL
      for (int tile = 0; tile < kTiles; ++tile)
        x.load_tile(tile, row_of_x(tile * kTileM + lane / 4) + static_cast<int64>(piece) * kPieceColumns,
                    lane % 4);
      for (int group = 0; group < count; ++group) {
        cp_async_wait<Unit::kStages - 1>();
        sync_warp();
        typename Fragment::Rows rows;
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
        float sum[kTiles][4] = {};
        multiply_unit(sum, w, x);
        sync_warp();
        Sums total[kTiles] = {};  // on the way while the next unit is asked for
        TESSERA_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          if (has_sums(tile)) total[tile] = *sums_of(group, tile);
        }
        load_next(stage);
        stage = stage + 1 == Unit::kStages ? 0 : stage + 1;
        TESSERA_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          TESSERA_UNROLL
          for (int i = 0; i < 4; ++i)
            total[tile].element[i] = fmaf(sum[tile][i], x.factors[tile][i % 2], total[tile].element[i]);
          if (has_sums(tile)) *sums_of(group, tile) = total[tile];
        }
      }
    }
    sync_threads();
    store_groups<X>(groups, first_group, count, table, nullptr, block_size());
    sync_threads();
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

using f32 = float;
using Format = tessera::formats::TESSERA_BLOCKS;

#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
// More of x leaves registers for fewer threads.
#define TESSERA_BLOCKS_KERNEL(name, threads, ...) \
  TESSERA_KERNEL(name, threads)(const BlockGemmParams p) { gemm_blocks<__VA_ARGS__>(p); }
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
TESSERA_BLOCKS_KERNEL(gemm_blocks_f32_1, 256, f32, Format, 1)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_BLOCKS_KERNEL(gemm_blocks_f16_2, 256, f16, Format, 2)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 3
TESSERA_BLOCKS_KERNEL(gemm_blocks_bf16_2, 256, bf16, Format, 2)
#endif
