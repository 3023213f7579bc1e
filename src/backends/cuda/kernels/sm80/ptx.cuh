#pragma once

#include "common/types.cuh"

// One instruction a function, named after it.  PTX ISA 7.0, sm_80.

namespace tessera::kernels {

TESSERA_DEVICE unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// 16 bytes from global to shared memory, asynchronously; zeros if !valid (nothing is read then).
TESSERA_DEVICE void cp_async_16(unsigned shared, const void* global, bool valid) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(source_bytes)
               : "memory");
}

/// The same for what is read once from memory: the L2 cache asks for the whole line of 128 bytes, which main
/// memory serves at a higher rate than its parts.
TESSERA_DEVICE void cp_async_16_of_line(unsigned shared, const void* global, bool valid) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(source_bytes)
               : "memory");
}

/// cp_async_16 for 4 bytes.
TESSERA_DEVICE void cp_async_4(unsigned shared, const void* global, bool valid) {
  const int source_bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(source_bytes)
               : "memory");
}

/// cp_async_16 for 8 bytes.
TESSERA_DEVICE void cp_async_8(unsigned shared, const void* global, bool valid) {
  const int source_bytes = valid ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(source_bytes)
               : "memory");
}

TESSERA_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Asks for the line at an address of global memory.
TESSERA_DEVICE void prefetch_to_l1(const void* data) { asm volatile("prefetch.global.L1 [%0];" ::"l"(data)); }

/// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
TESSERA_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Starts `barrier`, 8 bytes of shared memory: a phase ends when `count` arrivals have come.
TESSERA_DEVICE void mbarrier_init(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

TESSERA_DEVICE void mbarrier_arrive(unsigned barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}

/// Arrives once all of this thread's asynchronous copies so far are done.
TESSERA_DEVICE void cp_async_mbarrier_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Whether the phase of that parity (the first has 0) has ended; may wait a while for it on sm_90.
TESSERA_DEVICE bool mbarrier_has_ended(unsigned barrier, int parity) {
  int ended;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }"
               : "=r"(ended)
               : "r"(barrier), "r"(parity)
               : "memory");
#else
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }"
               : "=r"(ended)
               : "r"(barrier), "r"(parity)
               : "memory");
#endif
  return ended != 0;
}

TESSERA_DEVICE void store_shared_16(unsigned shared, unsigned short bits) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared), "h"(bits) : "memory");
}
TESSERA_DEVICE void store_shared_byte(unsigned shared, unsigned byte) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(shared), "r"(byte) : "memory");
}

TESSERA_DEVICE void load_shared_8(unsigned& low, unsigned& high, unsigned shared) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(low), "=r"(high) : "r"(shared) : "memory");
}

TESSERA_DEVICE void load_shared_16(unsigned (&r)[4], unsigned shared) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

TESSERA_DEVICE void store_shared_16_bytes(unsigned shared, const unsigned (&r)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}

/// Waits until `threads` threads have come to barrier `id` (1 to 15; 0 is that of all threads).
TESSERA_DEVICE void named_barrier_sync(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// The same, and says whether `value` holds in any of them.
TESSERA_DEVICE bool named_barrier_any(int id, int threads, bool value) {
  int any;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.s32 p, %3, 0; barrier.red.or.pred q, %1, %2, p; selp.s32 %0, 1, 0, q; }"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<int>(value))
      : "memory");
  return any != 0;
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
TESSERA_DEVICE void ldmatrix_x4(unsigned (&r)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

TESSERA_DEVICE void ldmatrix_x4_trans(unsigned (&r)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

/// c (16 x 8, fp32) += a (16 x 16) b (16 x 8).
template <class T>
TESSERA_DEVICE void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
TESSERA_DEVICE void mma_m16n8k16<bf16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
TESSERA_DEVICE void mma_m16n8k16<f16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
      "%1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// c (16 x 8, fp32) = a (16 x 16) b (16 x 8).
template <class T>
TESSERA_DEVICE void mma_m16n8k16_first(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
TESSERA_DEVICE void mma_m16n8k16_first<bf16>(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

template <>
TESSERA_DEVICE void mma_m16n8k16_first<f16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

/// c (16 x 8, whole numbers) += a (16 x 32 unsigned bytes) b (32 x 8 bytes, signed if kIsSigned).
template <bool kIsSigned>
TESSERA_DEVICE void mma_m16n8k32_bytes(int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (kIsSigned) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
        "%1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
        "%1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// The nearest whole number; of what int doesn't hold its last one, of NaN 0.
TESSERA_DEVICE int round_to_int(float v) {
  int whole;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(whole) : "f"(v));
  return whole;
}

/// Two floats rounded to nearest into one register; `low` is the element at the lower address.
template <class T>
TESSERA_DEVICE unsigned cvt_x2(float low, float high);

template <>
TESSERA_DEVICE unsigned cvt_x2<bf16>(float low, float high) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

template <>
TESSERA_DEVICE unsigned cvt_x2<f16>(float low, float high) {
  unsigned r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

/// Both halves of a * b + c.
template <class T>
TESSERA_DEVICE unsigned fma_x2(unsigned a, unsigned b, unsigned c);

template <>
TESSERA_DEVICE unsigned fma_x2<bf16>(unsigned a, unsigned b, unsigned c) {
  unsigned r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

template <>
TESSERA_DEVICE unsigned fma_x2<f16>(unsigned a, unsigned b, unsigned c) {
  unsigned r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

/// Both halves of a + b.
TESSERA_DEVICE unsigned add_x2_f16(unsigned a, unsigned b) {
  unsigned r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

/// a & mask | c, in one instruction: of two constants the compiler makes two.
TESSERA_DEVICE unsigned and_or(unsigned a, unsigned mask, unsigned c) {
  unsigned r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "r"(mask), "r"(c));
  return r;
}

/// (a ^ bits) & mask where `bits` are some of mask's.
TESSERA_DEVICE unsigned and_xor(unsigned a, unsigned mask, unsigned bits) {
  unsigned r;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(a), "r"(mask), "r"(bits));
  return r;
}

/// The largest of a warp's lanes.
TESSERA_DEVICE unsigned redux_max(unsigned value) { return __reduce_max_sync(0xffffffffu, value); }

/// Bytes of a (0 to 3) and b (4 to 7) by the lowest three bits of selector's four lowest groups of four bits.
TESSERA_DEVICE unsigned byte_permute(unsigned a, unsigned b, unsigned selector) {
  return __byte_perm(a, b, selector);
}

/// 2^x with a relative error of 2^-22; 0 for -inf.
TESSERA_DEVICE float ex2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

/// The same address, of which the compiler doesn't know to what: what is there stays in memory, where
/// registers are others'.
template <class Place>
TESSERA_DEVICE Place* in_memory(Place* place) {
  asm volatile("" : "+l"(place));
  return place;
}

/// The sum over the four lanes that have parts of a row of an m16n8 product.
TESSERA_DEVICE float sum_of_lanes(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

}  // namespace tessera::kernels
