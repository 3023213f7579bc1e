#pragma once

#include "common/ops_params.h"
#include "common/traits.h"
#include "sm90/tensor_map.h"

// gemm_few_rows.cu's arguments, the same bytes on host and device, and what it takes of shared memory.

namespace tessera::kernels {

constexpr int kFewRowsTile = 64;      // rows of w in a tile
constexpr int kFewRowsStep = 128;     // columns of a step, two panels of 64
constexpr int kFewRowsThreads = 160;  // a warpgroup that multiplies, a warp that asks for copies
constexpr int kMostFewRows = 64;      // of x
constexpr int kLeastSplitSteps = 4;   // of a block's share of a tile that several have

/// Rows of x that a kernel is made for: 16, 32 or 64.
TESSERA_TRAIT int few_rows_columns(long long m) { return m <= 16 ? 16 : m <= 32 ? 32 : 64; }

TESSERA_TRAIT int few_rows_stage_bytes(int columns) { return (kFewRowsTile + columns) * kFewRowsStep * 2; }
/// As many as keep a second block off the multiprocessor. Two of a product on one while another has none
/// would take twice as long, and that is where they go when the kernel before leaves multiprocessors at
/// different times.
TESSERA_TRAIT int few_rows_stages(int columns) { return columns <= 16 ? 7 : columns <= 32 ? 5 : 4; }
/// Floats from a row of x to the next in a tile's sums: a warp's fall into different banks.
constexpr int kFewRowsSumStride = kFewRowsTile + 4;
/// The ring, at a multiple of 1024 bytes; its barriers and a flag; a tile's sums.
TESSERA_TRAIT int few_rows_shared_bytes(int columns) {
  return 1024 + few_rows_stages(columns) * (few_rows_stage_bytes(columns) + 16) + 16 +
         columns * kFewRowsSumStride * 4;
}
/// Of a split tile's share: the sums of a block.
TESSERA_TRAIT int few_rows_partial_bytes(int columns) { return kFewRowsTile * columns * 4; }

/// How a product's tiles are shared out. Tiles from 0 on are split between blocks, by steps: block b <
/// split_blocks has steps [first_split_step(b), first_split_step(b + 1)) of all of theirs, which are of two
/// tiles at most. Each of the others is one block's.
struct FewRowsShares {
  int blocks;  // of the grid
  int tiles, split_tiles, split_blocks;
  int steps;  // of a tile
};

TESSERA_TRAIT long long first_split_step(const FewRowsShares& s, int block) {
  return static_cast<long long>(block) * s.split_tiles * s.steps / s.split_blocks;
}
/// The block that has a step of all split tiles'.
TESSERA_TRAIT int block_of_split_step(const FewRowsShares& s, long long step) {
  return static_cast<int>(((step + 1) * s.split_blocks - 1) /
                          (static_cast<long long>(s.split_tiles) * s.steps));
}

/// What a block has of a tile: steps [begin, end).
struct TileShare {
  int tile;
  int begin, end;
};

/// A block's shares, one after the other.
class TileShares {
 public:
  TESSERA_TRAIT TileShares(const FewRowsShares& shares, int block)
      : shares_(&shares),
        step_(block < shares.split_blocks ? first_split_step(shares, block) : 0),
        end_(block < shares.split_blocks ? first_split_step(shares, block + 1) : 0),
        tile_(shares.split_tiles + block) {}

  /// False, and `share` as it was, behind the last, however often it is asked.
  TESSERA_TRAIT bool next(TileShare& share) {
    const int steps = shares_->steps;
    if (step_ < end_) {
      share.tile = static_cast<int>(step_ / steps);
      share.begin = static_cast<int>(step_ % steps);
      share.end = end_ - step_ < steps - share.begin ? share.begin + static_cast<int>(end_ - step_) : steps;
      step_ += share.end - share.begin;
      return true;
    }
    if (tile_ >= shares_->tiles) return false;
    share.tile = tile_;
    share.begin = 0;
    share.end = steps;
    tile_ += shares_->blocks;
    return true;
  }

 private:
  const FewRowsShares* shares_;
  long long step_, end_;  // of all split tiles'
  int tile_;              // the next whole one
};

static_assert(few_rows_shared_bytes(16) > 114 * 1024 && few_rows_shared_bytes(32) > 114 * 1024 &&
                  few_rows_shared_bytes(64) > 114 * 1024,
              "two blocks fit a multiprocessor");

struct FewRowsParams {
  // w in boxes of 64 columns by a tile's rows, in the order of the tile: 16 a group, see StreamParams'
  // group_shift in sm80/gemm_blocks.h. Dimensions, innermost first: columns, rows; or, where a group's halves
  // stand apart, columns, 8 rows, 2 halves, groups of a block of rows, blocks.
  TensorMap weight;
  TensorMap x;  // 64 columns by the rows that the kernel is made for; zeros beyond the last
  StreamParams product;
  FewRowsShares shares;
  float* partials;  // (2 split_blocks, 64, columns): a block's sums of its first tile and its second
  int* arrivals;    // (split_tiles), 0 between kernels
};

}  // namespace tessera::kernels
