#pragma once

#include <optional>

#include "backends/gpu/ops/gpu_ops.h"
#include "backends/gpu/runtime/gpu.h"
#include "backends/hip/runtime/targets.h"

namespace tessera::hip {

/// Products on the matrix units, by kernels/matrix/gemm.hip: of many rows, with 16-bit weights of x's type or
/// Q8_0. Rows of x and w must stand at multiples of 16 bytes. Few rows are left to common/gemv.cu, which
/// waits for nothing but w.
class HipProducts final : public gpu::TunedProducts {
 public:
  explicit HipProducts(gpu::Gpu& device)
      : gpu_(device), matrix_unit_(matrix_unit(device.properties().architecture)) {}

  bool gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation,
            Stream stream) override;
  bool takes_normed_gemm(const NormedGemmArguments&) const override { return false; }
  void normed_gemm(const NormedGemmArguments& arguments, Stream stream) override;

 private:
  gpu::Gpu& gpu_;
  MatrixUnit matrix_unit_;
};

}  // namespace tessera::hip
