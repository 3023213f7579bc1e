#pragma once

#include <cstdint>

#include "backends/gpu/ops/stream_workspaces.h"
#include "backends/gpu/runtime/gpu.h"
#include "sm90/few_rows_tiles.h"
#include "tessera/device.h"

namespace tessera::cuda {

/// Tiles of `steps` each; a block has at least so many of a tile that several share.
kernels::FewRowsShares share_tiles(std::int64_t tiles, std::int64_t steps, std::int64_t least_split_steps,
                                   int num_multiprocessors);

/// What blocks need that share tiles: memory for their sums and for counters.
class SplitTiles {
 public:
  explicit SplitTiles(gpu::Gpu& device)
      : partials_(device, "sums of products of few rows"),
        arrivals_(device, "counters of products of few rows", /*zeroed=*/true) {}

  /// For tiles of so many rows of w and of x; no memory where no tile is split.
  kernels::FewRowsParts parts(const kernels::FewRowsShares& shares, int tile_rows, int columns,
                              Stream stream);

 private:
  gpu::StreamWorkspaces partials_, arrivals_;
};

}  // namespace tessera::cuda
