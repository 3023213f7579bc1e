#pragma once

#include "sm80/gemm_blocks.h"
#include "sm90/tensor_map.h"

// Arguments of gemm_block_stream.cu, the same bytes on host and device.

namespace tessera::kernels {

struct BlockStreamParams {
  /// (2, n - rows_apart, row_bytes / 8): w's rows from a first one on, and those rows_apart behind them.
  TensorMap w;
  BlockGemmParams gemm;  // stages: slots of the ring
  int holds_x;           // 1: rows that aren't normed come to shared memory whole
};

/// As TwoBlockGemmParams.
struct TwoBlockStreamParams {
  BlockStreamParams upper, lower;
  int upper_blocks;
};

}  // namespace tessera::kernels
