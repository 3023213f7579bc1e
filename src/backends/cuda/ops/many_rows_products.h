#pragma once

#include <cstdint>

#include "backends/cuda/runtime/cuda_gpu.h"
#include "backends/gpu/ops/stream_workspaces.h"
#include "ops/arguments.h"
#include "sm90/gemm_many_rows.h"
#include "tessera/device.h"

namespace tessera::cuda {

/// How sm90/gemm_many_rows.cu is likely done soonest.
struct ManyRowsPlan {
  int columns = 0;  ///< rows of x in a tile
  double microseconds = 0;
};

/// For m rows of x, n rows of w and k columns.
ManyRowsPlan plan_many_rows(std::int64_t m, std::int64_t n, std::int64_t k, int num_multiprocessors);

/// Launches sm90/gemm_many_rows.cu.
class ManyRowsProducts {
 public:
  explicit ManyRowsProducts(CudaGpu& device)
      : gpu_(device), partials_(device, "sums of products of many rows") {}

  /// weight: of 64 rows of w in gemm_few_rows' order; shares: as it cuts k, for batch_invariant products.
  void launch(const kernels::StreamParams& params, const GemmArguments& arguments, int columns,
              const kernels::TensorMap& weight, const kernels::FewRowsShares& shares, Stream stream);

 private:
  CudaGpu& gpu_;
  gpu::StreamWorkspaces partials_;
};

}  // namespace tessera::cuda
