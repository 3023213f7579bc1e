#pragma once

#include <string>

#include "modifier/ir.h"

namespace tessera::modifier {

/// The function modifier_tile of score_modifier.cuh: what TileClassifier (tiles.h) finds out about a mask, by
/// the same rules, as text. Scalars are terms here, not constants, so that their values are arguments.
std::string tile_text(const Program& program);

}  // namespace tessera::modifier
