#include "backends/gpu/ops/plain_products.h"

#include <limits>

#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "core/rounding.h"

namespace tessera::gpu {
namespace {

constexpr std::int64_t kPlainTile = kernels::kProductTile;

/// Elements are read one by one: nothing has to be aligned.
kernels::RowsArgument rows(const void* data, std::int64_t stride, DType dtype) {
  return {const_cast<void*>(data), stride, element_type(dtype), 0};
}

}  // namespace

std::optional<BatchedGemmLaunch> batched_gemm_launch(const LibraryProduct& product) {
  const std::int64_t tiles_m = divide_up(product.m, kPlainTile);
  const std::int64_t tiles_n = divide_up(product.n, kPlainTile);
  if (product.bias != nullptr || tiles_m > kMaxGridYz || product.batch > kMaxGridYz ||
      tiles_n > std::numeric_limits<int>::max()) {
    return std::nullopt;
  }
  BatchedGemmLaunch launch{};
  launch.shape.grid = {static_cast<unsigned>(tiles_n), static_cast<unsigned>(tiles_m),
                       static_cast<unsigned>(product.batch)};
  launch.shape.block = {BatchedGemmLaunch::kThreads, 1, 1};
  launch.shape.overlaps_prior = true;
  const std::int64_t contiguous = product.weight_is_transposed ? product.n : product.k;
  kernels::BatchedGemmParams& p = launch.params;
  p.gemm.x = rows(product.x, product.x_stride, product.dtype);
  p.gemm.weight =
      rows(product.weight, product.weight_stride != 0 ? product.weight_stride : contiguous, product.dtype);
  p.gemm.out = rows(product.out, product.out_stride, product.out_dtype);
  p.gemm.m = product.m;
  p.gemm.n = product.n;
  p.gemm.k = product.k;
  p.gemm.accumulate = product.accumulate ? 1 : 0;
  p.x_batch_stride = product.x_batch_stride;
  p.weight_batch_stride = product.weight_batch_stride;
  p.out_batch_stride = product.out_batch_stride;
  p.weight_is_transposed = product.weight_is_transposed ? 1 : 0;
  return launch;
}

bool PlainProducts::multiply(const LibraryProduct& product, Stream stream) {
  if (product.m == 0 || product.n == 0 || product.batch == 0) return true;
  const std::optional<BatchedGemmLaunch> launch = batched_gemm_launch(product);
  if (!launch) return false;
  const Kernel& kernel = gpu_.kernels().find({"common/gemm_batched.cu", {}}, "gemm_batched");
  launch_kernel(gpu_, kernel, launch->shape, stream, "a batch of products", launch->params);
  return true;
}

}  // namespace tessera::gpu
