#pragma once

#include "common/ops_params.h"

// Arguments of gemm_q8.cu, the same bytes on host and device.

namespace tessera::kernels {

struct Q8GemmParams {
  GemmParams product;
  int groups_per_block;  // of 16 rows of w; the first more_groups blocks take one more
  int more_groups;
  int groups_at_once;  // groups that share what a warp holds of x
};

}  // namespace tessera::kernels
