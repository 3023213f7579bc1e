// out = x w^T (+ bias) (+ out), or gated, for a few rows of x and Q8_0 weights, bound by reading w once: the
// tensor cores multiply the int8 values exactly (q8.cuh).
//
// Grid: one block a multiprocessor, which takes an equal share of the groups of 16 rows of w (gated: 8 of the
// gate and the 8 of the up projection that they are multiplied with). Each of its warps streams every n-th
// piece of 256 columns, n being the warps of a block, through buffers of its own, some groups after the
// other, so that what it loads of x serves them all; there is no barrier between warps until these groups'
// sums meet. The first pieces are asked for before the kernel waits for the one that makes x.
//
// fp32 x is brought into the range of fp16 piece by piece, by a power of two, and cut into two fp16 numbers.
// What they leave out is less than 2^-24 of a number, or 2^-39 of the piece's largest.

#include "sm80/gemm_q8.h"
#include "sm80/q8.cuh"

namespace tessera::kernels {

constexpr int kStages = kQ8Stages;
constexpr int kUnitBytes = kQ8UnitBytes;
constexpr int kUnitVectors = kUnitBytes / 16;
constexpr int kVectorsPerLane = (kUnitVectors + 31) / 32;

/// The groups of rows of w of one block.
struct Groups {
  int begin, end;
  int columns;    // of out
  int per_group;  // columns of out that a group makes

  TESSERA_DEVICE explicit Groups(const Q8GemmParams& params) {
    const GemmParams& p = params.product;
    per_group = p.gated == 0 ? kTileRows : kTileRows / 2;
    columns = static_cast<int>(p.gated == 0 ? p.n : p.n / 2);
    begin = block_x() * params.groups_per_block + minimum(block_x(), params.more_groups);
    end = begin + params.groups_per_block + (block_x() < params.more_groups ? 1 : 0);
  }
  /// The last group is loaded whole, with columns of the one before.
  TESSERA_DEVICE int first_loaded(int group) const { return minimum(group * per_group, columns - per_group); }
};

/// Goes over a warp's units: some groups at once, its pieces of these, each piece of all these groups.
struct UnitCursor {
  int first_group;  // of those at once
  int piece;
  int group;
  int end_group;  // of those at once

  TESSERA_DEVICE UnitCursor(const Groups& groups, int first_piece, int pieces, int at_once)
      : first_group(first_piece < pieces ? groups.begin : groups.end),
        piece(first_piece),
        group(first_group),
        end_group(minimum(first_group + at_once, groups.end)) {}
  TESSERA_DEVICE bool is_done(const Groups& groups) const { return first_group >= groups.end; }
  TESSERA_DEVICE void advance(const Groups& groups, int first_piece, int pieces, int step, int at_once) {
    if (++group < end_group) return;
    piece += step;
    if (piece >= pieces) {
      piece = first_piece;
      first_group += at_once;
      end_group = minimum(first_group + at_once, groups.end);
    }
    group = first_group;
  }
};

/// Where a lane's 16 bytes of a unit come from, from the first byte of the unit on.
struct UnitOffsets {
  unsigned offset[kVectorsPerLane];

  TESSERA_DEVICE UnitOffsets(const GemmParams& p, unsigned row_bytes, int lane) {
    TESSERA_UNROLL
    for (int i = 0; i < kVectorsPerLane; ++i) {
      const int vector = lane + i * 32;
      unsigned row = static_cast<unsigned>(vector / kQ8PieceVectors);
      if (p.gated != 0 && row >= kTileRows / 2) row += static_cast<unsigned>(p.n / 2) - kTileRows / 2;
      offset[i] = row * row_bytes + static_cast<unsigned>(vector % kQ8PieceVectors * 16);
    }
  }
  TESSERA_DEVICE void load(unsigned shared, const unsigned char* unit, int lane) const {
    TESSERA_UNROLL
    for (int i = 0; i < kVectorsPerLane; ++i) {
      if (lane + i * 32 >= kUnitVectors) continue;
      cp_async_16(shared + static_cast<unsigned>(lane + i * 32) * 16, unit + offset[i], true);
    }
  }
};

/// A lane's part of rows of x in a piece's columns; zeros beyond the last row.
template <class X, int kTiles>
struct XPiece {
  using Operand = X;
  static constexpr int kParts = 1;
  XFragment<1> block[kTiles][kQ8PieceBlocks];

  TESSERA_DEVICE void load(const GemmParams& p, int64 first_column, int lane) {
    TESSERA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int64 m = tile * kTileM + lane / 4;
      const X* row = static_cast<const X*>(p.x.data) + m * p.x.row_stride + first_column;
      TESSERA_UNROLL
      for (int b = 0; b < kQ8PieceBlocks; ++b) {
        XColumns<X> columns = {};
        if (m < p.m) columns.load(row + b * 32, lane % 4);
        set_fragment(block[tile][b], columns);
      }
    }
  }
  /// What the piece's sums of the lane's i-th row of x are to be multiplied with.
  TESSERA_DEVICE float factor(int, int) const { return Int8As<Operand>::kFactor; }
};

template <int kTiles>
struct XPiece<float, kTiles> {
  using Operand = f16;
  static constexpr int kParts = 2;
  XFragment<2> block[kTiles][kQ8PieceBlocks];
  float factors[kTiles][2];

  TESSERA_DEVICE void load(const GemmParams& p, int64 first_column, int lane) {
    constexpr int kTarget = 14;  // the exponent of the largest, so that it stays below 2^15
    TESSERA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int64 m = tile * kTileM + lane / 4;
      const float* row = static_cast<const float*>(p.x.data) + m * p.x.row_stride + first_column;
      XColumns<float> columns[kQ8PieceBlocks] = {};
      float largest = 0.0f;
      TESSERA_UNROLL
      for (int b = 0; b < kQ8PieceBlocks; ++b) {
        if (m < p.m) columns[b].load(row + b * 32, lane % 4);
      }
      TESSERA_UNROLL
      for (int b = 0; b < kQ8PieceBlocks; ++b) {
        TESSERA_UNROLL
        for (int i = 0; i < 8; ++i)
          largest = fmaxf(largest, fabsf(float_of_bits(columns[b].half[i / 4].element[i % 4])));
      }
      largest = fmaxf(largest, shuffle_xor(largest, 1));
      largest = fmaxf(largest, shuffle_xor(largest, 2));
      const int exponent = static_cast<int>(bits_of_float(largest) >> 23) - 127;
      const int shift = kTarget - minimum(maximum(exponent, -100), 127);
      const float scale = float_of_bits(static_cast<unsigned>(127 + shift) << 23);
      const float back = float_of_bits(static_cast<unsigned>(127 - shift) << 23);
      TESSERA_UNROLL
      for (int i = 0; i < 2; ++i) factors[tile][i] = shuffle(back, (lane % 4 * 2 + i) * 4);
      TESSERA_UNROLL
      for (int b = 0; b < kQ8PieceBlocks; ++b) {
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float first = float_of_bits(columns[b].half[i / 2].element[i % 2 * 2]) * scale;
          const float second = float_of_bits(columns[b].half[i / 2].element[i % 2 * 2 + 1]) * scale;
          const unsigned high = cvt_x2<f16>(first, second);
          block[tile][b].pair[0][i] = high;
          block[tile][b].pair[1][i] =
              cvt_x2<f16>(first - scale_of_bits(high & 0xffffu), second - scale_of_bits(high >> 16));
        }
      }
    }
  }
  TESSERA_DEVICE float factor(int tile, int i) const { return factors[tile][i]; }
};

template <class Piece, int kTiles>
TESSERA_DEVICE void multiply_unit(float (&sum)[kTiles][4], const unsigned char* unit, const Piece& x,
                                  int lane) {
  using T = typename Piece::Operand;
  constexpr int kParts = Piece::kParts;
  TESSERA_UNROLL
  for (int pair = 0; pair < kQ8PieceBlocks / 2; ++pair) {
    const unsigned char* blocks = unit + lane / 4 * kQ8PieceBytes + pair * kQ8PairBytes;
    Q8Fragment w[2];
    w[0].load<T, false, kQ8PieceBytes>(blocks, lane % 4);
    w[1].load<T, true, kQ8PieceBytes>(blocks, lane % 4);
    float c[2 * kTiles][4];
    multiply_blocks<T, kParts>(
        c, [&](int i) -> const Q8Fragment& { return w[i % 2]; },
        [&](int i) -> const XFragment<kParts>& { return x.block[i / 2][pair * 2 + i % 2]; });
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i) add_scaled(sum[i / 2], c[i], w[i % 2].scale);
  }
}

using Sums = Vector<float, 4>;
static_assert(sizeof(Sums) == 16, "as q8_shared_bytes has it");

/// The warps' sums of some groups: [warp][group][row of w mod 8][pair of rows of x], each of two rows of w.
struct SumTable {
  Sums* data;
  int groups, pairs;

  TESSERA_DEVICE Sums* at(int warp, int group, int row, int pair) const {
    return data + ((warp * groups + group) * 8 + row) * pairs + pair;
  }
};

/// Adds up the warps' sums and writes the columns of `count` groups.
TESSERA_DEVICE void store_groups(const GemmParams& p, const Groups& groups, int first_group, int count,
                                 const SumTable& table) {
  const int warps = block_size() / 32;
  const int columns = count * groups.per_group;
  for (int i = thread_x(); i < columns * static_cast<int>(p.m); i += block_size()) {
    const int m = i / columns;
    const int group = i % columns / groups.per_group;
    const int row = i % groups.per_group;
    const int column = groups.first_loaded(first_group + group) + row;
    if (column < (first_group + group) * groups.per_group) continue;
    const auto total_of = [&](int tile_row, int64 w_row) {
      float total = 0.0f;
      for (int warp = 0; warp < warps; ++warp)
        total += table.at(warp, group, tile_row % 8, m / 2)->element[tile_row / 8 * 2 + m % 2];
      return p.bias.data != nullptr ? total + load_scalar(p.bias, w_row) : total;
    };
    float total = total_of(row, column);
    if (p.gated != 0) {
      total = gate_activation(p.gated - 1, total) * total_of(row + kTileRows / 2, column + p.n / 2);
    }
    const int64 offset = m * p.out.row_stride + column;
    if (p.accumulate) total += load_scalar(p.out, offset);
    store_scalar(p.out, offset, total);
  }
}

template <class X, int kTiles>
TESSERA_DEVICE void gemm_q8(const Q8GemmParams& params) {
  TESSERA_DYNAMIC_SHARED(shared);
  const GemmParams& p = params.product;
  const int lane = thread_x() % 32;
  const int warp = thread_x() / 32;
  const int warps = block_size() / 32;
  const int at_once = params.groups_at_once;
  const int pieces = static_cast<int>(p.k / kQ8PieceColumns);
  const unsigned row_bytes = static_cast<unsigned>(pieces) * kQ8PieceBytes;
  const Groups groups(params);
  unsigned char* stages = shared + warp * kStages * kUnitBytes;
  const SumTable table{reinterpret_cast<Sums*>(shared + warps * kStages * kUnitBytes), at_once,
                       static_cast<int>(p.m + 1) / 2};

  allow_next_kernel();
  const UnitOffsets offsets(p, row_bytes, lane);
  UnitCursor next(groups, warp, pieces, at_once);
  const auto load_next = [&](int stage) {
    if (!next.is_done(groups)) {
      const unsigned row = static_cast<unsigned>(groups.first_loaded(next.group));
      const unsigned char* unit = static_cast<const unsigned char*>(p.weight.data) +
                                  static_cast<unsigned long long>(row) * row_bytes +
                                  static_cast<unsigned>(next.piece * kQ8PieceBytes);
      offsets.load(shared_address(stages + stage * kUnitBytes), unit, lane);
      next.advance(groups, warp, pieces, warps, at_once);
    }
    cp_async_commit();
  };
  TESSERA_UNROLL
  for (int stage = 0; stage < kStages; ++stage) load_next(stage);
  wait_for_prior_kernels();

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
      XPiece<X, kTiles> x;
      x.load(p, static_cast<int64>(piece) * kQ8PieceColumns, lane);
      for (int group = 0; group < count; ++group) {
        cp_async_wait<kStages - 1>();
        sync_warp();
        float sum[kTiles][4] = {};
        multiply_unit(sum, stages + stage * kUnitBytes, x, lane);
        sync_warp();
        Sums total[kTiles] = {};  // on the way while the next unit is asked for
        TESSERA_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          if (has_sums(tile)) total[tile] = *sums_of(group, tile);
        }
        load_next(stage);
        stage = stage + 1 == kStages ? 0 : stage + 1;
        TESSERA_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          TESSERA_UNROLL
          for (int i = 0; i < 4; ++i)
            total[tile].element[i] = fmaf(sum[tile][i], x.factor(tile, i % 2), total[tile].element[i]);
          if (has_sums(tile)) *sums_of(group, tile) = total[tile];
        }
      }
    }
    sync_threads();
    store_groups(p, groups, first_group, count, table);
    sync_threads();
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

using f32 = float;

// More rows of x leave registers for fewer threads.
#define TESSERA_Q8_KERNEL(type, tiles, threads) \
  TESSERA_KERNEL(gemm_q8_##type##_##tiles, threads)(const Q8GemmParams p) { gemm_q8<type, tiles>(p); }
TESSERA_Q8_KERNEL(f32, 1, 512)
TESSERA_Q8_KERNEL(f32, 2, 256)
TESSERA_Q8_KERNEL(f16, 1, 512)
TESSERA_Q8_KERNEL(f16, 2, 320)
TESSERA_Q8_KERNEL(f16, 4, 256)
TESSERA_Q8_KERNEL(bf16, 1, 512)
TESSERA_Q8_KERNEL(bf16, 2, 320)
TESSERA_Q8_KERNEL(bf16, 4, 256)
