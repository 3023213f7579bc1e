#pragma once

#include "sm80/shared_rows.h"

// attention_decode.cu's tiles, and what they take of shared memory.

namespace tessera::kernels {

constexpr int kDecodeRows = 16;        // of a block
constexpr int kDecodeWarpKeys = 16;    // that a warp takes at once
constexpr int kMostDecodeWarps = 12;   // of a block; they leave a thread 168 registers
constexpr int kMostDecodeCluster = 8;  // blocks, as many as every device of compute capability 9.0 runs

// Of a block of attention_decode_segments.cu.
constexpr int kSegmentWarps = 4;
constexpr int kSegmentStaticBytes = 6528;  // of shared memory beside its tiles

struct DecodeTiles {
  int num_warps;
  int num_stages;
};

/// Shared memory: q; each warp's stages, whose memory the merge uses again; of fp32 the powers of two that
/// the rows of q, and each warp's keys and values, are scaled by; of a cluster the states that blocks bring.
struct DecodeLayout {
  // Of rows, in elements.
  int stride_q;
  int stride_k;
  int stride_v;
  // Elements.
  int q;
  int stage;  // a warp's keys and values
};

/// kv_bytes: of an element of k and v.
TESSERA_TRAIT DecodeLayout decode_layout(int element_bytes, int kv_bytes, int head_dim_qk, int head_dim_v) {
  DecodeLayout l = {};
  l.stride_q = shared_row_stride(head_dim_qk, element_bytes);
  l.stride_k = shared_row_stride(head_dim_qk, kv_bytes);
  l.stride_v = shared_row_stride(head_dim_v, kv_bytes);
  l.q = kDecodeRows * l.stride_q;
  l.stage = kDecodeWarpKeys * (l.stride_k + l.stride_v);
  return l;
}

/// Of fp32, floats.
TESSERA_TRAIT int decode_num_powers(int element_bytes, int num_warps) {
  return element_bytes == 4 ? kDecodeRows + 2 * num_warps * kDecodeWarpKeys : 0;
}

/// Floats of a row's state: o, max and sum.
TESSERA_TRAIT int decode_merge_stride(int head_dim_v) { return head_dim_v + 2; }

/// Bytes of the barrier before what other blocks of a cluster bring, and floats of a row's state there: o,
/// max, sum and two of nothing, so that it is brought 16 bytes at once.
constexpr int kDecodeInboxBarrier = 16;
TESSERA_TRAIT int decode_inbox_stride(int head_dim_v) { return head_dim_v + 4; }

/// cluster_blocks: more than one have room for what all of them bring of the rows that a block finishes.
TESSERA_TRAIT int decode_shared_bytes(const DecodeTiles& t, int element_bytes, int kv_bytes, int head_dim_qk,
                                      int head_dim_v, int cluster_blocks = 1) {
  const DecodeLayout l = decode_layout(element_bytes, kv_bytes, head_dim_qk, head_dim_v);
  const int rows_of_block = (kDecodeRows + cluster_blocks - 1) / cluster_blocks;
  const int inbox = cluster_blocks > 1 ? kDecodeInboxBarrier + rows_of_block * cluster_blocks *
                                                                   decode_inbox_stride(head_dim_v) * 4
                                       : 0;
  return element_bytes * l.q + kv_bytes * t.num_warps * t.num_stages * l.stage +
         4 * decode_num_powers(element_bytes, t.num_warps) + inbox;
}

}  // namespace tessera::kernels
