#pragma once

#include "attention/modifier_tiles.h"
#include "tessera/attention.h"

namespace tessera {

/// attention_flops and attention_bytes for whoever knows the problem's tiles, which take long to count.
double attention_flops(const AttentionProblem& problem, const ModifierTiles& tiles);
double attention_bytes(const AttentionProblem& problem, const ModifierTiles& tiles);

}  // namespace tessera
