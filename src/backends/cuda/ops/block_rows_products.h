#pragma once

#include "backends/gpu/ops/stream_workspaces.h"
#include "backends/gpu/runtime/gpu.h"
#include "ops/arguments.h"
#include "tessera/device.h"

namespace tessera::kernels {
struct StreamParams;
}

namespace tessera::cuda {

/// Products of up to 64 rows of 16-bit x with weights of blocks on Hopper, by sm90/gemm_few_rows_blocks.cu.
class BlockRowsProducts {
 public:
  explicit BlockRowsProducts(gpu::Gpu& device);

  /// Whether the kernel is for these valid arguments, whose `params` are of groups of 16 rows.
  bool takes(const kernels::StreamParams& params, const GemmArguments& arguments) const;
  void launch(const kernels::StreamParams& params, const GemmArguments& arguments, Stream stream);

 private:
  gpu::Gpu& gpu_;
  gpu::StreamWorkspaces partials_, arrivals_, prepared_;
};

}  // namespace tessera::cuda
