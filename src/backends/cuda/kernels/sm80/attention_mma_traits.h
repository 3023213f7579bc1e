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

/// Above this head_dim padded ones are multiples of 64, and blocks of few rows have tiles of their own.
constexpr int kMostUsualHeadDim = 256;

/// For the larger padded head_dim, the preferred first: of those whose min_blocks fit in a multiprocessor's
/// shared memory the first is taken, else the first that fits at all. Measured in
/// docs/kernels/cuda_attention.md.
TESSERA_TRAIT MmaCandidates mma_candidates(int head_dim) {
  return head_dim <= 64
             ? MmaCandidates{{{128, 64, 4, 2, 3}, {128, 64, 4, 1, 2}, {64, 64, 4, 1, 2}, {64, 32, 4, 1, 1}}}
         : head_dim <= 128
             ? MmaCandidates{{{128, 64, 4, 2, 2}, {128, 64, 4, 1, 2}, {64, 64, 4, 1, 2}, {64, 32, 4, 1, 1}}}
         : head_dim <= kMostUsualHeadDim
             ? MmaCandidates{{{128, 64, 8, 2, 1}, {64, 32, 4, 1, 2}, {64, 32, 4, 1, 1}, {64, 16, 4, 1, 1}}}
             : MmaCandidates{{{64, 64, 8, 1, 1}, {32, 64, 4, 1, 1}, {64, 32, 8, 1, 1}, {16, 32, 2, 1, 1}}};
}

/// Warps that share their rows, each with a part of a tile's keys and of v's columns.
TESSERA_TRAIT int mma_warp_columns(const MmaTiles& t, int head_dim_qk, int head_dim_v) {
  const int head_dim = larger_of(head_dim_qk, head_dim_v);
  if (head_dim > kMostUsualHeadDim && head_dim_v % 64 == 0 && t.block_n % 64 == 0) return 4;
  return head_dim > 128 && head_dim_v % 32 == 0 && t.block_n % 32 == 0 ? 2 : 1;
}

/// For `rows` rows, which may leave most of a tile empty: less of it, over the same tiles of keys, so that a
/// row's bits stay the same.
TESSERA_TRAIT MmaTiles mma_tiles_of_rows(MmaTiles t, long long rows, int head_dim_qk, int head_dim_v) {
  const int warp_columns = mma_warp_columns(t, head_dim_qk, head_dim_v);
  if (larger_of(head_dim_qk, head_dim_v) > kMostUsualHeadDim) {
    if (rows <= 16) {
      t.block_m = 16;
      t.num_warps = warp_columns;
    }
  } else if (rows <= 64 && t.block_m == 128 && 16 * t.num_warps <= 64 * warp_columns) {
    t.block_m = 64;
  }
  return t;
}

constexpr int kMmaRegisters = 168;  // of a thread at least, for the accumulators

/// Shared memory: q (o leaves through its space), the stages' keys, their values, the weights that warps hand
/// over, BlockState, a key range a row, and what the warps of a row tell each other.
struct MmaLayout {
  // Large heads: two warps, or four, share their rows; each computes the scores of its part of a tile's keys,
  // hands the weights over and has its part of v's columns in o. So a warp has as many times the rows and
  // reads each K and V fragment for 32 rows instead of 16: these heads are limited by shared memory. And o of
  // more columns would not fit in a warp's registers.
  int warp_columns;
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
  l.warp_columns = mma_warp_columns(t, head_dim_qk, head_dim_v);
  l.stride_qk = shared_row_stride(head_dim_qk, 2);
  l.stride_v = shared_row_stride(head_dim_v, 2);
  l.stride_p = shared_row_stride(t.block_n, 2);
  l.q = t.block_m * larger_of(l.stride_qk, l.stride_v);
  l.k = t.block_n * l.stride_qk;
  l.v = t.block_n * l.stride_v;
  l.p = l.warp_columns > 1 ? t.block_m * l.stride_p : 0;
  return l;
}

TESSERA_TRAIT int mma_shared_bytes(const MmaTiles& t, int head_dim_qk, int head_dim_v) {
  const MmaLayout l = mma_layout(t, head_dim_qk, head_dim_v);
  const int row_bytes = 8 + (l.warp_columns > 1 ? 4 * l.warp_columns : 0);
  return 2 * (l.q + t.num_stages * (l.k + l.v) + l.p) + kMmaStateBytes + row_bytes * t.block_m;
}

}  // namespace tessera::kernels
