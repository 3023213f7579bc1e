#pragma once

// What differs between the compilers that see these kernels: nvcc, NVRTC, clang for AMD, hipRTC and, for
// tests, the host's compiler. A kernel uses these names instead of CUDA's so that one source serves all.

#ifndef TESSERA_WARP_SIZE
#error "define TESSERA_WARP_SIZE: threads that run as one on the GPU that this is compiled for"
#endif

namespace tessera::kernels {

/// T itself: lets a declaration name an array type in front of the variable.
template <class T>
using Identity = T;

}  // namespace tessera::kernels

#if defined(TESSERA_HOST_EXECUTOR)
#include "host_executor.h"
#elif defined(__HIP__)
#include "common/platform_hip.cuh"
#else

#define TESSERA_DEVICE __device__ __forceinline__
#define TESSERA_DEVICE_NOINLINE __device__ __noinline__
#define TESSERA_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
// In front of a kernel's argument whose address is taken, as by calls that are not inlined: each thread would
// otherwise copy it to memory of its own.
#define TESSERA_GRID_CONSTANT const __grid_constant__
#define TESSERA_SHARED(name, ...) __shared__ ::tessera::kernels::Identity<__VA_ARGS__> name
#define TESSERA_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define TESSERA_UNROLL _Pragma("unroll")
#define TESSERA_UNROLL_BY(count) _Pragma(TESSERA_TEXT(unroll count))
#define TESSERA_TEXT(x) #x

namespace tessera::kernels {

template <class T>
TESSERA_DEVICE T shuffle_xor(T value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}
template <class T>
TESSERA_DEVICE T shuffle(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
TESSERA_DEVICE bool warp_any(bool value) { return __any_sync(0xffffffffu, value) != 0; }
TESSERA_DEVICE unsigned ballot_32(bool value) { return __ballot_sync(0xffffffffu, value); }
TESSERA_DEVICE int count_bits(unsigned x) { return __popc(x); }
TESSERA_DEVICE int lowest_bit(unsigned x) { return __ffs(static_cast<int>(x)) - 1; }
TESSERA_DEVICE void sync_warp() { __syncwarp(); }

TESSERA_DEVICE float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
TESSERA_DEVICE unsigned bits_of_float(float value) { return __float_as_uint(value); }
TESSERA_DEVICE unsigned join_words(unsigned low, unsigned high, unsigned byte) {
  return __funnelshift_r(low, high, 8 * byte);
}
TESSERA_DEVICE unsigned pick_bytes(unsigned low, unsigned high, unsigned places) {
  return __byte_perm(low, high, __byte_perm(places | places >> 4, 0, 0x4420));
}

TESSERA_DEVICE int thread_x() { return static_cast<int>(threadIdx.x); }
TESSERA_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
TESSERA_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
TESSERA_DEVICE int block_z() { return static_cast<int>(blockIdx.z); }
TESSERA_DEVICE int block_size() { return static_cast<int>(blockDim.x); }
TESSERA_DEVICE int grid_x() { return static_cast<int>(gridDim.x); }
TESSERA_DEVICE int uniform(int x) { return x; }
TESSERA_DEVICE void sync_threads() { __syncthreads(); }

}  // namespace tessera::kernels
#endif

namespace tessera::kernels {

constexpr int kWarpSize = TESSERA_WARP_SIZE;
TESSERA_DEVICE float infinity() { return float_of_bits(0x7f800000u); }

template <class T>
TESSERA_DEVICE T minimum(T a, T b) {
  return a < b ? a : b;
}
template <class T>
TESSERA_DEVICE T maximum(T a, T b) {
  return a > b ? a : b;
}

/// The larger of two; NaN if either is.
TESSERA_DEVICE float maximum_or_nan(float a, float b) { return a > b || a != a ? a : b; }

// A kernel that is launched as one that overlaps with the kernel before it in the stream calls
// wait_for_prior_kernels() in every thread before it reads or writes what others may use, weights apart,
// which nothing changes. allow_next_kernel() lets the next kernel start as soon as all blocks have called it
// or ended. Without such launches both do nothing.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
TESSERA_DEVICE void wait_for_prior_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
TESSERA_DEVICE void allow_next_kernel() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
TESSERA_DEVICE void wait_for_prior_kernels() {}
TESSERA_DEVICE void allow_next_kernel() {}
#endif

// Of the names above: uniform(x) is x, which is the same for all lanes of a warp. ballot_32() has the values
// of a warp's first 32 lanes as bits. lowest_bit() is the place of the lowest bit of a number that has one.
// join_words() is the word that begins at byte `byte` % 4 of two, pick_bytes() the bytes of two words that
// four bytes below 8 say.

/// Leaves what is computed before and after it there, where clang would mix the rounds of unrolled loops
/// until there are not registers enough.
#if defined(__HIP__)
TESSERA_DEVICE void keep_order() { __builtin_amdgcn_sched_barrier(0); }
#else
TESSERA_DEVICE void keep_order() {}
#endif

/// Whether waiting for a load is waiting for all those before it, too.
#if defined(__HIP__)
constexpr bool kLoadsEndInOrder = true;
#else
constexpr bool kLoadsEndInOrder = false;
#endif

/// Asks for memory that is read soon to be brought into the L2 cache; `data` and `size_bytes` are multiples
/// of 16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
TESSERA_DEVICE void prefetch_to_l2(const void* data, unsigned size_bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(data)),
               "r"(size_bytes));
}
#else
TESSERA_DEVICE void prefetch_to_l2(const void*, unsigned) {}
#endif

/// x, a number of fewer bits, to be compared as one of 32: emulation of gfx9 takes 16-bit operands from v128
/// on for other registers' upper halves.
#if defined(__GFX9__)
TESSERA_DEVICE unsigned as_word(unsigned x) { return opaque(x); }
#else
TESSERA_DEVICE unsigned as_word(unsigned x) { return x; }
#endif

// A few units in the last place off, where the exact functions would bound a kernel that should wait for
// memory only. The quotient of a divisor above 2^126 may be 0.
#if defined(__CUDA_ARCH__)
TESSERA_DEVICE float divide_approximately(float a, float b) { return __fdividef(a, b); }
TESSERA_DEVICE float exp_approximately(float x) { return __expf(x); }
#elif defined(__HIP__)
TESSERA_DEVICE float divide_approximately(float a, float b) { return a * __builtin_amdgcn_rcpf(b); }
TESSERA_DEVICE float exp_approximately(float x) { return __builtin_amdgcn_exp2f(x * 1.44269504f); }
#else
TESSERA_DEVICE float divide_approximately(float a, float b) { return a / b; }
TESSERA_DEVICE float exp_approximately(float x) { return expf(x); }
#endif

}  // namespace tessera::kernels
