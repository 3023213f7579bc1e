#pragma once

#include "sm80/fused_rows.cuh"
#include "sm90/few_rows_tiles.h"
#include "sm90/ring_barriers.cuh"

namespace tessera::kernels {

/// The first row of w's of a tile's pair: of neighbours, or of a group's halves.
TESSERA_DEVICE int first_row_of_pair(const StreamParams& p, int pair) {
  return p.rope.rotation.interleaved != 0 ? 2 * pair : pair % 8 + pair / 8 * 16;
}
TESSERA_DEVICE int second_row_of_pair(const StreamParams& p, int pair) {
  return first_row_of_pair(p, pair) + (p.rope.rotation.interleaved != 0 ? 1 : 8);
}

/// What a product that rotates and appends looks up and computes for its results, a tile of 64 rows of w by
/// kN rows of x at a time: warps of its own do so while others multiply.
template <int kN>
struct Places {
  static constexpr int kPairs = kRowsOfWarpgroup / 2;
  static constexpr int kRowsOfWarp = 16;  // of x
  RingBarriers<1> ring;
  int64 slots[kN];  // in the cache
  float cosines[kN][kPairs], sines[kN][kPairs];

  /// By one thread.
  TESSERA_DEVICE void start(int readers) { ring.start(readers, kN / kRowsOfWarp); }

  /// Those of all tiles of the block's, one after the other. By warp `warp` of kN / 16, a lane a pair.
  TESSERA_DEVICE void find(const StreamParams& p, const FewRowsShares& all, int warp) {
    const RopeRotation& r = p.rope.rotation;
    const int lane = thread_x() % 32;
    const int first = warp * kRowsOfWarp;
    const int rows = minimum(kRowsOfWarp, static_cast<int>(p.gemm.m) - first);
    TileShares shares(all, block_x());
    TileShare share;
    for (int count = 0; shares.next(share); ++count) {
      const int row = row_of_tile(p, share.tile, kRowsOfWarpgroup, first_row_of_pair(p, lane));
      const bool turns = row < p.gemm.n && is_rotated(p, row);
      const float frequency = turns ? r.inverse_frequencies[pair_of_row(r, row)] : 0.0f;
      const int64 slot = lane < rows ? cache_slot(p.rope, first + lane) : 0;
      const int position = lane < rows ? r.positions[first + lane] : 0;
      ring.wait_emptied(count);
      if (lane < rows) slots[first + lane] = slot;
      TESSERA_UNROLL_BY(2)
      for (int m = 0; m < rows; ++m) {
        const int there = shuffle(position, m);
        if (turns)
          turn(there, frequency, r.attention_factor, sines[first + m][lane], cosines[first + m][lane]);
      }
      sync_warp();
      if (lane == 0) mbarrier_arrive(shared_address(&ring.filled[0]));
    }
  }

  /// Writes a pair's results, rotated unless they are of v.
  template <class T>
  TESSERA_DEVICE void store(const StreamParams& p, int m, int pair, int row, int other_row, float x,
                            float y) const {
    if (is_rotated(p, row)) rotate(cosines[m][pair], sines[m][pair], x, y);
    store_appended<T>(p, m, row, other_row, x, y, [&] { return slots[m]; });
  }
};
static_assert(Places<16>::kPairs == 32, "a lane a pair");

}  // namespace tessera::kernels
