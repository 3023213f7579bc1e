#pragma once

#include "common/attention_params.h"

namespace tessera::kernels {

constexpr int kMergeThreads = 128;

/// Two results over disjoint keys and their union; (batch, seq, head) by strides.
struct MergeStatesParams {
  TensorArgument o_a, o_b, o;
  LseArgument lse_a, lse_b;  // read only
  LseArgument lse;           // null data: not wanted
  int head_dim;
};

}  // namespace tessera::kernels
