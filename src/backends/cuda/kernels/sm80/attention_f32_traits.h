#pragma once

#include "sm80/shared_rows.h"

// attention_f32.cu's tiles, and what they take of shared memory.

namespace tessera::kernels {

struct F32Tiles {
  int block_m;
  int block_n;
  int num_warps;
};

constexpr int kF32Stages = 2;

/// Keys of a tile that fit beside the queries in two buffers, for the larger padded head_dim. Rows' bits
/// depend on it, so that it is the same for all problems on a device.
TESSERA_TRAIT int f32_block_n(int head_dim, int shared_kib) {
  return head_dim <= 64    ? (shared_kib >= 200 ? 64 : 32)
         : head_dim <= 128 ? (shared_kib >= 200   ? 64
                              : shared_kib >= 140 ? 32
                                                  : 16)
                           : 16;
}

struct F32Candidates {
  F32Tiles tiles[3];
};

/// Blocks of most rows first: they read K and V least often, and smaller ones are for problems that would
/// leave multiprocessors without a block. Terms are unrolled over a thread's scores: with half the rows a
/// warp they compile in half the time.
TESSERA_TRAIT F32Candidates f32_candidates(int head_dim, int block_n, bool has_terms) {
  return head_dim <= 64
             ? F32Candidates{{{has_terms ? 64 : 128, block_n, 4}, {64, block_n, 4}, {64, block_n, 2}}}
             : F32Candidates{{{128, block_n, 8}, {64, block_n, 4}, {32, block_n, 2}}};
}

/// SharedStorage.
TESSERA_TRAIT int f32_shared_bytes(const F32Tiles& t, int head_dim_qk, int head_dim_v) {
  const int bytes_qk = shared_row_bytes(head_dim_qk, 4);
  const int bytes_v = shared_row_bytes(head_dim_v, 4);
  const int stage = whole_parts(t.block_n * (bytes_qk + bytes_v) + 8 * t.block_n + 4, 16);
  const int flags = 4 * parts_of(t.block_m, 32) + 4;
  return whole_parts(t.block_m * (bytes_qk + 12) + kF32Stages * stage + flags, 16);
}

}  // namespace tessera::kernels
