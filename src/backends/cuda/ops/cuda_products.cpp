#include "backends/cuda/ops/cuda_products.h"

#include <cstdint>

namespace tessera::cuda {

CudaProducts::CudaProducts(CudaGpu& device) : stream_products_(device) {
  if (cublaslt_state().unavailable_reason.empty()) cublaslt_.emplace(device);
  if (device.properties().compute_capability >= 80)
    q8_products_.emplace(device, cublaslt_ ? &*cublaslt_ : nullptr);
}

bool CudaProducts::gemm(const GemmArguments& a, std::optional<GatedActivation> activation, Stream stream) {
  if (a.weight.dtype == DType::kQ8_0) return q8_products_ && q8_products_->gemm(a, activation, stream);
  if (stream_products_.gemm(a, activation, stream)) return true;
  // Few rows are bound by reading w, which gemv.cu does best; of 16-bit types the library's tensor cores are
  // faster from three rows on.
  const std::int64_t rows_of_gemv = dtype_bytes(a.x.dtype, 1) == 2 ? 2 : 8;
  return !activation && a.x.rows > rows_of_gemv && cublaslt_ && gpu::library_gemm(*cublaslt_, a, stream);
}

bool CudaProducts::takes_gated_gemm(const GemmArguments& a, GatedActivation activation) const {
  if (a.weight.dtype == DType::kQ8_0) return q8_products_ && q8_products_->takes_gated(a, activation);
  return stream_products_.takes_gated(a, activation);
}

}  // namespace tessera::cuda
