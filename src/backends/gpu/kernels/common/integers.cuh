#pragma once

#include "common/platform.cuh"

// Atomic operations on integers, whose order does not change the result, and the bits of fp64 numbers: what
// each compiler calls differently.

namespace tessera::kernels {

using u64 = unsigned long long;

#if defined(TESSERA_HOST_EXECUTOR)
template <class T>
TESSERA_DEVICE T atomic_add(T* sum, T value) {
  const T before = *sum;
  *sum += value;
  return before;
}
TESSERA_DEVICE void atomic_or(unsigned* bits, unsigned value) { *bits |= value; }
TESSERA_DEVICE u64 bits_of(double x) {
  u64 bits;
  __builtin_memcpy(&bits, &x, 8);
  return bits;
}
TESSERA_DEVICE double double_of_bits(u64 bits) {
  double x;
  __builtin_memcpy(&x, &bits, 8);
  return x;
}
#elif defined(__HIP__)
template <class T>
TESSERA_DEVICE T atomic_add(T* sum, T value) {
  return __hip_atomic_fetch_add(sum, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
TESSERA_DEVICE void atomic_or(unsigned* bits, unsigned value) {
  __hip_atomic_fetch_or(bits, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
TESSERA_DEVICE u64 bits_of(double x) { return __builtin_bit_cast(u64, x); }
TESSERA_DEVICE double double_of_bits(u64 bits) { return __builtin_bit_cast(double, bits); }
#else
/// Gives what was there before.
template <class T>
TESSERA_DEVICE T atomic_add(T* sum, T value) {
  return atomicAdd(sum, value);
}
TESSERA_DEVICE void atomic_or(unsigned* bits, unsigned value) { atomicOr(bits, value); }
TESSERA_DEVICE u64 bits_of(double x) { return static_cast<u64>(__double_as_longlong(x)); }
TESSERA_DEVICE double double_of_bits(u64 bits) { return __longlong_as_double(static_cast<long long>(bits)); }
#endif

}  // namespace tessera::kernels
