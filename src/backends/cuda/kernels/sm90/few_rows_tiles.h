#pragma once

#include "common/traits.h"

// How tiles of rows of w are shared out among the blocks of a product of few rows, on host and device.

namespace tessera::kernels {

constexpr int kRowsOfWarpgroup = 64;  // of w, that a warpgroup multiplies

/// Floats from a row of x to the next in a tile's sums: a warp's fall into different banks.
TESSERA_TRAIT int few_rows_sum_stride(int tile_rows) { return tile_rows + 4; }

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

/// Whether each tile is two blocks', one half after the other's.
TESSERA_TRAIT bool are_halves(const FewRowsShares& s) {
  return s.split_tiles == s.tiles && s.split_blocks == 2 * s.tiles;
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

/// A walk over all steps of a block's shares: each is the first of what is left of `share`.
struct StepWalk {
  TileShares shares;
  TileShare share = {0, 0, 0};

  TESSERA_TRAIT StepWalk(const FewRowsShares& all, int block) : shares(all, block) {}
  TESSERA_TRAIT bool next() {
    if (share.begin + 1 < share.end) {
      ++share.begin;
      return true;
    }
    return shares.next(share);
  }
};

struct FewRowsParts {
  FewRowsShares shares;
  float*
      partials;  // (2 split_blocks, rows of a tile, columns): a block's sums of its first tile and its second
  int* arrivals;  // (split_tiles), 0 between kernels
};

}  // namespace tessera::kernels
