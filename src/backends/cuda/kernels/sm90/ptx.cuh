#pragma once

#include "sm80/cluster.cuh"
#include "sm80/ptx.cuh"
#include "sm90/tensor_map.h"

// One instruction a function, named after it.  PTX ISA 8.0, sm_90a. Products of warpgroups are in wgmma.cuh.

namespace tessera::kernels {

/// Policies of the L2 cache, as createpolicy makes them for all of what is accessed.
constexpr unsigned long long kEvictNormal = 0x1000000000000000ull;
constexpr unsigned long long kEvictFirst = 0x12f0000000000000ull;
constexpr unsigned long long kEvictLast = 0x14f0000000000000ull;

/// Waits until the phase of that parity has ended. Of a new barrier, the phase before the first one (parity
/// 1) counts as ended.
TESSERA_DEVICE void mbarrier_wait(unsigned barrier, int parity) {
  while (!mbarrier_has_ended(barrier, parity)) {
  }
}

/// Copies the box at these coordinates (innermost first) into shared memory, zeros where it leaves the
/// tensor; `barrier` counts the box's bytes.
TESSERA_DEVICE void cp_async_bulk_tensor_4d(unsigned shared, const TensorMap* map, unsigned barrier, int x,
                                            int y, int z, int w, unsigned long long cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "l"(cache_policy)
      : "memory");
}

TESSERA_DEVICE void cp_async_bulk_tensor_3d(unsigned shared, const TensorMap* map, unsigned barrier, int x,
                                            int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

TESSERA_DEVICE void cp_async_bulk_tensor_2d(unsigned shared, const TensorMap* map, unsigned barrier, int x,
                                            int y, unsigned long long cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(cache_policy)
      : "memory");
}

/// The same into all blocks of the cluster whose bit of `blocks` is set, at this place of each and counted by
/// the barrier at this place of each.
TESSERA_DEVICE void cp_async_bulk_tensor_2d_multicast(unsigned shared, const TensorMap* map, unsigned barrier,
                                                      int x, int y, unsigned short blocks,
                                                      unsigned long long cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(blocks), "l"(cache_policy)
      : "memory");
}

TESSERA_DEVICE void cp_async_bulk_tensor_5d(unsigned shared, const TensorMap* map, unsigned barrier, int x,
                                            int y, int z, int w, int u, unsigned long long cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(u), "l"(cache_policy)
      : "memory");
}

/// The same of five dimensions, for what is read once.
TESSERA_DEVICE void cp_async_bulk_tensor_5d(unsigned shared, const TensorMap* map, unsigned barrier, int x,
                                            int y, int z, int w, int u) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(u)
      : "memory");
}

/// The same into all blocks of the cluster whose bit of `blocks` is set, as of two dimensions.
TESSERA_DEVICE void cp_async_bulk_tensor_5d_multicast(unsigned shared, const TensorMap* map, unsigned barrier,
                                                      int x, int y, int z, int w, int u,
                                                      unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(u), "h"(blocks)
      : "memory");
}

/// Asks for the box to be brought into the L2 cache.
TESSERA_DEVICE void cp_async_bulk_prefetch_tensor_5d(const TensorMap* map, int x, int y, int z, int w,
                                                     int u) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(map), "r"(x),
               "r"(y), "r"(z), "r"(w), "r"(u)
               : "memory");
}

/// Copies a box of shared memory to these coordinates, what leaves the tensor excepted. The copies before a
/// commit make a group.
TESSERA_DEVICE void cp_async_bulk_tensor_2d_out(const TensorMap* map, unsigned shared, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(shared), "r"(x), "r"(y)
               : "memory");
}

TESSERA_DEVICE void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until at most kPending of this thread's groups have shared memory left to read.
template <int kPending>
TESSERA_DEVICE void cp_async_bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Asks for the map itself.
TESSERA_DEVICE void prefetch_tensormap(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Orders what this thread wrote and read before whatever it does next, for all threads of the GPU.
TESSERA_DEVICE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

TESSERA_DEVICE void store_global_16(float* to, float x, float y, float z, float w) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "f"(x), "f"(y),
               "f"(z), "f"(w)
               : "memory");
}

/// From the L2 cache, where other multiprocessors' stores are.
TESSERA_DEVICE float4 load_l2_16(const float* from) {
  float4 r;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return r;
}

/// Arrives at the barrier that lies there in the cluster's block `rank`. Says nothing of this thread's stores
/// to other blocks: release.cluster, which would, is a fence over the whole GPU.
TESSERA_DEVICE void mbarrier_arrive_in_cluster(unsigned barrier, int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(shared_of_rank(barrier, rank))
               : "memory");
}

/// Orders this thread's accesses of shared memory before those of the copy engine and the tensor cores that
/// follow.
TESSERA_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

TESSERA_DEVICE unsigned load_shared_2(unsigned shared) {
  unsigned short bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(shared) : "memory");
  return bits;
}

TESSERA_DEVICE void store_shared_4(unsigned shared, unsigned bits) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(bits) : "memory");
}

/// Two e4m3 of the word's lower half as f16, exactly.
TESSERA_DEVICE unsigned cvt_f16x2_e4m3x2(unsigned pair) {
  unsigned r;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low; }" : "=r"(r) : "r"(pair));
  return r;
}

/// Both halves as fp32, the low one first.
TESSERA_DEVICE float2 cvt_f32x2_f16x2(unsigned word) {
  float2 r;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(r.x), "=f"(r.y)
      : "r"(word));
  return r;
}

/// Both bytes (e4m3) as f16, exactly; NaN stays NaN.
TESSERA_DEVICE unsigned cvt_f16x2_e4m3x2(unsigned short bytes) {
  unsigned r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(bytes));
  return r;
}

/// Four floats rounded to nearest as e4m3, the first at the lowest address; what is beyond 448 becomes that,
/// NaN stays NaN.
TESSERA_DEVICE unsigned cvt_e4m3x4(float x0, float x1, float x2, float x3) {
  unsigned r;
  asm("{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, "
      "%3; "
      "mov.b32 %0, {low, high}; }"
      : "=r"(r)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return r;
}

/// Writes four 8x8 matrices of 16-bit elements as ldmatrix reads them.
TESSERA_DEVICE void stmatrix_x4(unsigned shared, const unsigned (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/// The same, each matrix transposed.
TESSERA_DEVICE void stmatrix_x4_trans(unsigned shared, const unsigned (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/// Transposes an 8x8 matrix of 16-bit elements that a warp holds as ldmatrix delivers it.
TESSERA_DEVICE unsigned movmatrix_trans(unsigned x) {
  unsigned r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
  return r;
}

/// Gives registers of the warpgroup's threads back until each has kCount.
template <int kCount>
TESSERA_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// Waits for as many registers as each thread of the warpgroup needs to have kCount.
template <int kCount>
TESSERA_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// Counts this warp's threads as come to barrier `id` of `threads` threads, without waiting for the others.
TESSERA_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Orders register accesses before the warpgroup's next products.
TESSERA_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

TESSERA_DEVICE void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Copies `bytes`, a multiple of 16 from a multiple of 16 on, to shared memory; `barrier` counts them.
TESSERA_DEVICE void cp_async_bulk(unsigned shared, const void* global, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Waits until at most kPending groups of products are under way.
template <int kPending>
TESSERA_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// The larger of each two unsigned halves.
TESSERA_DEVICE unsigned max_x2(unsigned a, unsigned b) {
  unsigned result;
  asm("max.u16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

/// x, of which the compiler no longer knows where it comes from.
TESSERA_DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// Keeps the compiler from moving accesses of these registers over this point: it doesn't know that products
/// go on after their instruction.
template <int kCount>
TESSERA_DEVICE void pin_registers(float (&r)[kCount]) {
  TESSERA_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

template <int kCount>
TESSERA_DEVICE void pin_registers(unsigned (&r)[kCount]) {
  TESSERA_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

}  // namespace tessera::kernels
