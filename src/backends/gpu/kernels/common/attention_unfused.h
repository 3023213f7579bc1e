#pragma once

#include "common/attention_params.h"

// Arguments of the unfused pipeline's kernels, the same bytes on host and device.

namespace tessera::kernels {

constexpr int kGatherThreads = 128;        // of a block, whose warps take a row each
constexpr int kScoreThreads = 256;         // of a block, which takes a row, at most
constexpr int kScoreSoftmaxThreads = 512;  // likewise
constexpr int kScoresAtOnce = 4;           // that a thread takes of a row, each time round

/// A part of a call: some pairs of a sequence and a kv head, some of each pair's rows. Row r of a pair is
/// query r % seq_len_q of head r / seq_len_q of the group that shares the kv head.
struct UnfusedParams {
  AttentionParams attention;
  void* q;           // (pairs, rows, qk_stride), zeros past head_dim_qk and past a sequence's end
  void* k;           // (pairs, key_stride, qk_stride), likewise
  void* v;           // (pairs, key_stride, v_stride), likewise; NaN and infinity became 0
  float* o;          // (pairs, rows, v_stride)
  float* scores;     // (pairs, rows, key_stride); the weights take their place, each row at its old start
  int* v_has_holes;  // (pairs), not 0 where v held NaN or infinity
  int64 first_pair;  // sequence * num_kv_heads + kv head of the first pair
  int64 first_row;   // of every pair
  int rows;          // of every pair in this part
  int qk_stride;     // head_dim_qk rounded up
  int v_stride;      // head_dim_v rounded up
  int key_stride;    // seq_len_kv rounded up
};

}  // namespace tessera::kernels
