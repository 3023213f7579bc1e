#include "backends/hip/ops/hip_products.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/ops/widened_products.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "common/gemv_blocks_traits.h"
#include "core/block_format.h"
#include "core/rounding.h"
#include "matrix/gemm_tiles.h"
#include "tessera/error.h"

namespace tessera::hip {
namespace {

constexpr std::int64_t kMostGemvRows = 8;
constexpr std::int64_t kMostRowsOfSmallTiles = 32;
/// gemm_blocks.hip takes w apart once for each of its tiles of rows of x. For two of them that is about as
/// many instructions as widening w and multiplying it takes, and fewer bytes: w's bf16 is neither written nor
/// read (docs/kernels/amd_products.md).
constexpr std::int64_t kMostRowsNotWidened = 2 * kernels::kMostBlockRows;

/// Of x's type or fp32, which kernels on the matrix units write.
bool takes_result(const GemmArguments& a) { return a.out.dtype == a.x.dtype || a.out.dtype == DType::kF32; }

/// Whether gemm.hip has a kernel for these types.
bool takes_types(const GemmArguments& a) {
  const bool is_16_bit = gpu::is_16_bit(a.x.dtype);
  const bool takes_weight = a.weight.dtype == DType::kQ8_0 ? is_16_bit || a.x.dtype == DType::kF32
                                                           : is_16_bit && a.weight.dtype == a.x.dtype;
  return takes_weight && takes_result(a);
}

std::int64_t blocks_of(const kernels::GemmParams& p, const kernels::GemmTiles& tiles) {
  return divide_up<std::int64_t>(p.m, tiles.rows_m()) * divide_up<std::int64_t>(p.n, tiles.rows_n());
}

}  // namespace

HipProducts::HipProducts(HipGpu& device)
    : gpu_(device), matrix_unit_(matrix_unit(device.properties().architecture)) {
  if (rocblas_reason_against(device.properties().architecture).empty()) rocblas_.emplace(device);
}

bool HipProducts::gemm(const GemmArguments& a, std::optional<GatedActivation> activation, Stream stream) {
  if (activation || a.batch_invariant || a.x.rows <= kMostGemvRows) return false;
  if (block_format(a.weight.dtype).elements == 1) return multiply_numbers(a, stream);
  if (a.weight.dtype == DType::kQ8_0 && !is_flushed(a))
    return multiply_tiles(a, stream) || multiply_widened(a, stream);
  if (a.x.rows <= kMostRowsNotWidened && multiply_blocks(a, stream)) return true;
  return multiply_widened(a, stream) || multiply_blocks(a, stream);
}

bool HipProducts::is_flushed(const GemmArguments& a) const {
  return a.x.dtype == DType::kF16 && flushes_f16(gpu_.properties().architecture);
}

bool HipProducts::multiply_numbers(const GemmArguments& a, Stream stream) {
  return (rocblas_ && gpu::library_gemm(*rocblas_, a, stream)) || multiply_tiles(a, stream);
}

bool HipProducts::multiply_widened(const GemmArguments& a, Stream stream) {
  // The tiles then take what rocBLAS does not, of all rows of w.
  if (matrix_unit_ == MatrixUnit::kNone || gpu::gemm_params(a, 0).x.vector == 0) return false;
  return gpu::multiply_widened(
      gpu_, widened_, a, {[&](const GemmArguments& part) { return multiply_numbers(part, stream); }}, stream);
}

bool HipProducts::multiply_tiles(const GemmArguments& a, Stream stream) {
  if (matrix_unit_ == MatrixUnit::kNone || !takes_types(a)) return false;
  const kernels::GemmParams params = gpu::gemm_params(a, 0);
  if (params.x.vector == 0 || params.weight.vector == 0) return false;

  const bool is_q8 = a.weight.dtype == DType::kQ8_0;
  const auto tiles_of = [&](bool is_large) {
    return kernels::gemm_tiles(is_large, is_q8, a.x.dtype == DType::kF32, matrix_unit_ == MatrixUnit::kMfma);
  };
  // Large tiles take the least from memory and LDS, but only where there are enough of them.
  const bool is_large = a.x.rows > kMostRowsOfSmallTiles &&
                        2 * blocks_of(params, tiles_of(true)) >= gpu_.properties().num_multiprocessors;
  // The kernel counts bytes within a tile in 32 bits.
  const std::int64_t most_row_bytes = std::numeric_limits<std::uint32_t>::max() / tiles_of(true).rows_n();
  if (params.x.row_stride * static_cast<std::int64_t>(dtype_bytes(a.x.dtype, 1)) > most_row_bytes ||
      params.k * 2 > most_row_bytes) {
    return false;
  }
  const std::string entry = fmt::format("gemm_{}_{}_{}", dtype_name(a.x.dtype), dtype_name(a.weight.dtype),
                                        is_large ? "large" : "small");
  return launch({"matrix/gemm.hip", {}}, entry, params, tiles_of(is_large), stream);
}

bool HipProducts::multiply_blocks(const GemmArguments& a, Stream stream) {
  if (matrix_unit_ == MatrixUnit::kNone || !takes_result(a)) return false;
  const kernels::GemmParams params = gpu::gemm_params(a, 0);
  // Rows of w may stand anywhere behind the first.
  if (params.x.vector == 0 || reinterpret_cast<std::uintptr_t>(a.weight.data) % kernels::kMovedBytes != 0)
    return false;
  const bool is_split = a.x.dtype == DType::kF32 || is_flushed(a);
  const int rows = kernels::gemm_blocks_rows(params.m, is_split);
  const kernels::GemmTiles tiles = kernels::gemm_blocks_tiles(rows, is_split);
  // The kernel counts bytes within a tile in 32 bits, a row more than it has.
  const auto row_bytes = static_cast<std::int64_t>(
      std::max(dtype_bytes(a.weight.dtype, static_cast<std::size_t>(params.k)),
               dtype_bytes(a.x.dtype, static_cast<std::size_t>(params.x.row_stride))));
  if (row_bytes > std::numeric_limits<std::uint32_t>::max() / (kernels::kMostBlockRows + 1)) return false;
  return launch({"matrix/gemm_blocks.hip", {gpu::blocks_define(a.weight.dtype)}},
                fmt::format("gemm_blocks_{}_{}", dtype_name(a.x.dtype), rows), params, tiles, stream);
}

bool HipProducts::launch(const gpu::ModuleSpec& module, const std::string& entry,
                         const kernels::GemmParams& params, const kernels::GemmTiles& tiles, Stream stream) {
  const std::int64_t blocks = blocks_of(params, tiles);
  const std::int64_t threads = std::int64_t{tiles.waves()} * gpu_.properties().warp_size;
  if (blocks * threads > std::numeric_limits<std::uint32_t>::max()) return false;
  const gpu::Kernel& kernel = gpu_.kernels().find(module, entry);
  const gpu::LaunchShape shape{
      {static_cast<unsigned>(blocks), 1, 1}, {static_cast<unsigned>(threads), 1, 1}, 0, true};
  gpu::launch_kernel(gpu_, kernel, shape, stream, entry, params);
  return true;
}

void HipProducts::normed_gemm(const NormedGemmArguments&, Stream) {
  throw Error(ErrorCode::kUnsupported,
              "normed_gemm: no kernel on AMD GPUs; expected a caller that asks takes_normed_gemm() first");
}

}  // namespace tessera::hip
