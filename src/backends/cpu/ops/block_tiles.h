#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/ops/tile_products.h"

namespace tessera::cpu {

/// What multiplies tiles of blocks.
enum class BlockUnit {
  kAmx,   ///< multiply_blocks, AMX's tiles
  kDots,  ///< multiply_blocks_by_dots, AVX-512's dot products of bf16 pairs; x of bf16 only
};

/// Products of blocks by tiles: c = x w^T with 16 rows of x, 16 rows of w and a group of up to 32 elements of
/// k a tile. Tiles of w hold integers; vectors multiply a group's sums by its scales. Numbers of x are sums
/// of bf16 parts as in tile_products.h, and an element of c likewise adds up k in order.
struct BlockTiles {
  int groups_of_step = 1;    ///< 1 or 2
  int tiles_of_step = 1;     ///< AMX: one a group, with a group of 16 twice, for two parts of x; else 1
  bool has_offsets = false;  ///< which sums of x's groups are multiplied by
  BlockTiles(DType dtype, BlockUnit unit);
  XTileOrder x_order() const { return x_order(tiles_of_step); }
  static constexpr XTileOrder x_order(int tiles_of_step) {
    return tiles_of_step == 2 ? XTileOrder::kHalves : XTileOrder::kRows;
  }
};

/// A piece of k of some rows of a weight.
struct PackedBlocks {
  std::byte* tiles = nullptr;  ///< [step][tile of rows][tile of the step], of (pair of k, row)
  float* scales = nullptr;     ///< [step][tile of rows][group of the step][row]
  float* offsets = nullptr;    ///< likewise; null: none
  std::int64_t num_tiles = 0;  ///< a step
};

/// Rows [first, first + 16) of w, elements [begin, begin + depth) of k, as tile `tile` of each step; zeros
/// past the last row. begin is that of a block and 256 k's apart from others, depth as far as w goes a
/// multiple of them.
void pack_blocks(const Weight& w, const BlockTiles& layout, std::int64_t first, std::int64_t begin,
                 std::int64_t depth, std::int64_t tile, const PackedBlocks& out);

/// c += x w^T for a tile of x's rows and all tiles of w's, whose number is a multiple of 4.
struct BlockProduct {
  PackedBlocks w;
  int groups_of_step = 1;
  std::int64_t steps = 0;
  int rows = 16;                      ///< of x that are there
  const std::byte* x = nullptr;       ///< packed tiles of the steps, in the layout's x_order()
  const std::byte* x_next = nullptr;  ///< likewise, what will be multiplied next
  int x_parts = 1;                    ///< 1 to 3
  const float* x_sums = nullptr;      ///< [step][group][row], where there are offsets
  float* c = nullptr;                 ///< w.num_tiles tiles of (row of x, row of w)
};

/// On the calling thread, while amx::TilesInUse lives.
void multiply_blocks(const BlockProduct& product);

}  // namespace tessera::cpu
