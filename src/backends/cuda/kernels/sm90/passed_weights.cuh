#pragma once

#include "sm90/ptx.cuh"

// What two warpgroups that have half of o's columns each pass on to each other (attention_latent.cu,
// attention_wide.cu): warpgroup n % 2 has the weights of tile n.

namespace tessera::kernels {

/// Waits for both warpgroups.
TESSERA_DEVICE void meet_other_warpgroup() { named_barrier_sync(1, 256); }

// The barrier by which warpgroup n % 2 hands tile n's weights and bases to the other.
TESSERA_DEVICE void pass_weights_on(int n) { named_barrier_arrive(2 + n % 2, 256); }
TESSERA_DEVICE void await_weights(int n) { named_barrier_sync(2 + n % 2, 256); }

/// Writes a warpgroup's weights of 64 keys to a panel, as the tensor cores take 64 rows of 64. row: the
/// thread's first of two, 8 apart.
TESSERA_DEVICE void store_weights(const unsigned (&weights)[16], unsigned panel, int row) {
  const int lane = thread_x() % 32;
  TESSERA_UNROLL
  for (int i = 0; i < 16; ++i) {  // weights[2 c + r]: chunk c of 8 keys, row r
    store_shared_4(panel + (row + i % 2 * 8) * 128 + ((i / 2 ^ row % 8) * 16) + lane % 4 * 4, weights[i]);
  }
}

}  // namespace tessera::kernels
