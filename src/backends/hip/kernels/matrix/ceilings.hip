// What the matrix units reach at most: independent products of 16 x 16 x 16.

#include "common/ceilings_traits.h"
#include "common/platform.cuh"

using namespace tessera::kernels;

namespace {

using Floats4 = float __attribute__((ext_vector_type(4)));
using Floats8 = float __attribute__((ext_vector_type(8)));
using Halves4 = _Float16 __attribute__((ext_vector_type(4)));
using Halves8 = _Float16 __attribute__((ext_vector_type(8)));
using Halves16 = _Float16 __attribute__((ext_vector_type(16)));

#if defined(__gfx90a__) || defined(__gfx942__)
using Operand = Halves4;
using Sums = Floats4;
TESSERA_DEVICE Sums multiply(Operand a, Operand b, Sums c) {
  return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
}
#elif defined(__GFX12__)
using Operand = Halves8;
using Sums = Floats8;
TESSERA_DEVICE Sums multiply(Operand a, Operand b, Sums c) {
  return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c);
}
#elif defined(__GFX11__)
using Operand = Halves16;
using Sums = Floats8;
TESSERA_DEVICE Sums multiply(Operand a, Operand b, Sums c) {
  return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c);
}
#else
#error "this architecture has no matrix units that are known here"
#endif

}  // namespace

/// iterations * kCeilingProducts products of 16 x 16 x 16 a wave, none of which waits for another.
TESSERA_KERNEL(mma_rate, kCeilingThreads)(int iterations, float* sink) {
  // RDNA 3 takes its operands twice, the same in both halves of a wave.
  const Operand a = static_cast<_Float16>(thread_x() % 16 * 0.001f);
  const Operand b = static_cast<_Float16>(block_x() * 0.001f);
  Sums sums[kCeilingProducts] = {};
  for (int i = 0; i < iterations; ++i) {
    TESSERA_UNROLL
    for (int n = 0; n < kCeilingProducts; ++n) sums[n] = multiply(a, b, sums[n]);
  }
  float total = 0;
  TESSERA_UNROLL
  for (int n = 0; n < kCeilingProducts; ++n) total += sums[n][0] + sums[n][3];
  if (total == 12345.678f) *sink = total;
}
