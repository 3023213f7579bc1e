#pragma once

#include "sm90/attention_traits.cuh"

// The warpgroup that widens keys and values of 8 bits (e4m3) to q's 16, exactly, while others compute.
//
//   copies      stored tiles: k 0, k 1, v 0, k 2, v 1, ...
//   widening    stored tile -> next buffer of k or v

namespace tessera::kernels {

constexpr int kWideningThreads = 128;

/// Two elements, in the word's lower half; by conversions, since the units for whole numbers are those that
/// the softmax beside needs.
template <class Wide>
TESSERA_DEVICE unsigned widen_pair(unsigned pair);
template <>
TESSERA_DEVICE unsigned widen_pair<f16>(unsigned pair) {
  return cvt_f16x2_e4m3x2(pair);
}
template <>
TESSERA_DEVICE unsigned widen_pair<bf16>(unsigned pair) {
  const float2 wide = cvt_f32x2_f16x2(cvt_f16x2_e4m3x2(pair));
  return cvt_x2<bf16>(wide.x, wide.y);
}

/// 16 elements.
TESSERA_DEVICE void widen_chunk(const unsigned (&x)[4], unsigned (&wide)[2][4]) {
  TESSERA_UNROLL
  for (int n = 0; n < 4; ++n) {
    wide[n / 2][n % 2 * 2] = widen_pair<T>(x[n]);
    wide[n / 2][n % 2 * 2 + 1] = widen_pair<T>(x[n] >> 16);
  }
}

/// A stored tile of kColumns columns into panels of 16-bit elements. Neighbouring lanes have neighbouring
/// rows, whose chunks are in different banks. A thread loads kAtOnce chunks before it waits for the first.
template <int kColumns>
TESSERA_DEVICE void widen_tile(unsigned stored, unsigned to) {
  constexpr int kAtOnce = 2;
  constexpr int kChunks = kColumns / 16;
  constexpr int kThreadsOfRow = kWideningThreads / kBlockN > 1 ? kWideningThreads / kBlockN : 1;
  const int thread = thread_x() % kWideningThreads;
  const int part = thread / kBlockN;
  if (part >= kThreadsOfRow) return;
  const unsigned from_row = shared_row(stored, thread % kBlockN);
  const unsigned to_row = shared_row(to, thread % kBlockN);
  TESSERA_UNROLL_BY(2)
  for (int first = 0; first < kChunks; first += kAtOnce) {
    if (kThreadsOfRow > 1 && first / kAtOnce % kThreadsOfRow != part) continue;
    unsigned x[kAtOnce][4];
    TESSERA_UNROLL
    for (int n = 0; n < kAtOnce && first + n < kChunks; ++n)
      load_shared_16(x[n], chunk_of_row(from_row, first + n));
    TESSERA_UNROLL
    for (int n = 0; n < kAtOnce && first + n < kChunks; ++n) {
      unsigned wide[2][4];
      widen_chunk(x[n], wide);
      store_shared_16_bytes(chunk_of_row(to_row, 2 * (first + n)), wide[0]);
      store_shared_16_bytes(chunk_of_row(to_row, 2 * (first + n) + 1), wide[1]);
    }
  }
}
static_assert(!kWidens || kBlockN <= kWideningThreads, "a thread widens a row, or a part of one");

/// The next stored tile, into tile `count` of a ring.
template <int kColumns>
TESSERA_DEVICE void widen_next(SharedStorage& smem, int stored_count, RingBarriers<kStages>& ring, int count,
                               unsigned to) {
  ring.wait_emptied(count);
  smem.stored_ring.wait_filled(stored_count);
  widen_tile<kColumns>(shared_address(smem.stored[stored_count % kStoredBuffers]), to);
  ring.fill_by_warp(count);
  smem.stored_ring.release_by_warp(stored_count);
}

/// Widens all tiles, in the order of the copies.
TESSERA_DEVICE void widen_tiles(SharedStorage& smem) {
  int k_count = 0;
  int v_count = 0;
  const auto widen_k = [&] {
    widen_next<kHeadDimQk>(smem, k_count + v_count, smem.k_ring, k_count,
                           shared_address(smem.k[k_count % kStages]));
    ++k_count;
  };
  const auto widen_v = [&] {
    widen_next<kHeadDimV>(smem, k_count + v_count, smem.v_ring, v_count,
                          shared_address(smem.v[v_count % kStages]));
    ++v_count;
  };
  for (int count = 0;; ++count) {
    smem.tile_ring.wait_filled(count);
    const TileSlot& slot = smem.tiles[count % kTileSlots];
    if (slot.index == kNoTile) return;
    const KeyTiles tiles = slot.keys;
    sync_warp();
    smem.tile_ring.release_by_warp(count);
    widen_k();
    for (int tile = tiles.end - 1; tile > tiles.begin; --tile) {
      widen_k();
      widen_v();
    }
    widen_v();
  }
}

}  // namespace tessera::kernels
