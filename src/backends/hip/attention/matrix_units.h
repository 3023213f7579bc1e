#pragma once

#include "backends/hip/runtime/targets.h"
#include "matrix/matrix_traits.h"

namespace tessera::hip {

/// What kernels are laid out for. `unit` is one that multiplies.
inline const kernels::MatrixUnitTraits& traits_of(MatrixUnit unit) {
  if (unit == MatrixUnit::kMfma) return kernels::kMfmaTraits;
  return unit == MatrixUnit::kWmma11 ? kernels::kWmma11Traits : kernels::kWmma12Traits;
}

}  // namespace tessera::hip
