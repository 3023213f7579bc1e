// What the hardware reaches at most: streaming reads and fp32 multiply-adds.

#include "common/ceilings_traits.h"
#include "common/types.cuh"

using namespace tessera::kernels;

using Words = Vector<unsigned, 4>;

/// Sums `vectors` groups of 16 bytes; the result keeps the loads alive.
TESSERA_KERNEL(read_rate, kCeilingThreads)(const Words* data, long long vectors, unsigned* sink) {
  unsigned sum = 0;
  const long long stride = static_cast<long long>(grid_x()) * kCeilingThreads;
  long long i = static_cast<long long>(block_x()) * kCeilingThreads + thread_x();
  for (; i + 3 * stride < vectors; i += 4 * stride) {
    Words x[4];
    TESSERA_UNROLL
    for (int n = 0; n < 4; ++n) x[n] = data[i + n * stride];
    TESSERA_UNROLL
    for (int n = 0; n < 4; ++n) {
      sum += x[n].element[0] ^ x[n].element[1] ^ x[n].element[2] ^ x[n].element[3];
    }
  }
  for (; i < vectors; i += stride) sum += data[i].element[0];
  if (sum == 0x12345678u) *sink = sum;
}

/// iterations * kCeilingFmas multiply-adds a thread.
TESSERA_KERNEL(fma_rate, kCeilingThreads)(int iterations, float seed, float* sink) {
  float x[16];
  TESSERA_UNROLL
  for (int n = 0; n < 16; ++n) x[n] = seed * static_cast<float>(n + thread_x());
  for (int i = 0; i < iterations; ++i) {
    TESSERA_UNROLL
    for (int n = 0; n < kCeilingFmas; ++n) x[n % 16] = x[n % 16] * 0.999f + seed;
  }
  float sum = 0;
  TESSERA_UNROLL
  for (int n = 0; n < 16; ++n) sum += x[n];
  if (sum == 12345.678f) *sink = sum;
}
