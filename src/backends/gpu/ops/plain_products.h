#pragma once

#include <optional>

#include "backends/gpu/ops/library_products.h"
#include "backends/gpu/runtime/gpu.h"
#include "common/gemm_batched.h"

namespace tessera::gpu {

/// A launch of gemm_batched: its grid and arguments.
struct BatchedGemmLaunch {
  static constexpr unsigned kThreads = kernels::kTiledThreads;

  LaunchShape shape;
  kernels::BatchedGemmParams params;
};

/// Nothing for products that the kernel does not take: with a bias, or too many tiles or products for a
/// grid. Sizes are not 0.
std::optional<BatchedGemmLaunch> batched_gemm_launch(const LibraryProduct& product);

/// Products by a plain kernel (common/gemm_batched.cu), for where the vendor's library is absent. Needs no
/// workspace. Takes no bias.
class PlainProducts final : public LibraryProducts {
 public:
  explicit PlainProducts(Gpu& gpu) : gpu_(gpu) {}

  bool multiply(const LibraryProduct& product, Stream stream) override;

 private:
  Gpu& gpu_;
};

}  // namespace tessera::gpu
