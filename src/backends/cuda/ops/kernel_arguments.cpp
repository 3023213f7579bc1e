#include "backends/cuda/ops/kernel_arguments.h"

#include <cstdint>

namespace tessera::cuda {

using kernels::RowsArgument;

int element_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return kernels::kElementF16;
    case DType::kBF16:
      return kernels::kElementBF16;
    case DType::kQ8_0:
      return kernels::kElementQ8;
    default:
      return kernels::kElementF32;
  }
}

bool is_aligned(const void* data, DType dtype, std::int64_t stride) {
  const std::int64_t stride_alignment = dtype == DType::kF32 ? 4 : 8;
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % stride_alignment == 0;
}

RowsArgument rows_of(const Matrix& m) {
  const std::int64_t stride = m.rows > 1 ? m.row_stride : 0;
  return {m.data, stride, element_type(m.dtype), is_aligned(m.data, m.dtype, stride) ? 1 : 0};
}

RowsArgument rows_of(const Weight& w) {
  // 256 columns of Q8_0 are 272 bytes.
  const bool vector = w.dtype == DType::kQ8_0
                          ? reinterpret_cast<std::uintptr_t>(w.data) % 16 == 0 && w.columns % 256 == 0
                          : is_aligned(w.data, w.dtype, w.rows > 1 ? w.columns : 0);
  return {const_cast<void*>(w.data), w.columns, element_type(w.dtype), vector ? 1 : 0};
}

kernels::GemmParams gemm_params(const GemmArguments& a, int gated) {
  kernels::GemmParams p{};
  p.x = rows_of(a.x);
  p.weight = rows_of(a.weight);
  p.out = rows_of(a.out);
  p.m = a.x.rows;
  p.n = a.weight.rows;
  p.k = a.weight.columns;
  if (a.bias) p.bias = rows_of(*a.bias);
  p.accumulate = a.accumulate ? 1 : 0;
  p.gated = gated;
  return p;
}

}  // namespace tessera::cuda
