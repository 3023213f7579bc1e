#include "backends/cuda/ops/cuda_products.h"

#include <cstdint>

namespace tessera::cuda {

CudaProducts::CudaProducts(GpuDevice& device) : stream_products_(device) {
  if (cublaslt_state().unavailable_reason.empty()) cublaslt_.emplace(device);
}

bool CudaProducts::gemm(const GemmArguments& a, std::optional<GatedActivation> activation, Stream stream) {
  if (stream_products_.gemm(a, activation, stream)) return true;
  // Few rows are bound by reading w, which gemv.cu does best; of 16-bit types the library's tensor cores are
  // faster from three rows on.
  const std::int64_t rows_of_gemv = dtype_bytes(a.x.dtype, 1) == 2 ? 2 : 8;
  return !activation && a.x.rows > rows_of_gemv && library_gemm(a, stream);
}

bool CudaProducts::library_gemm(const GemmArguments& a, Stream stream) {
  if (!cublaslt_ || a.weight.dtype != a.x.dtype) return false;
  if (a.out.dtype != a.x.dtype && a.out.dtype != DType::kF32) return false;
  if (a.bias && (a.bias->dtype != a.out.dtype || a.accumulate)) return false;
  LibraryProduct p;
  p.x = a.x.data;
  p.weight = a.weight.data;
  p.bias = a.bias ? a.bias->data : nullptr;
  p.out = a.out.data;
  p.dtype = a.x.dtype;
  p.out_dtype = a.out.dtype;
  p.m = a.x.rows;
  p.n = a.weight.rows;
  p.k = a.weight.columns;
  p.x_stride = a.x.row_stride;
  p.out_stride = a.out.row_stride;
  p.accumulate = a.accumulate;
  return cublaslt_->multiply(p, handle_of(stream));
}

}  // namespace tessera::cuda
