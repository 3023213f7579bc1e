#pragma once

#include "common/platform.cuh"

// Blocks of a grid that are launched together and reach each other's shared memory, from compute capability
// 9.0 on. Before it a block is alone.

namespace tessera::kernels {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/// Blocks along x that this one was launched together with, itself included.
TESSERA_DEVICE int cluster_size() {
  int size;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  return size;
}

/// This block's place among them.
TESSERA_DEVICE int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(rank));
  return rank;
}

/// Arrives at the cluster's barrier, saying nothing of what this thread wrote.
TESSERA_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;"); }

/// Waits until all threads of the cluster's blocks that haven't ended have arrived.
TESSERA_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

/// Waits until all threads of the cluster's blocks that haven't ended have come here, and sees what they
/// wrote.
TESSERA_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// Where the cluster's block `rank` has what is at `shared` here.
TESSERA_DEVICE unsigned shared_of_rank(unsigned shared, int rank) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  return there;
}

TESSERA_DEVICE void store_cluster_float(unsigned there, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
}
#else
TESSERA_DEVICE int cluster_size() { return 1; }
TESSERA_DEVICE int cluster_rank() { return 0; }
TESSERA_DEVICE void cluster_arrive_relaxed() {}
TESSERA_DEVICE void cluster_wait() {}
TESSERA_DEVICE void cluster_barrier() {}
TESSERA_DEVICE unsigned shared_of_rank(unsigned shared, int) { return shared; }
TESSERA_DEVICE void store_cluster_float(unsigned, float) {}
#endif

}  // namespace tessera::kernels
