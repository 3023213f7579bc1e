#pragma once

#include "common/attention_params.h"
#include "common/traits.h"

// attention_wgmma.cu's tiles, its threads, and what they take of shared memory.

namespace tessera::kernels {

struct WgmmaTiles {
  int block_m;
  int block_n;
  int num_stages;     // tiles of keys, and of values, in shared memory
  int num_q_buffers;  // tiles of queries
  bool takes_turns;   // whether the warpgroups' products alternate
  int num_stored;     // tiles of keys or values of 8 bits, which a warpgroup widens; 0: they are q's dtype
  int num_tile_slots = 3;  // query tiles known in advance, the present one among them
};

/// For the padded head_dims; is_wide: more queries a tile where there is a choice. mask_bytes: an element of
/// a mask that is copied, or 0. Measured in docs/kernels/hopper_attention.md.
TESSERA_TRAIT WgmmaTiles wgmma_tiles(int head_dim_qk, int head_dim_v, bool is_wide, bool has_terms,
                                     int mask_bytes) {
  const int head_dim = larger_of(head_dim_qk, head_dim_v);
  return head_dim <= 64
             ? (is_wide ? WgmmaTiles{192, 128, 2, 2, true, 0} : WgmmaTiles{128, 128, 3, 2, true, 0})
         : head_dim <= 128 ? WgmmaTiles{128, 128, 2, mask_bytes > 2 ? 1 : 2, has_terms, 0}
         : head_dim <= 192
             ? WgmmaTiles{128,  mask_bytes > 2 ? 64 : head_dim_v > 128 || mask_bytes > 1 ? 96 : 128,
                          2,    1,
                          true, 0}
             : WgmmaTiles{128, 64, 2, 1, true, 0, 2};
}

/// The same for batch-invariant problems, head_dims up to 128: 64 keys raise a row's base together in all
/// kernels that have its bits.
TESSERA_TRAIT WgmmaTiles segment_wgmma_tiles(int head_dim_qk, int head_dim_v) {
  return larger_of(head_dim_qk, head_dim_v) <= 64 ? WgmmaTiles{192, 64, 5, 2, true, 0}
                                                  : WgmmaTiles{128, 64, 4, 2, true, 0};
}

/// The same where keys and values are widened.
TESSERA_TRAIT WgmmaTiles widening_wgmma_tiles(int head_dim_qk, int head_dim_v, bool has_terms) {
  const int head_dim = larger_of(head_dim_qk, head_dim_v);
  return head_dim <= 64    ? WgmmaTiles{128, 128, 3, 2, true, 2}
         : head_dim <= 128 ? WgmmaTiles{128, 128, 2, 2, has_terms, 2}
         : head_dim <= 192 ? WgmmaTiles{128, 96, 2, 1, true, head_dim_v <= 128 ? 2 : 1}
                           : WgmmaTiles{128, 64, 2, 1, true, 2};
}

constexpr int kWgmmaWarpRows = 16;
constexpr int kWarpgroupRows = 4 * kWgmmaWarpRows;
/// Warpgroups that compute.
TESSERA_TRAIT int wgmma_consumers(const WgmmaTiles& t) { return t.block_m / kWarpgroupRows; }
/// Warps of a block: those, the warpgroup that copies, and maybe one that widens.
TESSERA_TRAIT int wgmma_warps(const WgmmaTiles& t) {
  return 4 * (wgmma_consumers(t) + (t.num_stored > 0 ? 2 : 1));
}

constexpr int kPanelElements = 64;  // of a row, as they are copied
constexpr int kPanelRowBytes = 128;
constexpr int kTileSlotBytes = 80;  // TileSlot
constexpr int kBarrierBytes = 16;   // of a ring for each buffer

/// MaskDType's.
TESSERA_TRAIT int mask_element_bytes(int mask_dtype) {
  return mask_dtype == kMaskF32 ? 4 : mask_dtype == kMaskU8 ? 1 : 2;
}

/// Bytes of a tile of 8-bit keys or values; some if there are none.
TESSERA_TRAIT int wgmma_stored_bytes(const WgmmaTiles& t, int head_dim_qk, int head_dim_v) {
  const int row_bytes = parts_of(larger_of(head_dim_qk, head_dim_v), kPanelRowBytes) * kPanelRowBytes;
  return t.num_stored > 0 ? t.block_n * row_bytes : 16;
}

/// SharedStorage, and behind it MaskStorage if a mask is copied.
TESSERA_TRAIT int wgmma_shared_bytes(const WgmmaTiles& t, int head_dim_qk, int head_dim_v, int mask_bytes) {
  const int panels_qk = parts_of(head_dim_qk, kPanelElements);
  const int panels_v = parts_of(head_dim_v, kPanelElements);
  const int panel_rows =
      t.num_q_buffers * t.block_m * panels_qk + t.num_stages * t.block_n * (panels_qk + panels_v);
  const int num_stored = larger_of(t.num_stored, 1);
  const int num_buffers = t.num_tile_slots + t.num_q_buffers + 2 * t.num_stages + num_stored;
  const int tiles = panel_rows * kPanelRowBytes +
                    num_stored * wgmma_stored_bytes(t, head_dim_qk, head_dim_v) +
                    t.num_tile_slots * kTileSlotBytes + num_buffers * kBarrierBytes;
  const int mask_row_bytes = parts_of(t.block_n * mask_bytes, kPanelRowBytes) * kPanelRowBytes;
  return mask_bytes == 0
             ? tiles
             : parts_of(tiles, 1024) * 1024 + t.block_m * mask_row_bytes + wgmma_consumers(t) * kBarrierBytes;
}

}  // namespace tessera::kernels
