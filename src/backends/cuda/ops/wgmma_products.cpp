#include "backends/cuda/ops/wgmma_products.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>

#include "backends/cuda/ops/stream_products.h"
#include "backends/cuda/runtime/tensor_map.h"
#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "core/rounding.h"
#include "sm80/gemm_blocks_traits.h"

namespace tessera::cuda {

using gpu::is_16_bit;

using kernels::FewRowsParams;
using kernels::kTileRows;
using kernels::StreamParams;

namespace {

constexpr std::int64_t kGroupsOfTile = kernels::kFewRowsTile / kTileRows;
constexpr int kPanel = 64;  // columns of a box

constexpr int kRowsOfTiles = kernels::kTilesOfCluster * kernels::kFewRowsTile;

/// With fewer the library's tiles waste less.
constexpr std::int64_t kLeastGatedRows = 1024;

/// With fewer rows sm80/gemv_stream.cu reads w as fast, and needs no kernel for the norm before it.
constexpr std::int64_t kLeastRows = 3;

/// Of w, in the order of the kernel's tiles.
kernels::TensorMap weight_map(const StreamParams& p, DType dtype) {
  TensorMapShape shape{.data = p.gemm.weight.data, .dtype = dtype};
  const std::int64_t row_bytes = p.gemm.k * 2;
  shape.add(p.gemm.k, 0, kPanel);
  if (p.group_shift == 0) {
    shape.add(p.gemm.n, row_bytes, kernels::kFewRowsTile);
    return encode_tensor_map(shape);
  }
  const std::int64_t groups = p.gemm.n / kTileRows;
  const std::int64_t of_block = p.group_shift < 31 ? std::int64_t{1} << p.group_shift : groups;
  const std::int64_t at_once = std::min(of_block, kGroupsOfTile);
  shape.add(kTileRows / 2, row_bytes, kTileRows / 2);
  shape.add(2, p.rows_apart * row_bytes, 2);
  shape.add(of_block, kTileRows / 2 * row_bytes, p.group_shift < 31 ? at_once : kGroupsOfTile);
  shape.add(divide_up(groups, of_block), of_block * kTileRows * row_bytes,
            p.group_shift < 31 ? kGroupsOfTile / at_once : 1);
  return encode_tensor_map(shape);
}

kernels::TensorMap x_map(const GemmArguments& a, int columns) {
  TensorMapShape shape{.data = a.x.data, .dtype = a.x.dtype};
  shape.add(a.x.columns, 0, kPanel);
  shape.add(a.x.rows, a.x.row_stride * 2, columns);
  return encode_tensor_map(shape);
}

/// Of the multiprocessors: so many read w about as fast as all. 0.72 on an H200, where a step takes a block
/// 0.37 us and memory brings one to each of 132 blocks in 0.49.
double least_readers(const gpu::DeviceProperties& device) {
  constexpr double kStepBytes = 2.0 * kernels::kFewRowsTile * kernels::kFewRowsStep;
  constexpr double kBlockBytes = kStepBytes / 0.37,
                   kReached = 0.85;  // in a microsecond; of what memory could
  constexpr double kUnknown = 0.72;
  if (device.memory_bytes_per_us <= 0) return kUnknown;
  return std::min(1.0, kReached * device.memory_bytes_per_us / (kBlockBytes * device.num_multiprocessors));
}

/// About what gemm_few_rows takes for all rows, 64 at once.
double few_rows_microseconds(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr double kStart = 6, kBytes = 3.5e6;  // in a microsecond, of an H100 or H200
  return static_cast<double>(divide_up<std::int64_t>(m, kernels::kMostFewRows)) *
         (kStart + static_cast<double>(2 * n * k) / kBytes);
}

}  // namespace

kernels::FewRowsShares share_few_rows(std::int64_t n, std::int64_t k, const gpu::DeviceProperties& device) {
  const std::int64_t tiles = divide_up<std::int64_t>(n, kernels::kFewRowsTile);
  const std::int64_t steps = divide_up<std::int64_t>(k, kernels::kFewRowsStep);
  const std::int64_t most = device.num_multiprocessors;
  const std::int64_t rounds = divide_up(tiles, most);
  const std::int64_t even_blocks = tiles < most ? most / tiles * tiles : divide_up(tiles, rounds);
  const bool is_even = static_cast<double>(even_blocks) >= least_readers(device) * static_cast<double>(most);
  if (is_even && rounds > 1)
    return {static_cast<int>(even_blocks), static_cast<int>(tiles), 0, 0, static_cast<int>(steps)};
  return share_tiles(tiles, steps, kernels::kLeastSplitSteps, static_cast<int>(is_even ? even_blocks : most));
}

WgmmaProducts::WgmmaProducts(CudaGpu& device, bool has_library)
    : gpu_(device), has_library_(has_library), split_tiles_(device), many_rows_(device) {}

bool WgmmaProducts::takes_rows(const StreamParams& p, const GemmArguments& a) const {
  if (a.batch_invariant) return true;
  if (a.x.rows <= kernels::kMostFewRows) return a.x.rows >= kLeastRows;
  // The library takes no bias of another type than the result's, and none where it adds to what is there.
  if (a.bias && (a.bias->dtype != a.out.dtype || a.accumulate)) return true;
  // An activation after it is a kernel of its own behind the library's product.
  return !has_library_ || (p.gemm.gated != 0 && a.x.rows >= kLeastGatedRows);
}

bool WgmmaProducts::takes(const StreamParams& p, const GemmArguments& a) const {
  // wgmma is Hopper's alone.
  const gpu::DeviceProperties& device = gpu_.properties();
  return device.compute_capability == 90 && device.has_tensor_maps && takes_rows(p, a) &&
         is_16_bit(a.weight.dtype) && a.x.dtype == a.weight.dtype &&
         (a.out.dtype == a.weight.dtype || a.out.dtype == DType::kF32) &&
         gpu::is_aligned(a.x.data, a.x.dtype, a.x.row_stride) && p.gemm.weight.vector != 0 && p.gemm.k > 0 &&
         p.gemm.k % kernels::kGroupSize == 0 && p.gemm.n > 0 &&
         p.gemm.k < std::numeric_limits<int>::max() - kernels::kFewRowsStep &&
         p.gemm.n < std::numeric_limits<int>::max() - kRowsOfTiles &&
         p.gemm.m < std::numeric_limits<int>::max() - 256 && (p.gemm.gated == 0 || p.gemm.n % kTileRows == 0);
}

void WgmmaProducts::launch_few_rows(const StreamParams& params, const GemmArguments& a, Stream stream) {
  const int columns = kernels::few_rows_columns(a.x.rows);
  const kernels::FewRowsShares shares = share_few_rows(params.gemm.n, params.gemm.k, gpu_.properties());
  FewRowsParams p{};
  p.weight = weight_map(params, a.weight.dtype);
  p.x = x_map(a, columns);
  p.product = params;
  p.parts = split_tiles_.parts(shares, kernels::kFewRowsTile, columns, stream);
  const std::string entry = fmt::format("gemm_few_rows_{}_{}", dtype_name(a.weight.dtype), columns);
  const gpu::ModuleSpec module{"sm90/gemm_few_rows.cu", {part_of_16_bit_define(a.weight.dtype)}};
  const auto shared_bytes = static_cast<std::size_t>(kernels::few_rows_shared_bytes(columns));
  const gpu::Kernel& kernel = gpu_.kernels().find(module, entry, shared_bytes);
  // The kernel has one place for a cluster's sums and for what appending needs.
  const unsigned blocks_of_cluster = kernels::are_halves(shares) && params.rope.num_heads == 0 ? 2 : 1;
  const gpu::LaunchShape shape{{static_cast<unsigned>(shares.blocks), 1, 1},
                               {static_cast<unsigned>(kernels::few_rows_threads(columns)), 1, 1},
                               shared_bytes,
                               true,
                               blocks_of_cluster};
  gpu::launch_kernel(gpu_, kernel, shape, stream, entry, p);
}

bool WgmmaProducts::gemm(const GemmArguments& a, std::optional<GatedActivation> activation, Stream stream) {
  const StreamParams params = stream_params(a, activation, kTileRows / 2);
  if (!takes(params, a)) return false;
  const auto [m, n, k] = std::tuple(params.gemm.m, params.gemm.n, params.gemm.k);
  const int num_multiprocessors = gpu_.properties().num_multiprocessors;
  const ManyRowsPlan plan = plan_many_rows(m, n, k, num_multiprocessors);
  if (m > kernels::kMostFewRows && plan.columns > 0 && plan.microseconds < few_rows_microseconds(m, n, k)) {
    kernels::FewRowsShares shares = share_few_rows(n, k, gpu_.properties());
    if (!a.batch_invariant) shares.split_tiles = shares.split_blocks = 0;
    many_rows_.launch(params, a, plan.columns, weight_map(params, a.weight.dtype), shares, stream);
    return true;
  }
  for (std::int64_t begin = 0; begin < a.x.rows; begin += kernels::kMostFewRows) {
    const GemmArguments rows =
        gpu::rows_from(a, begin, std::min<std::int64_t>(kernels::kMostFewRows, a.x.rows - begin));
    launch_few_rows(stream_params(rows, activation, kTileRows / 2), rows, stream);
  }
  return true;
}

bool WgmmaProducts::takes_gated(const GemmArguments& a, GatedActivation activation) const {
  return takes(stream_params(a, activation, kTileRows / 2), a);
}

bool WgmmaProducts::takes_projection(const NormedGemmArguments& a) const {
  const std::optional<StreamParams> p = projection_params(a);
  return p && a.gemm.x.rows <= kernels::kMostFewRows && takes(*p, a.gemm);
}

void WgmmaProducts::projection(const NormedGemmArguments& a, Stream stream) {
  launch_few_rows(*projection_params(a), a.gemm, stream);
}

}  // namespace tessera::cuda
