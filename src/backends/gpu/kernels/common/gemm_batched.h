#pragma once

#include "common/ops_params.h"

// Arguments of gemm_batched.cu, the same bytes on host and device.

namespace tessera::kernels {

struct BatchedGemmParams {
  GemmParams gemm;                                              // of the first product; no bias
  int64 x_batch_stride, weight_batch_stride, out_batch_stride;  // elements
  int weight_is_transposed;                                     // 1: weight is (k, n)
};

}  // namespace tessera::kernels
