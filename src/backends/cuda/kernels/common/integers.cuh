#pragma once

#include "common/platform.cuh"

// Atomic additions of integers, whose order does not change the sum, and the bits of fp64 numbers: what each
// compiler calls differently.

namespace tessera::kernels {

#if defined(TESSERA_HOST_EXECUTOR)
TESSERA_DEVICE void atomic_add(unsigned long long* sum, unsigned long long value) { *sum += value; }
TESSERA_DEVICE void atomic_or(unsigned* bits, unsigned value) { *bits |= value; }
TESSERA_DEVICE unsigned long long bits_of(double x) {
  unsigned long long bits;
  __builtin_memcpy(&bits, &x, 8);
  return bits;
}
#else
TESSERA_DEVICE void atomic_add(unsigned long long* sum, unsigned long long value) { atomicAdd(sum, value); }
TESSERA_DEVICE void atomic_or(unsigned* bits, unsigned value) { atomicOr(bits, value); }
TESSERA_DEVICE unsigned long long bits_of(double x) {
  return static_cast<unsigned long long>(__double_as_longlong(x));
}
#endif

}  // namespace tessera::kernels
