#pragma once

#include "common/attention_params.h"

// Arguments of widen_queries.cu, the same bytes on host and device.

namespace tessera::kernels {

constexpr int kWidenQueriesThreads = 128;
constexpr int kWidenedAtOnce = 16;  // elements: 16 bytes as stored

struct WidenQueriesParams {
  TensorArgument q;  // of f8e4m3; batch_stride 0 if ragged
  void* wide;        // (tokens, num_heads, head_dim), without gaps
  int64 tokens;      // of all sequences
  int seq_len;       // of one; all tokens if ragged
  int num_heads;
  int head_dim;
  int is_aligned;  // 1: every kWidenedAtOnce elements of a row are 16 bytes at a multiple of 16
};

}  // namespace tessera::kernels
