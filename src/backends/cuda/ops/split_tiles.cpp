#include "backends/cuda/ops/split_tiles.h"

#include <algorithm>
#include <cstddef>

namespace tessera::cuda {

kernels::FewRowsShares share_tiles(std::int64_t tiles, std::int64_t steps, std::int64_t least_split_steps,
                                   int num_multiprocessors) {
  const std::int64_t most = num_multiprocessors;
  const std::int64_t split_tiles = tiles % most;
  // No block has more than a tile's steps of the split ones, so that they are of two tiles at most.
  const std::int64_t split_blocks = std::clamp(split_tiles * steps / least_split_steps, split_tiles, most);
  return {static_cast<int>(tiles >= most ? most : split_blocks), static_cast<int>(tiles),
          static_cast<int>(split_tiles), static_cast<int>(split_blocks), static_cast<int>(steps)};
}

kernels::FewRowsParts SplitTiles::parts(const kernels::FewRowsShares& shares, int tile_rows, int columns,
                                        Stream stream) {
  if (shares.split_blocks <= shares.split_tiles) return {shares, nullptr, nullptr};
  const std::size_t sums = std::size_t{2} * static_cast<std::size_t>(shares.split_blocks) *
                           static_cast<std::size_t>(tile_rows * columns);
  const auto tiles = static_cast<std::size_t>(shares.split_tiles);
  return {shares, reinterpret_cast<float*>(partials_.get(sums * sizeof(float), stream)),
          reinterpret_cast<int*>(arrivals_.get(tiles * sizeof(int), stream))};
}

}  // namespace tessera::cuda
