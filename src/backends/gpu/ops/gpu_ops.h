#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "backends/gpu/runtime/gpu.h"
#include "ops/backend.h"

namespace tessera::gpu {

/// The products that a vendor's GPUs have more for than the plain kernels of DeviceKernels.
class TunedProducts {
 public:
  virtual ~TunedProducts() = default;

  /// SimtLauncher::tuned_gemm and tunes_gated_gemm.
  virtual bool gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation,
                    Stream stream) = 0;
  virtual bool takes_gated_gemm(const GemmArguments&, GatedActivation) const { return false; }

  /// SimtLauncher::tuned_expert_gemm.
  virtual bool expert_gemm(const ExpertGemmArguments&, Stream) { return false; }
  /// SimtLauncher::tunes_expert_gemm.
  virtual bool takes_expert_gemm(const ExpertGemmArguments&) const { return false; }

  /// SimtLauncher::tunes_gemm.
  virtual bool takes_gemm(const GemmArguments&) const { return false; }

  /// As OpsBackend has them.
  virtual bool takes_normed_gemm(const NormedGemmArguments& arguments) const = 0;
  virtual void normed_gemm(const NormedGemmArguments& arguments, Stream stream) = 0;

  /// The same of rows that have been normed: gemm.x is of out's dtype, norm_weight and eps are not used.
  /// Asked for where takes_normed_gemm() is false.
  virtual bool takes_projection(const NormedGemmArguments&) const { return false; }
  virtual void projection(const NormedGemmArguments&, Stream) {}
};

/// A backend of ops called `name` on `gpu`, by kernels/common and `products`, which may be null.
std::unique_ptr<OpsBackend> make_gpu_ops(std::string_view name, Gpu& gpu,
                                         std::unique_ptr<TunedProducts> products);

}  // namespace tessera::gpu
