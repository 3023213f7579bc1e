#pragma once

#include <cstdint>
#include <optional>

#include "backends/cuda/ops/many_rows_products.h"
#include "backends/cuda/ops/split_tiles.h"
#include "backends/cuda/runtime/cuda_gpu.h"
#include "ops/arguments.h"
#include "sm90/gemm_few_rows.h"
#include "tessera/device.h"

namespace tessera::cuda {

/// For n rows of w and k columns. Where as many blocks as read at the memory's rate get whole tiles, or whole
/// parts of a tile each, only so many do: fewer sums are put aside and added up.
kernels::FewRowsShares share_few_rows(std::int64_t n, std::int64_t k, const gpu::DeviceProperties& device);

/// Products with 16-bit weights on Hopper, of three rows of x and more, and of any number if batch_invariant:
/// then how the columns of w are summed up depends on w's shape and the GPU alone. By sm90/gemm_few_rows.cu,
/// 64 rows at once, or sm90/gemm_many_rows.cu.
class WgmmaProducts {
 public:
  /// has_library: whether there is another for more than 64 rows.
  WgmmaProducts(CudaGpu& device, bool has_library);

  /// gemm, or gated_gemm; false, and nothing done, if the kernels are not for these valid arguments.
  bool gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation, Stream stream);
  bool takes_gated(const GemmArguments& arguments, GatedActivation activation) const;

  /// As TunedProducts has them.
  bool takes_projection(const NormedGemmArguments& arguments) const;
  void projection(const NormedGemmArguments& arguments, Stream stream);

 private:
  bool takes(const kernels::StreamParams& params, const GemmArguments& arguments) const;
  bool takes_rows(const kernels::StreamParams& params, const GemmArguments& arguments) const;
  void launch_few_rows(const kernels::StreamParams& params, const GemmArguments& arguments, Stream stream);

  CudaGpu& gpu_;
  bool has_library_;
  SplitTiles split_tiles_;
  ManyRowsProducts many_rows_;
};

}  // namespace tessera::cuda
