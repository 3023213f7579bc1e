#pragma once

#include <cstdint>
#include <optional>

#include "backends/cuda/ops/block_launch.h"
#include "backends/cuda/ops/block_rows_products.h"
#include "backends/cuda/ops/wgmma_products.h"
#include "backends/gpu/ops/library_products.h"
#include "backends/gpu/ops/stream_workspaces.h"
#include "backends/gpu/runtime/gpu.h"
#include "ops/arguments.h"
#include "tessera/device.h"

namespace tessera::cuda {

/// For some rows of x and weights of blocks; nothing if the kernel is not for these valid arguments.
std::optional<BlockGemmLaunch> block_gemm_launch(const GemmArguments& arguments,
                                                 std::optional<GatedActivation> activation,
                                                 const gpu::DeviceProperties& device);

/// Likewise, of rows that it norms, and results that it may rotate.
std::optional<BlockGemmLaunch> normed_block_gemm_launch(const NormedGemmArguments& arguments,
                                                        const gpu::DeviceProperties& device);

/// Of rows that are normed already, where those of w are of two types, and not rotated.
std::optional<BlockGemmLaunch> lower_rows_launch(const NormedGemmArguments& arguments,
                                                 const gpu::DeviceProperties& device);

/// Products with weights of blocks on tensor cores. Rows of x and w must stand at multiples of 16 bytes.
class BlockProducts {
 public:
  /// Both of widened weights, and outlive this. `library` may be null.
  BlockProducts(gpu::Gpu& device, gpu::LibraryProducts* library, WgmmaProducts& wgmma);

  /// TunedProducts::gemm for weights of blocks.
  bool gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation, Stream stream);
  /// Whether it takes a gated product.
  bool takes_gated(const GemmArguments& arguments, GatedActivation activation) const;

  /// As OpsBackend has them, for weights of blocks; of lower rows in one launch only.
  bool takes_normed_gemm(const NormedGemmArguments& arguments) const;
  void normed_gemm(const NormedGemmArguments& arguments, Stream stream);
  bool takes_projection(const NormedGemmArguments& arguments) const;
  void projection(const NormedGemmArguments& arguments, Stream stream);

 private:
  /// Whether it is several rows for BlockRowsProducts.
  bool takes_rows(const kernels::StreamParams& params, const GemmArguments& arguments) const;
  void launch(const BlockGemmLaunch& launch, Stream stream);
  /// Some rows of x after the other, each pass reading w.
  void multiply_in_passes(const GemmArguments& arguments, std::optional<GatedActivation> activation,
                          Stream stream);
  /// Any number of rows with Q8_0 weights by gemm_q8_tiled.cu.
  void multiply_tiles(const GemmArguments& arguments, Stream stream);
  /// With the weight as bf16, some rows of it at a time. False if nothing takes that.
  bool multiply_widened(const GemmArguments& arguments, Stream stream);
  bool takes_gated_widened(const GemmArguments& arguments, GatedActivation activation) const;

  gpu::Gpu& gpu_;
  gpu::LibraryProducts* library_;
  WgmmaProducts& wgmma_;
  BlockRowsProducts rows_{gpu_};
  gpu::StreamWorkspaces widened_{gpu_, "weights as bf16"};
};

}  // namespace tessera::cuda
