#pragma once

#include <optional>

#include "backends/cuda/ops/q8_products.h"
#include "backends/cuda/ops/stream_products.h"
#include "backends/cuda/runtime/cublaslt.h"
#include "backends/gpu/ops/gpu_ops.h"

namespace tessera::cuda {

/// cuBLASLt's products and those of kernels/sm80.
class CudaProducts final : public gpu::TunedProducts {
 public:
  explicit CudaProducts(CudaGpu& device);

  bool gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation,
            Stream stream) override;
  bool takes_gated_gemm(const GemmArguments& arguments, GatedActivation activation) const override;
  bool takes_normed_gemm(const NormedGemmArguments& arguments) const override {
    return stream_products_.takes_normed_gemm(arguments);
  }
  void normed_gemm(const NormedGemmArguments& arguments, Stream stream) override {
    stream_products_.normed_gemm(arguments, stream);
  }

 private:
  StreamProducts stream_products_;
  std::optional<CublasLt> cublaslt_;
  std::optional<Q8Products> q8_products_;
};

}  // namespace tessera::cuda
