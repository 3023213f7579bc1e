#pragma once

// What the headers `<kernel>_traits.h` are written with. They say once what a kernel and the host that
// launches it both have to know: tiles, strides, what lies in shared memory, threads. C++17 that nvcc, NVRTC,
// HIP's compilers and the host's take, and no include but such headers: the run-time compilers have no
// others.

/// Before a function of such a header, which is evaluated when a kernel is compiled, or on the host.
#if defined(__HIP__)
#define TESSERA_TRAIT __attribute__((host, device)) constexpr
#elif defined(__CUDACC__)
#define TESSERA_TRAIT __host__ __device__ constexpr
#else
#define TESSERA_TRAIT constexpr
#endif

namespace tessera::kernels {

/// The least whole number of `parts` that hold `whole`, and what they hold.
TESSERA_TRAIT int parts_of(int whole, int part) { return (whole + part - 1) / part; }
TESSERA_TRAIT int whole_parts(int whole, int part) { return parts_of(whole, part) * part; }

TESSERA_TRAIT int larger_of(int a, int b) { return a > b ? a : b; }

}  // namespace tessera::kernels
