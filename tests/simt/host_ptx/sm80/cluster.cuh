#pragma once

#include <cstring>

#include "common/platform.cuh"

// What kernels take of clusters, on the host: an address in another block's shared memory has its rank in its
// upper bits.

namespace tessera::kernels {

inline int cluster_size() { return simt::cluster_blocks(); }
inline int cluster_rank() { return simt::cluster_rank(); }
inline void cluster_arrive_relaxed() { simt::cluster_arrive(); }
inline void cluster_wait() { simt::cluster_wait(); }
inline void cluster_barrier() {
  simt::cluster_arrive();
  simt::cluster_wait();
}

inline unsigned shared_of_rank(unsigned shared, int rank) {
  return static_cast<unsigned>(rank) << 24 | shared;
}
// Stores in other blocks are done at once; all threads wait for them, as they do in kernels of sm80.
inline void start_inbox(unsigned) {}
inline void expect_in_inbox(unsigned, int) {}
inline void store_async_in_cluster(unsigned there, float x, float y, float z, float w, unsigned) {
  const float values[] = {x, y, z, w};
  std::memcpy(simt::dynamic_shared_of(static_cast<int>(there >> 24)) + (there & 0xffffffu), values,
              sizeof values);
}
inline void wait_for_inbox(unsigned) { cluster_barrier(); }

}  // namespace tessera::kernels
