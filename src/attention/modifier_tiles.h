#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "modifier/tiles.h"
#include "tessera/attention.h"

namespace tessera {

constexpr std::int64_t kCountedTile = 128;  ///< queries and keys of a tile that is counted

/// How many of the tiles within the diagonal's range a modifier's mask leaves empty, full and mixed, and what
/// of the work within that range is left.
struct ModifierTiles {
  std::array<std::int64_t, 3> of_class = {};  ///< by modifier::TileClass
  double visited_pairs = 1;                   ///< share of the pairs whose tile is not empty
  double visited_keys = 1;  ///< share of the keys that some query's tile that is not empty has

  std::int64_t count(modifier::TileClass c) const { return of_class[static_cast<std::size_t>(c)]; }
  std::int64_t total() const { return of_class[0] + of_class[1] + of_class[2]; }
};

/// Every tile, or evenly spread rows of tiles where there are too many. None, and all of the work left, for a
/// problem without a mask of a modifier, or whose lengths or tensors can't be read here. Throws
/// Error{kInvalidArgument} for a text that can't be parsed.
ModifierTiles modifier_tiles(const AttentionProblem& problem);

}  // namespace tessera
