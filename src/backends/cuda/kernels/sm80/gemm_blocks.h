#pragma once

#include "common/ops_params.h"

// Arguments of gemm_blocks.cu and gemm_block_bits.cu, part of those of sm90/gemm_block_stream.cu, the same
// bytes on host and device.

namespace tessera::kernels {

struct BlockGemmParams {
  /// Group g of 16 rows of w has 8 rows from 8 (g % 2^s) + 2^(s + 4) (g / 2^s) on, s being group_shift, and
  /// the 8 that stand rows_apart behind them: 8; head_dim / 2 where heads' halves are rotated; n / 2 of gated
  /// products. norm_weight and rope as gemv_stream.cu has them.
  StreamParams stream;
  int groups_per_block;  // the first more_groups blocks take one more
  int more_groups;
  int groups_at_once;  // groups that share what a warp holds of x
  int stages;          // gemm_block_bits.cu: a warp's buffers, kBitsStages or kLeastStages
};

/// Of gemm_block_bits.cu where w's rows are of two formats: what differs is which rows they are, their share
/// of blocks, and what these have in shared memory.
struct TwoBlockGemmParams {
  BlockGemmParams upper, lower;
  int upper_blocks;  // the first of the grid, which take the upper rows
};

}  // namespace tessera::kernels
