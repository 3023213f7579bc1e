#pragma once

#include <cstdint>

#include "backends/cuda/ops/split_tiles.h"
#include "backends/gpu/ops/stream_workspaces.h"
#include "backends/gpu/runtime/gpu.h"
#include "ops/arguments.h"
#include "tessera/device.h"

namespace tessera::kernels {
struct BlockRowsFormat;
struct StreamParams;
}  // namespace tessera::kernels

namespace tessera::cuda {

/// What sm90/gemm_few_rows_blocks.cu has to know of a format; zeros if it doesn't take it.
kernels::BlockRowsFormat rows_format(DType weight);

/// Whether the rows of w are whole pieces of `piece_bytes` (0: none) that kernels find: at multiples of 16
/// bytes, and 32 bits count its bytes and what may be read behind them.
bool has_pieces(const kernels::StreamParams& params, std::int64_t piece_bytes);

/// Products of up to 64 rows of 16-bit x with weights of blocks on Hopper, by sm90/gemm_few_rows_blocks.cu.
class BlockRowsProducts {
 public:
  explicit BlockRowsProducts(gpu::Gpu& device);

  /// Whether the kernel is for these valid arguments, whose `params` are of groups of 16 rows.
  bool takes(const kernels::StreamParams& params, const GemmArguments& arguments) const;
  void launch(const kernels::StreamParams& params, const GemmArguments& arguments, Stream stream);

 private:
  gpu::Gpu& gpu_;
  SplitTiles split_tiles_;
  gpu::StreamWorkspaces prepared_;
};

}  // namespace tessera::cuda
