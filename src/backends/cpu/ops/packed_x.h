#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backends/cpu/ops/block_tiles.h"
#include "backends/cpu/ops/scratch.h"
#include "backends/cpu/ops/tile_products.h"
#include "core/rounding.h"
#include "ops/arguments.h"

// What products of packed tiles have in common: x in tiles, sums in tiles, and the way from there to out.

namespace tessera::cpu {

inline constexpr std::int64_t kPackedTileBytes = static_cast<std::int64_t>(kTileBytes);

/// All rows of x in tiles.
struct PackedX {
  Scratch memory{0, ""};
  Scratch sums{0, ""};         // of groups, for weights with offsets
  std::vector<int> exponents;  // a row
  std::int64_t num_tiles = 0;
  std::int64_t steps = 0;
  int parts = 0;
  std::int64_t step_bytes = 0;
  bool is_finite = true;

  const std::byte* tile(std::int64_t index, std::int64_t step) const {
    return static_cast<const std::byte*>(memory.data()) + (index * steps + step) * step_bytes;
  }
  const float* sums_of(std::int64_t index, std::int64_t step, int groups_of_step) const {
    return sums.floats() + (index * steps + step) * groups_of_step * kTileRows;
  }
};

/// blocks: how w lies in tiles if it consists of blocks.
PackedX pack_x(const Matrix& x, const std::optional<BlockTiles>& blocks);

/// Sums of columns [begin, begin + 16 num_tiles) in packed tiles, [tile of x][tile of w].
class ColumnSums {
 public:
  ColumnSums(const PackedX& x, std::int64_t num_tiles)
      : num_tiles_(num_tiles),
        memory_(scratch_floats(x.num_tiles, num_tiles * kPackedTileBytes / 4, "gemm's sums")) {}

  std::int64_t num_tiles() const { return num_tiles_; }
  float* tile(std::int64_t x_tile, std::int64_t w_tile) {
    return memory_.floats() + (x_tile * num_tiles_ + w_tile) * kPackedTileBytes / 4;
  }

 private:
  std::int64_t num_tiles_;
  Scratch memory_;
};

/// Columns that a task takes, `most` or less: its sums for all rows and a piece of its weights share the
/// second-level cache.
std::int64_t columns_of_task(const Weight& w, std::int64_t most);

/// Rounds and stores the sums of columns [begin, end), in tiles of the order that x had in its.
void finish_tiles(const GemmArguments& a, const PackedX& x, XTileOrder order, std::int64_t begin,
                  std::int64_t end, ColumnSums& sums);

}  // namespace tessera::cpu
