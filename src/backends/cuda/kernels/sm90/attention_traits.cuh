#pragma once

#include "common/types.cuh"
#include "sm90/attention_wgmma_traits.h"
#include "sm90/ptx.cuh"
#include "sm90/query_tiles.cuh"

// What sm90/attention_wgmma.cu is compiled with, and what follows from it: tiles, warpgroups, shared memory
// and the rings of buffers through which tiles come.

namespace tessera::kernels {

using T = TESSERA_DTYPE;

constexpr int kHeadDimQk = TESSERA_HEAD_DIM_QK;
constexpr int kHeadDimV = TESSERA_HEAD_DIM_V;
constexpr int kBlockM = TESSERA_BLOCK_M;
constexpr int kBlockN = TESSERA_BLOCK_N;
constexpr int kStages = TESSERA_STAGES;
constexpr int kQBuffers = TESSERA_Q_BUFFERS;
constexpr bool kTakesTurns = TESSERA_TURNS != 0;
constexpr bool kPaged = TESSERA_PAGED != 0;
constexpr int kTerms = TESSERA_TERMS;
constexpr int kAdditiveMaskDType = TESSERA_MASK_DTYPE;
constexpr int kCopiedMask = TESSERA_COPIED_MASK;
constexpr WgmmaTiles kTiles = {kBlockM, kBlockN, kStages, kQBuffers, kTakesTurns};

constexpr int kConsumers = wgmma_consumers(kTiles);
constexpr int kConsumerWarps = 4 * kConsumers;
constexpr int kThreads = 32 * wgmma_warps(kTiles);
#ifdef TESSERA_MODIFIER
constexpr bool kHasModifier = true;
#else
constexpr bool kHasModifier = false;
#endif
// Of 64 K registers; the first warpgroup needs few, but for a modifier's bounds.
constexpr int kCopyRegisters = kConsumers == 1 || kHasModifier ? 56 : kConsumers == 2 ? 40 : 32;
constexpr int kComputeRegisters = kConsumers == 1 ? 248 : kConsumers == 2 ? (kHasModifier ? 224 : 232) : 160;
static_assert(!kHasModifier || kConsumers < 3, "three warpgroups leave no registers for a modifier");

// Panels by a tile's rows; see descriptor_of_rows.
constexpr int kPanelsQk = parts_of(kHeadDimQk, kPanelElements);
constexpr int kPanelsV = parts_of(kHeadDimV, kPanelElements);
constexpr int kQPanelBytes = kBlockM * kPanelRowBytes;
constexpr int kKvPanelBytes = kBlockN * kPanelRowBytes;

// The mask that is copied: a warpgroup's rows of it in panels of 128 bytes.
constexpr int kMaskElementBytes = kCopiedMask == kTermBooleanMask ? mask_element_bytes(kMaskU8)
                                  : kCopiedMask != 0              ? mask_element_bytes(kAdditiveMaskDType)
                                                                  : 0;
constexpr int kMaskPanels = parts_of(kBlockN * kMaskElementBytes, kPanelRowBytes);
constexpr int kMaskPanelBytes = 64 * kPanelRowBytes;

static_assert(kBlockM % 64 == 0 && kConsumers >= 1 && kConsumers <= 3, "one to three warpgroups of 64 rows");
static_assert(kBlockN % 16 == 0 && kBlockN <= 256, "a tile of keys is one product's n, and whole steps of k");
static_assert(kHeadDimQk % 16 == 0 && kHeadDimV % 16 == 0 && kHeadDimV <= 256,
              "whole steps of k; one product's n");

/// Of each buffer of a ring: when its tile is there, and when all have read it. Tile `count` (from 0) goes
/// through buffer count % kBuffers.
template <int kBuffers>
struct RingBarriers {
  unsigned long long filled[kBuffers];
  unsigned long long emptied[kBuffers];

  /// readers: arrivals that empty a buffer.
  TESSERA_DEVICE void start(int readers) {
    for (int i = 0; i < kBuffers; ++i) {
      mbarrier_init(shared_address(&filled[i]), 1);
      mbarrier_init(shared_address(&emptied[i]), readers);
    }
  }
  TESSERA_DEVICE void wait_filled(int count) {
    mbarrier_wait(shared_address(&filled[count % kBuffers]), count / kBuffers & 1);
  }
  /// Waits until nobody reads what was in the tile's buffer before. The first tiles wait for nobody: the
  /// phase before a barrier's first counts as ended.
  TESSERA_DEVICE void wait_emptied(int count) {
    mbarrier_wait(shared_address(&emptied[count % kBuffers]), (count / kBuffers & 1) ^ 1);
  }
  /// This thread has read the tile.
  TESSERA_DEVICE void release(int count) { mbarrier_arrive(shared_address(&emptied[count % kBuffers])); }
  /// This warp has.
  TESSERA_DEVICE void release_by_warp(int count) {
    if (thread_x() % 32 == 0) release(count);
  }
};

/// A query tile and its keys, as all threads of the block read them.
struct TileSlot {
  int index;  // or kNoTile
  KeyTiles keys;
  float slope;  // ALiBi's
  QueryTile tile;
};
constexpr int kNoTile = -1;

struct SharedStorage {
  unsigned char q[kQBuffers][kPanelsQk * kQPanelBytes];
  unsigned char k[kStages][kPanelsQk * kKvPanelBytes];
  unsigned char v[kStages][kPanelsV * kKvPanelBytes];
  TileSlot tiles[kTileSlots];
  RingBarriers<kTileSlots> tile_ring;
  RingBarriers<kQBuffers> q_ring;
  RingBarriers<kStages> k_ring, v_ring;
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
static_assert(kSharedBytes == wgmma_shared_bytes(kTiles, kHeadDimQk, kHeadDimV, kMaskElementBytes),
              "the host asks for as much");

/// Of the warp that asks for copies.
TESSERA_DEVICE int copying_lane() { return thread_x() % 32; }
/// Of the warpgroups that compute, which this is; the same for all lanes, as the compiler can see.
TESSERA_DEVICE int consumer_index() { return __shfl_sync(0xffffffffu, thread_x() / 128, 0) - 1; }
/// Of their warps.
TESSERA_DEVICE int consumer_warp() { return thread_x() / 32 - 4; }

}  // namespace tessera::kernels
