#pragma once

#include "common/attention_params.h"

namespace tessera::kernels {

constexpr int kMergeThreads = 128;

/// Two results over disjoint keys and their union; (batch, seq, head) by strides.
struct MergeStatesParams {
  TensorArgument o_a, o_b, o;
  const float* lse_a;
  const float* lse_b;
  float* lse;  // null: not wanted
  int64 lse_a_batch_stride, lse_a_head_stride, lse_a_seq_stride;
  int64 lse_b_batch_stride, lse_b_head_stride, lse_b_seq_stride;
  int64 lse_batch_stride, lse_head_stride, lse_seq_stride;
  int head_dim;
};

}  // namespace tessera::kernels
