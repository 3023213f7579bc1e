#pragma once

#include "sm80/ptx.cuh"

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

/// Makes barriers that were just initialised known to the copy engine and to the cluster's blocks.
TESSERA_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives, and lets the phase wait for `bytes` more of asynchronous copies and stores.
TESSERA_DEVICE void mbarrier_arrive_expect_tx(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Stores 16 bytes in another block of the cluster, whose barrier counts them: places of shared_of_rank().
TESSERA_DEVICE void store_async_in_cluster(unsigned there, float x, float y, float z, float w,
                                           unsigned barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          there),
      "f"(x), "f"(y), "f"(z), "f"(w), "r"(barrier)
      : "memory");
}
#else
TESSERA_DEVICE int cluster_size() { return 1; }
TESSERA_DEVICE int cluster_rank() { return 0; }
TESSERA_DEVICE void cluster_arrive_relaxed() {}
TESSERA_DEVICE void cluster_wait() {}
TESSERA_DEVICE void cluster_barrier() {}
TESSERA_DEVICE unsigned shared_of_rank(unsigned shared, int) { return shared; }
TESSERA_DEVICE void fence_mbarrier_init() {}
TESSERA_DEVICE void mbarrier_arrive_expect_tx(unsigned, int) {}
TESSERA_DEVICE void store_async_in_cluster(unsigned, float, float, float, float, unsigned) {}
#endif

// What other blocks of a cluster store in this one, counted by a barrier: once a kernel. A store that the
// cluster's barrier makes known takes a fence over the whole GPU.

/// By one thread, before it arrives at the cluster's barrier; others store when that has ended.
TESSERA_DEVICE void start_inbox(unsigned barrier) {
  mbarrier_init(barrier, 1);
  fence_mbarrier_init();
}
/// By one thread. `bytes`: of all that is stored here.
TESSERA_DEVICE void expect_in_inbox(unsigned barrier, int bytes) {
  mbarrier_arrive_expect_tx(barrier, bytes);
}
/// Waits for all that is stored here. In a cluster all threads call it, or those of one of its blocks.
TESSERA_DEVICE void wait_for_inbox(unsigned barrier) {
  while (!mbarrier_has_ended(barrier, 0)) {
  }
}

}  // namespace tessera::kernels
