#pragma once

#include "common/ops_params.h"

// Arguments of gemm_q8.cu, the same bytes on host and device.

namespace tessera::kernels {

struct Q8GemmParams {
  GemmParams product;
  int groups_at_once;  // groups of rows of w that share what a warp holds of x
};

}  // namespace tessera::kernels
