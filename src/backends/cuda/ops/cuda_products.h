#pragma once

#include <optional>

#include "backends/cuda/ops/block_products.h"
#include "backends/cuda/ops/expert_products.h"
#include "backends/cuda/ops/stream_products.h"
#include "backends/cuda/ops/wgmma_products.h"
#include "backends/cuda/runtime/cublaslt.h"
#include "backends/gpu/ops/gpu_ops.h"

namespace tessera::cuda {

/// cuBLASLt's products and those of kernels/sm80 and kernels/sm90.
class CudaProducts final : public gpu::TunedProducts {
 public:
  explicit CudaProducts(CudaGpu& device);

  bool gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation,
            Stream stream) override;
  bool expert_gemm(const ExpertGemmArguments& arguments, Stream stream) override {
    return expert_products_.gemm(arguments, stream);
  }
  bool takes_expert_gemm(const ExpertGemmArguments& arguments) const override {
    return expert_products_.takes(arguments);
  }
  bool takes_gated_gemm(const GemmArguments& arguments, GatedActivation activation) const override;
  bool takes_gemm(const GemmArguments& arguments) const override;
  bool takes_normed_gemm(const NormedGemmArguments& arguments) const override;
  void normed_gemm(const NormedGemmArguments& arguments, Stream stream) override;
  bool takes_projection(const NormedGemmArguments& arguments) const override;
  void projection(const NormedGemmArguments& arguments, Stream stream) override;

 private:
  StreamProducts stream_products_;
  WgmmaProducts wgmma_products_;
  ExpertProducts expert_products_;
  std::optional<CublasLt> cublaslt_;
  std::optional<BlockProducts> block_products_;
};

}  // namespace tessera::cuda
