#pragma once

#include "sm80/fused_rows.cuh"
#include "sm90/few_rows_tiles.h"
#include "sm90/ptx.cuh"

// How sums of a tile, 64 rows of w a warpgroup by kN rows of x, become results: those of a tile that several
// blocks share are added up, then each thread takes a column of results.

namespace tessera::kernels {

constexpr int kWarpgroup = 128;

/// A tile's sums, where all threads of the block find them.
template <int kN, int kWarpgroups>
struct TileSums {
  static constexpr int kRows = kWarpgroups * kRowsOfWarpgroup;
  int is_last;  // whether this block adds up the tile
  float sums[kN][few_rows_sum_stride(kRows)];
};

/// Makes the sums of a split tile whole; false if another block will.
template <int kN, int kWarpgroups>
TESSERA_DEVICE bool add_up(const FewRowsParts& parts, TileSums<kN, kWarpgroups>& tile, const TileShare& share,
                           float (&d)[kN / 2]) {
  constexpr int kThreads = kWarpgroups * kWarpgroup;
  const FewRowsShares& shares = parts.shares;
  if (share.end - share.begin == shares.steps) return true;
  const int64 first_step = static_cast<int64>(share.tile) * shares.steps;
  const auto place = [&](int block) {
    const int slot = 2 * block + (first_split_step(shares, block) < first_step ? 1 : 0);
    return parts.partials + static_cast<int64>(slot) * (kWarpgroups * kRowsOfWarpgroup * kN) + thread_x() * 4;
  };
  float* mine = place(block_x());
  TESSERA_UNROLL
  for (int i = 0; i < kN / 8; ++i)
    store_global_16(mine + i * (kThreads * 4), d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
  const int first_block = block_of_split_step(shares, first_step);
  const int last_block = block_of_split_step(shares, first_step + shares.steps - 1);
  fence_gpu();
  named_barrier_sync(1, kThreads);
  if (thread_x() == 0) {
    tile.is_last = atomicAdd(parts.arrivals + share.tile, 1) == last_block - first_block;
    if (tile.is_last) parts.arrivals[share.tile] = 0;
  }
  named_barrier_sync(1, kThreads);
  if (!tile.is_last) return false;
  fence_gpu();
  constexpr int kAtOnce = 32 / (kN / 2) > 0 ? 32 / (kN / 2) : 1;  // blocks whose sums are under way together
  TESSERA_UNROLL
  for (int i = 0; i < kN / 2; ++i) d[i] = 0.0f;
  for (int block = first_block; block <= last_block; block += kAtOnce) {
    float4 part[kAtOnce][kN / 8];
    TESSERA_UNROLL
    for (int b = 0; b < kAtOnce; ++b) {
      const float* from = place(minimum(block + b, last_block));
      TESSERA_UNROLL
      for (int i = 0; i < kN / 8; ++i) part[b][i] = load_l2_16(from + i * (kThreads * 4));
    }
    TESSERA_UNROLL
    for (int b = 0; b < kAtOnce; ++b) {
      if (block + b > last_block) break;
      TESSERA_UNROLL
      for (int i = 0; i < kN / 8; ++i) {
        d[4 * i] += part[b][i].x;
        d[4 * i + 1] += part[b][i].y;
        d[4 * i + 2] += part[b][i].z;
        d[4 * i + 3] += part[b][i].w;
      }
    }
  }
  return true;
}

/// Puts a tile's sums where all threads find them.
template <int kN, int kWarpgroups>
TESSERA_DEVICE void share_sums(TileSums<kN, kWarpgroups>& tile, const float (&d)[kN / 2]) {
  const int row = thread_x() / 32 * 16 + thread_x() % 32 / 4;
  TESSERA_UNROLL
  for (int i = 0; i < kN / 2; ++i)
    tile.sums[i / 4 * 8 + thread_x() % 4 * 2 + i % 2][row + i % 4 / 2 * 8] = d[i];
  named_barrier_sync(1, kWarpgroups * kWarpgroup);
}

/// Makes a tile's sums results. A thread has one column of results, and its neighbours those beside it.
template <class T, int kN, int kWarpgroups>
struct FewRowsResults {
  static constexpr int kThreads = kWarpgroups * kWarpgroup;
  static constexpr int kTileRows = kWarpgroups * kRowsOfWarpgroup;
  const StreamParams& p;
  const TileSums<kN, kWarpgroups>& sums_of;
  int tile;

  /// w's row of the tile's row r.
  TESSERA_DEVICE int row_of(int r) const {
    const int group = tile * (kTileRows / 16) + r / 16;
    return first_row_of_group(p, group) + r % 8 + r % 16 / 8 * p.rows_apart;
  }
  TESSERA_DEVICE float bias_of(int row) const {
    return p.gemm.bias.data != nullptr ? load_scalar(p.gemm.bias, row) : 0.0f;
  }

  /// O: of out. kGated: a result of each two rows.
  template <class O, bool kGated>
  TESSERA_DEVICE void store() const {
    constexpr int kColumns = kGated ? kTileRows / 2 : kTileRows;
    constexpr int kStride = kThreads / kColumns;  // rows of x that are written at once
    constexpr int kAtOnce = 4;  // results of a thread, so that their loads are under way together
    const int column = thread_x() % kColumns;
    const int r = kGated ? column % 8 + column / 8 * 16 : column;
    const int row = row_of(r);
    if (row >= (kGated ? p.gemm.n / 2 : p.gemm.n)) return;
    const float bias = bias_of(row);
    const float bias_of_up = kGated ? bias_of(row + p.rows_apart) : 0.0f;
    O* out = static_cast<O*>(p.gemm.out.data) + row;
    const int rows = static_cast<int>(p.gemm.m);
    for (int first = thread_x() / kColumns; first < rows; first += kStride * kAtOnce) {
      float before[kAtOnce];
      TESSERA_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const int m = first + u * kStride;
        before[u] = p.gemm.accumulate && m < rows ? to_float(out[m * p.gemm.out.row_stride]) : 0.0f;
      }
      TESSERA_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const int m = first + u * kStride;
        if (m >= rows) break;
        float value = sums_of.sums[m][r] + bias;
        if (kGated) value = gate_activation(p.gemm.gated - 1, value) * (sums_of.sums[m][r + 8] + bias_of_up);
        // Without the addition a zero keeps its sign, as gemm_many_rows.cu has it.
        out[m * p.gemm.out.row_stride] = from_float<O>(p.gemm.accumulate ? value + before[u] : value);
      }
    }
  }

  /// Heads, rotated and appended: pairs are a group's halves, or neighbours.
  TESSERA_DEVICE void append() const {
    constexpr int kPairs = kTileRows / 2;
    const int pair = thread_x() % kPairs;
    const bool interleaved = p.rope.rotation.interleaved != 0;
    const int r = interleaved ? 2 * pair : pair % 8 + pair / 8 * 16;
    const int other = interleaved ? r + 1 : r + 8;
    const int row = row_of(r), other_row = row_of(other);
    if (row >= p.gemm.n) return;
    const float bias = bias_of(row), other_bias = bias_of(other_row);
    for (int m = thread_x() / kPairs; m < static_cast<int>(p.gemm.m); m += kThreads / kPairs)
      store_turned_pair<T>(p, m, row, other_row, sums_of.sums[m][r] + bias,
                           sums_of.sums[m][other] + other_bias);
  }

  template <class O>
  TESSERA_DEVICE void store() const {
    if (p.gemm.gated != 0) {
      store<O, true>();
    } else {
      store<O, false>();
    }
  }
  TESSERA_DEVICE void store() const {
    if (p.rope.num_heads != 0) {
      append();
    } else if (p.gemm.out.type == kElementF32) {
      store<float>();
    } else {
      store<T>();
    }
  }
};

}  // namespace tessera::kernels
