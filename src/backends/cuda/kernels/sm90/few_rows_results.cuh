#pragma once

#include "sm90/few_rows_places.cuh"
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

/// Makes the sums of a tile whole whose halves the two blocks of a cluster have: the second's go to the
/// first.
template <int kN>
struct PairSums {
  float4 sums[kN / 8][kWarpgroup];
  unsigned long long arrived;

  /// By one thread, before the cluster's blocks meet.
  TESSERA_DEVICE void start() {
    start_inbox(shared_address(&arrived));
    expect_in_inbox(shared_address(&arrived), sizeof(sums));
  }
  /// False for the second block.
  TESSERA_DEVICE bool add_up(float (&d)[kN / 2]) {
    cluster_wait();
    if (cluster_rank() != 0) {
      TESSERA_UNROLL
      for (int i = 0; i < kN / 8; ++i)
        store_async_in_cluster(shared_of_rank(shared_address(&sums[i][thread_x()]), 0), d[4 * i],
                               d[4 * i + 1], d[4 * i + 2], d[4 * i + 3],
                               shared_of_rank(shared_address(&arrived), 0));
      return false;
    }
    wait_for_inbox(shared_address(&arrived));
    TESSERA_UNROLL
    for (int i = 0; i < kN / 8; ++i) {
      const float4 other = sums[i][thread_x()];  // 0, then the parts, as kernels::add_up() has it
      d[4 * i] = 0.0f + d[4 * i] + other.x;
      d[4 * i + 1] = 0.0f + d[4 * i + 1] + other.y;
      d[4 * i + 2] = 0.0f + d[4 * i + 2] + other.z;
      d[4 * i + 3] = 0.0f + d[4 * i + 3] + other.w;
    }
    return true;
  }
};

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
  static constexpr int kStride = kThreads / kTileRows;  // rows of x that are written at once, unless gated
  static constexpr int kRowsOfThread = kN / kStride;
  const StreamParams& p;
  const TileSums<kN, kWarpgroups>& sums_of;
  int tile;
  unsigned before[kRowsOfThread];  // what is added to, as stored

  /// Starts the loads of what is added to. Before the products: they take as long as several steps.
  TESSERA_DEVICE void load_before() {
    const int row = row_of(thread_x() % kTileRows);
    if (!p.gemm.accumulate || p.gemm.gated != 0 || row >= p.gemm.n) return;
    const bool is_f32 = p.gemm.out.type == kElementF32;
    TESSERA_UNROLL
    for (int i = 0; i < kRowsOfThread; ++i) {
      const int m = thread_x() / kTileRows + i * kStride;
      if (m >= static_cast<int>(p.gemm.m)) break;
      const int64 at = m * p.gemm.out.row_stride + row;
      before[i] = is_f32 ? static_cast<const unsigned*>(p.gemm.out.data)[at]
                         : static_cast<const unsigned short*>(p.gemm.out.data)[at];
    }
  }

  TESSERA_DEVICE int row_of(int r) const { return row_of_tile(p, tile, kTileRows, r); }
  TESSERA_DEVICE float bias_of(int row) const {
    return p.gemm.bias.data != nullptr ? load_scalar(p.gemm.bias, row) : 0.0f;
  }

  /// O: of out. A result of each two rows.
  template <class O>
  TESSERA_DEVICE void store_gated() const {
    constexpr int kColumns = kTileRows / 2;
    const int column = thread_x() % kColumns;
    const int r = column % 8 + column / 8 * 16;
    const int row = row_of(r);
    if (row >= p.gemm.n / 2) return;
    const float bias = bias_of(row);
    const float bias_of_up = bias_of(row + p.rows_apart);
    O* out = static_cast<O*>(p.gemm.out.data) + row;
    for (int m = thread_x() / kColumns; m < static_cast<int>(p.gemm.m); m += kThreads / kColumns) {
      const float gate = gate_activation(p.gemm.gated - 1, sums_of.sums[m][r] + bias);
      const float value = gate * (sums_of.sums[m][r + 8] + bias_of_up);
      O& to = out[m * p.gemm.out.row_stride];
      to = from_float<O>(p.gemm.accumulate ? value + to_float(to) : value);
    }
  }
  template <class O>
  TESSERA_DEVICE void store_rows() const {
    const int r = thread_x() % kTileRows;
    const int row = row_of(r);
    if (row >= p.gemm.n) return;
    const float bias = bias_of(row);
    O* out = static_cast<O*>(p.gemm.out.data) + row;
    TESSERA_UNROLL
    for (int i = 0; i < kRowsOfThread; ++i) {
      const int m = thread_x() / kTileRows + i * kStride;
      if (m >= static_cast<int>(p.gemm.m)) break;
      const float value = sums_of.sums[m][r] + bias;
      // Without the addition a zero keeps its sign, as gemm_many_rows.cu has it.
      out[m * p.gemm.out.row_stride] =
          from_float<O>(p.gemm.accumulate ? value + packed_element(before + i, 0, O()) : value);
    }
  }

  /// Heads, rotated and appended: store(m, pair of the tile's, its rows of w, their results).
  template <class Store>
  TESSERA_DEVICE void append(Store store) const {
    constexpr int kPairs = kTileRows / 2;
    const int pair = thread_x() % kPairs;
    const int r = first_row_of_pair(p, pair), other = second_row_of_pair(p, pair);
    const int row = row_of(r), other_row = row_of(other);
    if (row >= p.gemm.n) return;
    const float bias = bias_of(row), other_bias = bias_of(other_row);
    for (int m = thread_x() / kPairs; m < static_cast<int>(p.gemm.m); m += kThreads / kPairs)
      store(m, pair, row, other_row, sums_of.sums[m][r] + bias, sums_of.sums[m][other] + other_bias);
  }
  /// The same, looked up and computed before.
  TESSERA_DEVICE void append(const Places<kN>& places) const {
    static_assert(kTileRows == kRowsOfWarpgroup, "a tile of the places'");
    append([&](int m, int pair, int row, int other_row, float x, float y) {
      places.template store<T>(p, m, pair, row, other_row, x, y);
    });
  }

  template <class O>
  TESSERA_DEVICE void store() const {
    if (p.gemm.gated != 0) {
      store_gated<O>();
    } else {
      store_rows<O>();
    }
  }
  TESSERA_DEVICE void store() const {
    if (p.rope.num_heads != 0) {
      append([&](int m, int, int row, int other_row, float x, float y) {
        store_turned_pair<T>(p, m, row, other_row, x, y);
      });
    } else if (p.gemm.out.type == kElementF32) {
      store<float>();
    } else {
      store<T>();
    }
  }
};

}  // namespace tessera::kernels
