#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/cuda/runtime/driver_api.h"
#include "sm90/tensor_map.h"
#include "tessera/dtype.h"

namespace tessera::cuda {

/// A tensor in the device's memory of two to five dimensions, and the box in which it is copied.
struct TensorMapShape {
  const void* data = nullptr;  ///< at a multiple of 16 bytes
  DType dtype = DType::kBF16;
  bool of_words = false;  ///< elements are 8 bytes of whatever, not of dtype
  int swizzle = kTensorMapSwizzle128B;
  int l2_promotion = kTensorMapL2Promotion256B;
  std::size_t rank = 0;
  std::array<unsigned long long, 5> sizes{};
  std::array<unsigned long long, 5> strides_bytes{};  ///< the first is not used
  std::array<unsigned, 5> box{};

  /// The next dimension, the innermost first. The stride, a multiple of 16 bytes, does not matter where there
  /// is one of something.
  void add(std::int64_t size, std::int64_t stride_bytes, std::int64_t of_box);
};

/// Throws Error{kDevice} if the driver doesn't take it.
kernels::TensorMap encode_tensor_map(const TensorMapShape& shape);

}  // namespace tessera::cuda
