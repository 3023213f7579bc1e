#pragma once

#include "sm90/attention_wgmma_traits.h"

// attention_e4m3.cu's tiles, its threads, and what they take of shared memory: WgmmaTiles, of which
// num_stored are buffers for values that wait to be transposed.

namespace tessera::kernels {

constexpr int kNarrowStep = 32;  // of k, of a product of e4m3

/// Both head_dims of a module: what is above the problem's is filled up with zeros.
TESSERA_TRAIT int narrow_head_dim(int head_dim_qk, int head_dim_v) {
  return parts_of(larger_of(head_dim_qk, head_dim_v), 64) * 64;
}

/// Measured in docs/kernels/hopper_e4m3.md. has_powers: of a power of two keys, as pages have that do not
/// make up the others.
TESSERA_TRAIT WgmmaTiles narrow_wgmma_tiles(int head_dim, bool has_powers) {
  return head_dim <= 64    ? WgmmaTiles{192, 128, 2, 2, true, 2}
         : head_dim <= 128 ? WgmmaTiles{128, has_powers ? 128 : 192, 2, 2, true, 2}
         : head_dim <= 192 ? WgmmaTiles{128, 128, 2, 1, true, 1}
                           : WgmmaTiles{128, has_powers ? 64 : 96, 2, 2, true, 2};
}

/// Warps of a block: those that compute, and the warpgroup that copies and transposes.
TESSERA_TRAIT int narrow_wgmma_warps(const WgmmaTiles& t) { return 4 * (wgmma_consumers(t) + 1); }

/// SharedStorage.
TESSERA_TRAIT int narrow_wgmma_shared_bytes(const WgmmaTiles& t, int head_dim_qk, int head_dim_v) {
  const int qk_bytes = parts_of(head_dim_qk, kPanelRowBytes) * kPanelRowBytes;
  const int v_bytes = parts_of(head_dim_v, kPanelRowBytes) * kPanelRowBytes;
  const int num_buffers = t.num_tile_slots + t.num_q_buffers + 2 * t.num_stages + t.num_stored;
  return t.num_q_buffers * t.block_m * qk_bytes +
         t.block_n * (t.num_stages * (qk_bytes + head_dim_v) + t.num_stored * v_bytes) +
         t.num_tile_slots * kTileSlotBytes + num_buffers * kBarrierBytes;
}

}  // namespace tessera::kernels
