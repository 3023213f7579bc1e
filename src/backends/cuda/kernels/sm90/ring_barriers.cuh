#pragma once

#include "sm90/ptx.cuh"

namespace tessera::kernels {

/// Of each buffer of a ring: when its tile is there, and when all have read it. Tile `count` (from 0) goes
/// through buffer count % kBuffers.
template <int kBuffers>
struct RingBarriers {
  unsigned long long filled[kBuffers];
  unsigned long long emptied[kBuffers];

  /// readers: arrivals that empty a buffer; writers: that fill it.
  TESSERA_DEVICE void start(int readers, int writers = 1) {
    for (int i = 0; i < kBuffers; ++i) {
      mbarrier_init(shared_address(&filled[i]), writers);
      mbarrier_init(shared_address(&emptied[i]), readers);
    }
  }
  TESSERA_DEVICE void wait_filled(int count) {
    mbarrier_wait(shared_address(&filled[count % kBuffers]), count / kBuffers & 1);
  }
  /// Waits until nobody reads what was in the tile's buffer before. The first tiles wait for nobody: the
  /// phase before a barrier's first counts as ended.
  TESSERA_DEVICE void wait_emptied(int count) {
    mbarrier_wait(shared_address(&emptied[count % kBuffers]), (count / kBuffers & 1) ^ 1);
  }
  /// This thread has read the tile.
  TESSERA_DEVICE void release(int count) { mbarrier_arrive(shared_address(&emptied[count % kBuffers])); }
  /// This warp has.
  TESSERA_DEVICE void release_by_warp(int count) {
    if (thread_x() % 32 == 0) release(count);
  }
  /// This warp has written its part of the tile, which products read.
  TESSERA_DEVICE void fill_by_warp(int count) {
    fence_proxy_async();
    sync_warp();
    if (thread_x() % 32 == 0) mbarrier_arrive(shared_address(&filled[count % kBuffers]));
  }
  /// The same, each kLanes-th lane for itself: what these have stored others load.
  template <int kLanes>
  TESSERA_DEVICE void fill_by_lanes(int count) {
    fence_proxy_async();
    sync_warp();
    if (thread_x() % kLanes == 0) mbarrier_arrive(shared_address(&filled[count % kBuffers]));
  }
};

}  // namespace tessera::kernels
