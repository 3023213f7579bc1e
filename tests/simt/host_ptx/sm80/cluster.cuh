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
inline void store_cluster_float(unsigned there, float value) {
  std::memcpy(simt::dynamic_shared_of(static_cast<int>(there >> 24)) + (there & 0xffffffu), &value,
              sizeof value);
}

}  // namespace tessera::kernels
