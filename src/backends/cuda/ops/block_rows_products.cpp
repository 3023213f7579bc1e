#include "backends/cuda/ops/block_rows_products.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "backends/cuda/ops/stream_products.h"
#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/ops/widened_products.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "core/block_format.h"
#include "core/rounding.h"
#include "sm90/gemm_few_rows_blocks.h"

namespace tessera::cuda {

using kernels::kTileRows;

kernels::BlockRowsFormat rows_format(DType weight) {
  return dispatch_weight(weight, []<class T>() {
    if constexpr (is_block_format<T>) {
      if constexpr (kernels::HasFragment<T>::kValue) return kernels::kBlockRowsFormat<T>;
    }
    return kernels::BlockRowsFormat{};
  });
}

bool has_pieces(const kernels::StreamParams& stream, std::int64_t piece_bytes) {
  const kernels::GemmParams& p = stream.gemm;
  const std::int64_t row_bytes = p.k / kernels::kPieceColumns * piece_bytes;
  return row_bytes > 0 && p.k % kernels::kPieceColumns == 0 &&
         reinterpret_cast<std::uintptr_t>(p.weight.data) % 16 == 0 &&
         p.n <= std::numeric_limits<int>::max() - kTileRows &&
         (p.n + stream.rows_apart + kTileRows) * row_bytes <= std::numeric_limits<std::uint32_t>::max();
}

BlockRowsProducts::BlockRowsProducts(gpu::Gpu& device)
    : gpu_(device), split_tiles_(device), prepared_(device, "rows made ready for products with blocks") {}

bool BlockRowsProducts::takes(const kernels::StreamParams& p, const GemmArguments& a) const {
  // wgmma is Hopper's alone.
  return gpu_.properties().compute_capability == 90 && !a.batch_invariant && gpu::is_16_bit(a.x.dtype) &&
         (a.out.dtype == a.x.dtype || a.out.dtype == DType::kF32) && p.gemm.m > 0 && p.gemm.n > 0 &&
         gpu::is_aligned(a.x.data, a.x.dtype, a.x.row_stride) &&
         has_pieces(p, rows_format(a.weight.dtype).piece_bytes) &&
         ((p.gemm.gated == 0 && p.rope.num_heads == 0) || p.gemm.n % kTileRows == 0);
}

void BlockRowsProducts::launch(const kernels::StreamParams& params, const GemmArguments& a, Stream stream) {
  const kernels::BlockRowsFormat format = rows_format(a.weight.dtype);
  const int columns = kernels::block_rows_columns(params.gemm.m);
  const int num_multiprocessors = gpu_.properties().num_multiprocessors;
  const kernels::FewRowsShares shares =
      share_tiles(divide_up<std::int64_t>(params.gemm.n, kernels::block_rows_tile(columns)),
                  params.gemm.k / kernels::kPieceColumns, /*least_split_steps=*/1, num_multiprocessors);
  kernels::BlockRowsParams p{
      params, split_tiles_.parts(shares, kernels::block_rows_tile(columns), columns, stream), nullptr};
  const gpu::ModuleSpec module{"sm90/gemm_few_rows_blocks.cu",
                               {gpu::blocks_define(a.weight.dtype), part_of_16_bit_define(a.x.dtype)}};
  if (kernels::block_rows_are_prepared(columns)) {
    const std::int64_t pieces = params.gemm.k / kernels::kPieceColumns;
    p.prepared = reinterpret_cast<unsigned char*>(prepared_.get(
        static_cast<std::size_t>(pieces * kernels::block_rows_x_bytes(format, columns)), stream));
    const std::string entry =
        fmt::format("gemm_few_rows_blocks_prepare_{}_{}", dtype_name(a.x.dtype), columns);
    const std::int64_t warps = pieces * columns / kernels::kRowsOfWarp;
    const gpu::LaunchShape shape{{static_cast<unsigned>(warps * 32 / kernels::kPrepareThreads), 1, 1},
                                 {static_cast<unsigned>(kernels::kPrepareThreads), 1, 1},
                                 0,
                                 true};
    gpu::launch_kernel(gpu_, gpu_.kernels().find(module, entry), shape, stream, entry, p);
  }
  const std::string entry = fmt::format("gemm_few_rows_blocks_{}_{}", dtype_name(a.x.dtype), columns);
  const auto shared_bytes = static_cast<std::size_t>(kernels::block_rows_shared_bytes(format, columns));
  const gpu::Kernel& kernel = gpu_.kernels().find(module, entry, shared_bytes);
  const gpu::LaunchShape shape{{static_cast<unsigned>(shares.blocks), 1, 1},
                               {static_cast<unsigned>(kernels::block_rows_threads(columns)), 1, 1},
                               shared_bytes,
                               true};
  gpu::launch_kernel(gpu_, kernel, shape, stream, entry, p);
}

}  // namespace tessera::cuda
