#pragma once

#include "sm90/attention_wgmma_traits.h"

// attention_f32.cu's tiles, and what they take of shared memory: rows of highs and lows.

namespace tessera::kernels {

/// Measured in docs/kernels/hopper_f32.md. has_modifier: of a multiple of 32 keys.
TESSERA_TRAIT WgmmaTiles split_wgmma_tiles(int head_dim_qk, int head_dim_v, bool has_modifier) {
  const int head_dim = larger_of(head_dim_qk, head_dim_v);
  return head_dim <= 64    ? WgmmaTiles{128, 128, 2, 2, true, 0}
         : head_dim <= 128 ? WgmmaTiles{128, has_modifier ? 64 : 80, 2, 1, true, 0}
         : head_dim <= 192 ? WgmmaTiles{128, has_modifier ? 64 : 80, 1, 1, false, 0}
                           : WgmmaTiles{128, has_modifier ? 32 : 48, 1, 1, false, 0};
}

/// SharedStorage.
TESSERA_TRAIT int split_wgmma_shared_bytes(const WgmmaTiles& t, int head_dim_qk, int head_dim_v) {
  return wgmma_shared_bytes(t, 2 * parts_of(head_dim_qk, kPanelElements) * kPanelElements,
                            2 * parts_of(head_dim_v, kPanelElements) * kPanelElements, 0);
}

}  // namespace tessera::kernels
