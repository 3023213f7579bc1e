#include "backends/cuda/ops/cuda_products.h"

#include <cstdint>

#include "core/block_format.h"

namespace tessera::cuda {

namespace {

bool is_blocks(const Weight& weight) { return block_format(weight.dtype).elements > 1; }

}  // namespace

CudaProducts::CudaProducts(CudaGpu& device)
    : stream_products_(device),
      wgmma_products_(device, cublaslt_state().unavailable_reason.empty()),
      expert_products_(device) {
  if (cublaslt_state().unavailable_reason.empty()) cublaslt_.emplace(device);
  if (device.properties().compute_capability >= 80)
    block_products_.emplace(device, cublaslt_ ? &*cublaslt_ : nullptr, wgmma_products_);
}

bool CudaProducts::gemm(const GemmArguments& a, std::optional<GatedActivation> activation, Stream stream) {
  if (a.batch_invariant) return wgmma_products_.gemm(a, activation, stream);
  if (is_blocks(a.weight)) return block_products_ && block_products_->gemm(a, activation, stream);
  if (stream_products_.gemm(a, activation, stream)) return true;
  if (wgmma_products_.gemm(a, activation, stream)) return true;
  return !activation && takes_gemm(a) && gpu::library_gemm(*cublaslt_, a, stream);
}

bool CudaProducts::takes_gemm(const GemmArguments& a) const {
  // Few rows are bound by reading w, which gemv.cu does best; of 16-bit types the library's tensor cores are
  // faster from three rows on.
  const std::int64_t rows_of_gemv = dtype_bytes(a.x.dtype, 1) == 2 ? 2 : 8;
  return cublaslt_ && !a.batch_invariant && a.weight.dtype == a.x.dtype && a.x.rows > rows_of_gemv;
}

bool CudaProducts::takes_gated_gemm(const GemmArguments& a, GatedActivation activation) const {
  if (a.batch_invariant) return wgmma_products_.takes_gated(a, activation);
  if (is_blocks(a.weight)) return block_products_ && block_products_->takes_gated(a, activation);
  return stream_products_.takes_gated(a, activation) || wgmma_products_.takes_gated(a, activation);
}

bool CudaProducts::takes_normed_gemm(const NormedGemmArguments& a) const {
  if (is_blocks(a.gemm.weight) && block_products_ && block_products_->takes_normed_gemm(a)) return true;
  if (a.lower) return takes_normed_gemm(without_lower_rows(a)) && takes_normed_gemm(only_lower_rows(a));
  return !is_blocks(a.gemm.weight) && stream_products_.takes_normed_gemm(a);
}

void CudaProducts::normed_gemm(const NormedGemmArguments& a, Stream stream) {
  if (a.lower && !(block_products_ && block_products_->takes_normed_gemm(a))) {
    normed_gemm(without_lower_rows(a), stream);
    return normed_gemm(only_lower_rows(a), stream);
  }
  if (is_blocks(a.gemm.weight) && block_products_) return block_products_->normed_gemm(a, stream);
  stream_products_.normed_gemm(a, stream);
}

bool CudaProducts::takes_projection(const NormedGemmArguments& a) const {
  if (is_blocks(a.gemm.weight) && block_products_ && block_products_->takes_projection(a)) return true;
  if (a.lower) return takes_projection(without_lower_rows(a)) && takes_projection(only_lower_rows(a));
  return !is_blocks(a.gemm.weight) && wgmma_products_.takes_projection(a);
}

void CudaProducts::projection(const NormedGemmArguments& a, Stream stream) {
  if (a.lower && !(block_products_ && block_products_->takes_projection(a))) {
    projection(without_lower_rows(a), stream);
    return projection(only_lower_rows(a), stream);
  }
  if (is_blocks(a.gemm.weight)) return block_products_->projection(a, stream);
  wgmma_products_.projection(a, stream);
}

}  // namespace tessera::cuda
