#pragma once

#include "sm90/attention_traits.cuh"
#include "sm90/ring_barriers.cuh"

// What attention_wgmma.cu, attention_e4m3.cu and attention_f32.cu keep in shared memory: rings of buffers
// through which tiles come.

namespace tessera::kernels {

struct SharedStorage {
  unsigned char q[kQBuffers][kPanelsQk * kQPanelBytes];
  unsigned char k[kStages][kPanelsQk * kKvPanelBytes];
  unsigned char v[kStages][kVBytes];
  unsigned char stored[kStoredBuffers][kStoredBytes];  // what has to be widened or transposed
  TileSlot tiles[kTileSlots];
  RingBarriers<kTileSlots> tile_ring;
  RingBarriers<kQBuffers> q_ring;
  RingBarriers<kStages> k_ring, v_ring;
  RingBarriers<kStoredBuffers> stored_ring;
};

/// A tile of the copied mask for each warpgroup, which waits for its own alone. It lies behind SharedStorage.
struct MaskStorage {
  unsigned char tiles[kConsumers][larger_of(kMaskPanels, 1) * kMaskPanelBytes];
  RingBarriers<1> rings[kConsumers];
};
constexpr int kMaskOffset = parts_of(sizeof(SharedStorage), 1024) * 1024;
constexpr int kSharedBytes = kCopiedMask != 0 ? kMaskOffset + static_cast<int>(sizeof(MaskStorage))
                                              : static_cast<int>(sizeof(SharedStorage));
static_assert(kSharedBytes <= 227 * 1024, "the tiles do not fit in shared memory");
static_assert(kSharedBytes == (kIsE4M3 ? narrow_wgmma_shared_bytes(kTiles, kHeadDimQk, kHeadDimV)
                               : kIsSplit
                                   ? split_wgmma_shared_bytes(kTiles, kHeadDimQk, kHeadDimV)
                                   : wgmma_shared_bytes(kTiles, kHeadDimQk, kHeadDimV, kMaskElementBytes)),
              "the host asks for as much");

}  // namespace tessera::kernels
