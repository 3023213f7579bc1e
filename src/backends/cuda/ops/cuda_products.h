#pragma once

#include <optional>

#include "backends/cuda/runtime/cublaslt.h"
#include "backends/cuda/runtime/device.h"
#include "ops/arguments.h"
#include "tessera/device.h"

namespace tessera::cuda {

/// The products that NVIDIA GPUs have more for than the plain kernels of DeviceKernels. Results may depend on
/// the number of rows of x: not for batch_invariant.
class CudaProducts {
 public:
  explicit CudaProducts(GpuDevice& device);

  /// SimtLauncher::tuned_gemm.
  bool gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation, Stream stream);

 private:
  bool library_gemm(const GemmArguments& arguments, Stream stream);

  std::optional<CublasLt> cublaslt_;
};

}  // namespace tessera::cuda
