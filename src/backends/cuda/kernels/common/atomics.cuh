#pragma once

#include "common/platform.cuh"

// Atomic additions of integers, whose order does not change the sum.

namespace tessera::kernels {

#if defined(TESSERA_HOST_EXECUTOR)
TESSERA_DEVICE void atomic_add(unsigned long long* sum, unsigned long long value) { *sum += value; }
TESSERA_DEVICE void atomic_or(unsigned* bits, unsigned value) { *bits |= value; }
#else
TESSERA_DEVICE void atomic_add(unsigned long long* sum, unsigned long long value) { atomicAdd(sum, value); }
TESSERA_DEVICE void atomic_or(unsigned* bits, unsigned value) { atomicOr(bits, value); }
#endif

}  // namespace tessera::kernels
