#include "backends/cuda/ops/many_rows_products.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <string>

#include "backends/cuda/ops/stream_products.h"
#include "backends/cuda/runtime/tensor_map.h"
#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "core/rounding.h"

namespace tessera::cuda {

using kernels::FewRowsShares;
using kernels::ManyRowsParams;
using kernels::StreamParams;

namespace {

constexpr std::int64_t kRowsOfCluster = kernels::kTilesOfCluster * kernels::kFewRowsTile;  // of w

std::int64_t tiles_of(std::int64_t m, std::int64_t n, int columns) {
  return divide_up<std::int64_t>(m, columns) * divide_up(n, kRowsOfCluster);
}

kernels::TensorMap x_map(const Matrix& x, int columns) {
  TensorMapShape shape{.data = x.data, .dtype = x.dtype};
  shape.add(x.columns, 0, kernels::kManyRowsStep);
  shape.add(x.rows, x.row_stride * 2, columns / kernels::kManyRowsBlocks);
  return encode_tensor_map(shape);
}

/// columns: of a tile's results.
kernels::TensorMap out_map(const Matrix& out, int columns) {
  TensorMapShape shape{.data = out.data, .dtype = out.dtype};
  if (columns * 2 == 64) shape.swizzle = kTensorMapSwizzle64B;
  shape.add(out.columns, 0, columns);
  shape.add(out.rows, out.row_stride * 2, kernels::kStoredRows);
  return encode_tensor_map(shape);
}

}  // namespace

ManyRowsPlan plan_many_rows(std::int64_t m, std::int64_t n, std::int64_t k, int num_multiprocessors) {
  // As measured on an H100.
  constexpr double kStart = 5, kStepOf128 = 0.41, kStepOf256 = 0.75;
  const std::int64_t clusters = std::max(1, num_multiprocessors / kernels::kManyRowsBlocks);
  ManyRowsPlan best;
  for (const int columns : {128, 256}) {
    const std::int64_t tiles = tiles_of(m, n, columns);
    if (tiles > std::numeric_limits<int>::max()) continue;
    const std::int64_t steps =
        divide_up(tiles, clusters) * divide_up<std::int64_t>(k, kernels::kManyRowsStep);
    const double microseconds =
        kStart + (columns == 128 ? kStepOf128 : kStepOf256) * static_cast<double>(steps);
    if (best.columns == 0 || microseconds < best.microseconds) best = {columns, microseconds};
  }
  return best;
}

void ManyRowsProducts::launch(const StreamParams& params, const GemmArguments& a, int columns,
                              const kernels::TensorMap& weight, const FewRowsShares& shares, Stream stream) {
  const std::int64_t clusters =
      std::min<std::int64_t>(tiles_of(a.x.rows, a.weight.rows, columns),
                             std::max(1, gpu_.properties().num_multiprocessors / kernels::kManyRowsBlocks));
  const std::int64_t blocks = clusters * kernels::kManyRowsBlocks;
  ManyRowsParams p{};
  p.weight = weight;
  p.x = x_map(a.x, columns);
  p.product = params;
  p.shares = shares;
  p.x_tiles = static_cast<int>(divide_up<std::int64_t>(a.x.rows, columns));
  p.w_groups = static_cast<int>(divide_up(params.gemm.n, kRowsOfCluster));
  // The copy engine writes whole multiples of 16 bytes, behind the last column too.
  p.stores_boxes = a.out.dtype == a.weight.dtype && !a.accumulate &&
                   a.out.columns % kernels::kGroupSize == 0 &&
                   gpu::is_aligned(a.out.data, a.out.dtype, a.out.row_stride);
  if (p.stores_boxes) p.out = out_map(a.out, kernels::kFewRowsTile / (params.gemm.gated != 0 ? 2 : 1));
  if (shares.split_blocks > shares.split_tiles) {
    p.partials = reinterpret_cast<float*>(
        partials_.get(static_cast<std::size_t>(blocks * kernels::kManyRowsWarpgroups *
                                               kernels::many_rows_partial_bytes(columns)),
                      stream));
  }
  const std::string entry = fmt::format("gemm_many_rows_{}_{}", dtype_name(a.weight.dtype), columns);
  const gpu::ModuleSpec module{"sm90/gemm_many_rows.cu", {part_of_16_bit_define(a.weight.dtype)}};
  const auto shared_bytes = static_cast<std::size_t>(kernels::many_rows_shared_bytes(columns));
  const gpu::Kernel& kernel = gpu_.kernels().find(module, entry, shared_bytes);
  gpu::LaunchShape shape{{static_cast<unsigned>(blocks), 1, 1},
                         {static_cast<unsigned>(kernels::kManyRowsThreads), 1, 1},
                         shared_bytes,
                         true};
  shape.cluster_blocks = kernels::kManyRowsBlocks;
  gpu::launch_kernel(gpu_, kernel, shape, stream, entry, p);
}

}  // namespace tessera::cuda
