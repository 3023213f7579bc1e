#pragma once

#include "sm90/gemm_few_rows_blocks.h"

// expert_blocks.cu's arguments, the same bytes on host and device.

namespace tessera::kernels {

constexpr int kMostExpertBlockSlots = 32;  // of a tile

struct ExpertBlocksParams {
  ExpertGemmParams product;
  int w_tiles;         // of an expert, of block_rows_tile() rows
  unsigned row_bytes;  // of w
};

}  // namespace tessera::kernels
