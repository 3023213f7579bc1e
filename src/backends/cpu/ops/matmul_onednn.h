#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/dtype.h"

namespace tessera::cpu {

/// c = a b^T in fp32 by oneDNN, on the calling thread alone. a: (m, k) and b: (n, k), both kF32 or both
/// kBF16; a and b are contiguous; c: (m, n) of kF32, with a stride in elements.
struct OneDnnMatmul {
  std::int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kF32;
  const void* a = nullptr;
  const void* b = nullptr;
  float* c = nullptr;
  std::int64_t c_stride = 0;
};

/// Throws Error{kDevice} with oneDNN's reason if it fails. Kernels are generated on the first call for a
/// shape.
void matmul_onednn(const OneDnnMatmul& problem);

}  // namespace tessera::cpu
