#pragma once

#include "backends/cpu/ops/block_tiles.h"
#include "ops/arguments.h"

namespace tessera::cpu {

/// gemm for weights of blocks and 1 to kMostTileRows rows of x, in fp32 sums of exact products. unit: kAmx
/// where SimdTarget::kAmxBf16 is attainable; kDots for x of bf16 where has_block_dots(). The bits of a row
/// depend on its own row of x and on w only. False, with nothing done, if x has a number that is not finite
/// and x consists of parts or w has offsets: sums of these can't hold it.
bool gemm_blocks(const GemmArguments& arguments, BlockUnit unit);

}  // namespace tessera::cpu
