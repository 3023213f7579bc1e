#include "backends/cuda/runtime/tensor_map.h"

#include "backends/cuda/runtime/driver.h"

namespace tessera::cuda {

void TensorMapShape::add(std::int64_t size, std::int64_t stride_bytes, std::int64_t of_box) {
  sizes[rank] = static_cast<unsigned long long>(size);
  // What there is one of may have any stride, which need not be one that a map takes.
  strides_bytes[rank] = static_cast<unsigned long long>(size > 1 ? stride_bytes : 16);
  box[rank] = static_cast<unsigned>(of_box);
  ++rank;
}

kernels::TensorMap encode_tensor_map(const TensorMapShape& shape) {
  const int type = shape.of_words                ? kTensorMapUint64
                   : shape.dtype == DType::kF16  ? kTensorMapFloat16
                   : shape.dtype == DType::kBF16 ? kTensorMapBFloat16
                   : shape.dtype == DType::kF32  ? kTensorMapFloat32
                                                 : kTensorMapUint8;
  const std::array<unsigned, 5> element_strides = {1, 1, 1, 1, 1};
  kernels::TensorMap map;
  check(driver().cuTensorMapEncodeTiled(&map, type, static_cast<unsigned>(shape.rank),
                                        const_cast<void*>(shape.data), shape.sizes.data(),
                                        shape.strides_bytes.data() + 1, shape.box.data(),
                                        element_strides.data(), 0, shape.swizzle, shape.l2_promotion, 0),
        "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace tessera::cuda
