#pragma once

#include "sm80/shared_rows.h"

// attention_mma.cu's tiles, and what they take of shared memory.

namespace tessera::kernels {

struct MmaTiles {
  int block_m;
  int block_n;
  int num_warps;
  int num_stages;
  int min_blocks;  // a multiprocessor
};

struct MmaCandidates {
  MmaTiles tiles[4];
};

/// For the larger padded head_dim, the preferred first: of those whose min_blocks fit in a multiprocessor's
/// shared memory the first is taken, else the first that fits at all. Measured in
/// docs/kernels/cuda_attention.md.
TESSERA_TRAIT MmaCandidates mma_candidates(int head_dim) {
  return head_dim <= 64
             ? MmaCandidates{{{128, 64, 4, 2, 3}, {128, 64, 4, 1, 2}, {64, 64, 4, 1, 2}, {64, 32, 4, 1, 1}}}
         : head_dim <= 128
             ? MmaCandidates{{{128, 64, 4, 2, 2}, {128, 64, 4, 1, 2}, {64, 64, 4, 1, 2}, {64, 32, 4, 1, 1}}}
             : MmaCandidates{{{128, 64, 8, 2, 1}, {64, 32, 4, 1, 2}, {64, 32, 4, 1, 1}, {64, 16, 4, 1, 1}}};
}

constexpr int kMmaRegisters = 168;  // of a thread at least, for the accumulators

/// Shared memory: q (o leaves through its space), the stages' keys, their values, the weights that warps hand
/// over, BlockState, a key range a row, and what the two warps of a row tell each other.
struct MmaLayout {
  // Large heads: two warps share their rows; each computes the scores of half a tile's keys, hands the
  // weights over and has half of v's columns in o. So a warp has twice the rows and reads each K and V
  // fragment for 32 rows instead of 16: these heads are limited by shared memory.
  bool shares_rows;
  // Of rows, in elements.
  int stride_qk;
  int stride_v;  // and of o
  int stride_p;  // of weights
  // Elements.
  int q;
  int k;  // of a stage
  int v;  // of a stage
  int p;
};

constexpr int kMmaStateBytes = 96;  // BlockState

TESSERA_TRAIT MmaLayout mma_layout(const MmaTiles& t, int head_dim_qk, int head_dim_v) {
  MmaLayout l = {};
  l.shares_rows = larger_of(head_dim_qk, head_dim_v) > 128 && head_dim_v % 32 == 0 && t.block_n % 32 == 0;
  l.stride_qk = shared_row_stride(head_dim_qk, 2);
  l.stride_v = shared_row_stride(head_dim_v, 2);
  l.stride_p = shared_row_stride(t.block_n, 2);
  l.q = t.block_m * larger_of(l.stride_qk, l.stride_v);
  l.k = t.block_n * l.stride_qk;
  l.v = t.block_n * l.stride_v;
  l.p = l.shares_rows ? t.block_m * l.stride_p : 0;
  return l;
}

TESSERA_TRAIT int mma_shared_bytes(const MmaTiles& t, int head_dim_qk, int head_dim_v) {
  const MmaLayout l = mma_layout(t, head_dim_qk, head_dim_v);
  const int row_bytes = l.shares_rows ? 16 : 8;
  return 2 * (l.q + t.num_stages * (l.k + l.v) + l.p) + kMmaStateBytes + row_bytes * t.block_m;
}

}  // namespace tessera::kernels
