#pragma once

#include "backends/cpu/ops/block_tiles.h"

namespace tessera::cpu {

/// Whether this processor has what multiply_blocks_by_dots and pack_blocks are made of.
bool has_block_dots();

/// multiply_blocks for tiles packed as BlockUnit::kDots asks for, by dot products of bf16 pairs (vdpbf16ps):
/// 16 rows of w are the lanes of a vector. The integers and what they are multiplied by are exact, sums of a
/// group are fp32. Only product.rows rows of c are written; their bits depend on their own rows of x and w.
void multiply_blocks_by_dots(const BlockProduct& product);

}  // namespace tessera::cpu
