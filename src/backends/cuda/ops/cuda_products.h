#pragma once

#include <optional>

#include "backends/cuda/ops/q8_products.h"
#include "backends/cuda/ops/stream_products.h"
#include "backends/cuda/runtime/cublaslt.h"
#include "backends/cuda/runtime/device.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "ops/arguments.h"
#include "tessera/device.h"

namespace tessera::cuda {

/// The products that NVIDIA GPUs have more for than the plain kernels of DeviceKernels. Results may depend on
/// the number of rows of x: not for batch_invariant.
class CudaProducts {
 public:
  CudaProducts(GpuDevice& device, KernelLibrary& kernels);

  /// SimtLauncher::tuned_gemm.
  bool gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation, Stream stream);

  /// As OpsBackend has them.
  bool takes_normed_gemm(const NormedGemmArguments& arguments) const {
    return stream_products_.takes_normed_gemm(arguments);
  }
  void normed_gemm(const NormedGemmArguments& arguments, Stream stream) const {
    stream_products_.normed_gemm(arguments, stream);
  }

 private:
  StreamProducts stream_products_;
  std::optional<CublasLt> cublaslt_;
  std::optional<Q8Products> q8_products_;
};

}  // namespace tessera::cuda
