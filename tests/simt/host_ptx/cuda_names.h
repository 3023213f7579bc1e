#pragma once

#include <cstring>

#include "common/platform.cuh"

// What is CUDA's in the text of NVIDIA's kernels beside instructions, for the host.

#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shfl_xor_sync(lanes, value, lane_mask) ::tessera::kernels::shuffle_xor(value, lane_mask)

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline float __int_as_float(int bits) {
  return ::tessera::kernels::float_of_bits(static_cast<unsigned>(bits));
}

/// Threads of a block take turns, and not here.
inline unsigned atomicOr(unsigned* word, unsigned bits) {
  const unsigned before = *word;
  *word |= bits;
  return before;
}
