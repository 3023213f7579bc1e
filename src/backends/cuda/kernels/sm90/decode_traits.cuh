#pragma once

#include "common/decode_parts.cuh"
#include "sm90/attention_arguments.h"
#include "sm90/attention_decode_traits.h"
#include "sm90/decode_dims.cuh"
#include "sm90/ptx.cuh"

// What sm90/attention_decode.cu and attention_decode_e4m3.cu are compiled with, and what follows from it:
// panels, the ring of slots through which tiles come.

namespace tessera::kernels {

constexpr int kSlots = TESSERA_STAGES;
constexpr int kElementBytes = sizeof(Kv);
static_assert(kBlockN == decode_tile_keys(kElementBytes));
constexpr int kSlotBytes = decode_slot_bytes(kElementBytes, kHeadDimQk, kHeadDimV);
constexpr int kQueryBytes = decode_query_bytes(kElementBytes, kHeadDimQk, kHeadDimV);
constexpr bool kHasMasks = kAdditiveBytes + kBooleanBytes > 0;
constexpr int kMaskRows = kElementBytes == 1 ? kNarrowDecodeQueryRows : kDecodeQueryRows;
constexpr int kAdditiveRowBytes = decode_mask_row_bytes(kElementBytes, kAdditiveBytes);
constexpr int kBooleanRowBytes = decode_mask_row_bytes(kElementBytes, kBooleanBytes);
constexpr int kMasksBytes = decode_masks_bytes(kElementBytes, kAdditiveBytes, kBooleanBytes);
constexpr int kBlocksOfMultiprocessor = decode_blocks(kHeadDimQk, kHeadDimV);
// Where two blocks share a multiprocessor's; else there are enough. Masks pass through registers.
constexpr int kCopyRegisters = kHasMasks ? 64 : 40;
constexpr int kComputeRegisters = 256 - kCopyRegisters;
static_assert(kHeadDimQk % 8 == 0 && kHeadDimV % 8 == 0 && kHeadDimV <= kMostDecodeHeadDim,
              "16 bytes; one product's n");

/// How rows of head_dim elements lie in a slot: panel by panel, each with all rows.
template <int kHeadDim>
struct DecodePanels {
  static constexpr int kElements = decode_panel_elements(kElementBytes, kHeadDim);
  static constexpr int kCount = decode_panels(kElementBytes, kHeadDim);
  /// The map counts a row's panels; else elements, so that it fills up the last panel.
  static constexpr bool kAreWhole = kHeadDim % kElements == 0;
  static constexpr int kRowBytes = kElements * kElementBytes;
  static constexpr int kBytes = kBlockN * kRowBytes;
};

/// Of the warpgroup that computes; the same for all lanes, as the compiler can see.
TESSERA_DEVICE int consumer_warp() { return __shfl_sync(0xffffffffu, thread_x() / 32, 0) - 4; }

/// Rows of q as wgmma takes them from shared memory, if it does.
template <int kBytes>
struct QueryStorage {
  unsigned char q[kBytes];
};
template <>
struct QueryStorage<0> {};

/// Copy n of a block, counted from 0, goes through slot n % kSlots.
struct Ring : QueryStorage<kQueryBytes> {
  unsigned char slots[kSlots][kSlotBytes];
  unsigned long long filled[kSlots];
  unsigned long long emptied[kSlots];
  Part part;
};

/// Rows of masks' elements beside tiles of keys, the additive mask's and then the boolean one's: tile n,
/// counted from 0, goes through place n % kDecodeMaskTiles.
template <int kRowBytes>
struct MaskTiles {
  unsigned char rows[kDecodeMaskTiles][kMaskRows * kRowBytes];
  unsigned long long filled_masks[kDecodeMaskTiles];
  unsigned long long emptied_masks[kDecodeMaskTiles];
};
template <>
struct MaskTiles<0> {};

struct SharedStorage : Ring, MaskTiles<kAdditiveRowBytes + kBooleanRowBytes> {};
static_assert(sizeof(Part) <= 32 &&
                  sizeof(SharedStorage) + decode_merge_bytes(kElementBytes, kHeadDimV) <=
                      decode_shared_bytes_of(kSlots, kElementBytes, kHeadDimQk, kHeadDimV, kMasksBytes),
              "the host asks for as much");

TESSERA_DEVICE unsigned slot_of(SharedStorage& smem, int n) { return shared_address(smem.slots[n % kSlots]); }
TESSERA_DEVICE void wait_filled(SharedStorage& smem, int n) {
  mbarrier_wait(shared_address(&smem.filled[n % kSlots]), n / kSlots & 1);
}
TESSERA_DEVICE void wait_emptied(SharedStorage& smem, int n) {
  mbarrier_wait(shared_address(&smem.emptied[n % kSlots]), (n / kSlots & 1) ^ 1);
}
/// This warp has read what the slot holds.
TESSERA_DEVICE void release(SharedStorage& smem, int n) {
  if (thread_x() % 32 == 0) mbarrier_arrive(shared_address(&smem.emptied[n % kSlots]));
}

}  // namespace tessera::kernels
