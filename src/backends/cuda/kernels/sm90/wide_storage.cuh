#pragma once

#include "sm90/attention_traits.cuh"
#include "sm90/attention_wide_traits.h"
#include "sm90/ring_barriers.cuh"

// What attention_wide.cu keeps in shared memory.

namespace tessera::kernels {

static_assert(kBlockM == kWideBlockM && kBlockN == kWideBlockN && kColumnGroups == kWideColumnGroups);
static_assert(kHeadDimQk % kPanelElements == 0 && kHeadDimV % kPanelElements == 0, "whole panels");
static_assert(kPanelsQk >= 2 && kPanelsV >= 2, "halves of rows have panels");

// Panels of halves of a tile.
constexpr int kFirstKeyPanels = parts_of(kPanelsQk, 2);
constexpr int kSecondKeyPanels = kPanelsQk - kFirstKeyPanels;
constexpr int kLeftPanels = kOwnColumns / kPanelElements;
constexpr int kRightPanels = kPanelsV - kLeftPanels;
constexpr int kBuffers = wide_buffers(kHeadDimQk, kHeadDimV);
static_assert(kBuffers >= 4 && kBuffers != 5, "see wide_buffers()");
constexpr int kHalfBytes = wide_half_panels(kHeadDimQk, kHeadDimV) * kKvPanelBytes;

struct SharedStorage {
  unsigned char q[1][kPanelsQk * kQPanelBytes];
  unsigned char halves[kBuffers][kHalfBytes];          // of tiles of keys and of values
  unsigned char weights[2][kBlockM * kPanelRowBytes];  // of tile n in n % 2, for the other warpgroup
  float base[2][kBlockM];                              // of those weights
  float sum[2][2][kBlockM];  // of tile of queries t in t % 2: those of each warpgroup's weights
  int last_spoilt[4];        // the right warpgroup's, for the left one
  TileSlot tiles[kTileSlots];
  RingBarriers<kTileSlots> tile_ring;
  RingBarriers<1> q_ring;
  RingBarriers<kBuffers> ring;
};
static_assert(sizeof(SharedStorage) <= wide_shared_bytes(kHeadDimQk, kHeadDimV), "the host asks for as much");

// Tile n of keys, counted from 0 over all tiles of queries, comes in four halves, which are numbered on.
TESSERA_DEVICE int keys_of_tile(int n, int half) { return 4 * n + half; }
TESSERA_DEVICE int values_of_tile(int n, int half) { return 4 * n + 2 + half; }
TESSERA_DEVICE unsigned half_address(SharedStorage& smem, int count) {
  return shared_address(smem.halves) + count % kBuffers * kHalfBytes;
}

}  // namespace tessera::kernels
