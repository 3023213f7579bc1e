// What the hardware reaches at most in matrix multiply-adds through mma.sync.

#include "common/ceilings_traits.h"
#include "sm80/ptx.cuh"

using namespace tessera::kernels;

/// iterations * kCeilingProducts products of 16 x 8 x 16 a warp.
TESSERA_KERNEL(mma_rate, kCeilingThreads)(int iterations, float* sink) {
  float c[kCeilingProducts][4] = {};
  unsigned a[4];
  TESSERA_UNROLL
  for (int n = 0; n < 4; ++n) a[n] = 0x3f803f80u + static_cast<unsigned>(thread_x() * (n + 1));
  for (int i = 0; i < iterations; ++i) {
    TESSERA_UNROLL
    for (int n = 0; n < kCeilingProducts; ++n) mma_m16n8k16<bf16>(c[n], a, a[n % 4], a[(n + 1) % 4]);
  }
  float sum = 0;
  TESSERA_UNROLL
  for (int n = 0; n < kCeilingProducts; ++n) sum += c[n][0] + c[n][1] + c[n][2] + c[n][3];
  if (sum == 12345.678f) *sink = sum;
}
