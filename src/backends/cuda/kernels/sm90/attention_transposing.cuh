#pragma once

#include "sm90/attention_traits.cuh"

// The warps that transpose tiles of values (e4m3), whose products want keys next to one another, while others
// compute.
//
//   stored   rows of keys as they were copied
//   v        groups of 8 columns by 16 keys, 128 bytes: neighbouring columns, then neighbouring keys
//
// The 16 keys of a group lie in the order in which a thread has its weights of them: keys 2 t, 2 t + 1, 2 t +
// 8, 2 t + 9 at 4 t. ldmatrix gives a thread keys 2 t and 2 t + 1 of columns 2 c and 2 c + 1, t and c being
// lane % 4 and lane / 4; two words of it, of eight keys each, have both columns' bytes. Lanes of c < 4 write
// the even one first and the others the odd one, so that the eight rows of a matrix lie in different banks.

namespace tessera::kernels {

// With three warpgroups that compute there are no registers for a thread that copies and finds tiles, too.
constexpr int kTransposingWarps = kConsumers == 3 ? 2 : 3;
constexpr int kFirstTransposingWarp = 4 - kTransposingWarps;
// What a warp takes at once, of 32 keys: as much as it has registers for.
constexpr int kTransposedColumns = kConsumers == 3 ? 32 : 64;

/// A stored tile's part for this warp.
TESSERA_DEVICE void transpose_tile(unsigned stored, unsigned to, int warp) {
  constexpr int kParts = parts_of(kHeadDimV, kTransposedColumns);
  constexpr int kMatrices = kTransposedColumns / 16;
  const int lane = thread_x() % 32;
  const bool is_odd_first = lane >= 16;
  const unsigned first_column = is_odd_first ? 0x7531u : 0x6420u;
  const unsigned second_column = is_odd_first ? 0x6420u : 0x7531u;
  // Of ldmatrix: lane's key of 32. Of stmatrix: lane's column, of the 16 keys in the first or the last half.
  const unsigned from_lane = stored + static_cast<unsigned>(lane * kPanelRowBytes + lane % 8 * 16);
  const int row = lane % 8;
  const int column = 2 * row + (lane / 8 % 2 ^ row / 4);
  const unsigned to_lane = to + static_cast<unsigned>((lane / 16 * kHeadDimV + column) * 16);
  TESSERA_UNROLL_BY(1)
  for (int item = warp; item < kBlockN / 32 * kParts; item += kTransposingWarps) {
    const int keys = item / kParts;  // of 32
    const int part = item % kParts;
    constexpr int kPartsOfPanel = kPanelRowBytes / kTransposedColumns;
    const unsigned from = (from_lane + keys * (32 * kPanelRowBytes) + part / kPartsOfPanel * kKvPanelBytes) ^
                          static_cast<unsigned>(part % kPartsOfPanel * kTransposedColumns);
    const unsigned to_part = to_lane + keys * (kHeadDimV * 32) + part * (kTransposedColumns * 16);
    unsigned x[kMatrices][4];
    TESSERA_UNROLL
    for (int n = 0; n < kMatrices; ++n) {
      if (kHeadDimV % kTransposedColumns != 0 && part * kTransposedColumns + 16 * n >= kHeadDimV) break;
      ldmatrix_x4_trans(x[n], from ^ static_cast<unsigned>(n * 16));
    }
    TESSERA_UNROLL
    for (int n = 0; n < kMatrices; ++n) {
      if (kHeadDimV % kTransposedColumns != 0 && part * kTransposedColumns + 16 * n >= kHeadDimV) break;
      const unsigned columns[4] = {
          byte_permute(x[n][0], x[n][1], first_column), byte_permute(x[n][0], x[n][1], second_column),
          byte_permute(x[n][2], x[n][3], first_column), byte_permute(x[n][2], x[n][3], second_column)};
      stmatrix_x4(to_part + n * 256, columns);
    }
  }
}

/// Transposes all tiles of values.
TESSERA_DEVICE void transpose_tiles(SharedStorage& smem) {
  const int warp = __shfl_sync(0xffffffffu, thread_x() / 32, 0) - kFirstTransposingWarp;
  int v_count = 0;
  for (int count = 0;; ++count) {
    smem.tile_ring.wait_filled(count);
    const TileSlot& slot = smem.tiles[count % kTileSlots];
    if (slot.index == kNoTile) return;
    const int end_count = v_count + slot.keys.end - slot.keys.begin;
    sync_warp();
    smem.tile_ring.release_by_warp(count);
    for (; v_count < end_count; ++v_count) {
      smem.v_ring.wait_emptied(v_count);
      smem.stored_ring.wait_filled(v_count);
      transpose_tile(shared_address(smem.stored[v_count % kStoredBuffers]),
                     shared_address(smem.v[v_count % kStages]), warp);
      smem.v_ring.fill_by_warp(v_count);
      smem.stored_ring.release_by_warp(v_count);
    }
  }
}

}  // namespace tessera::kernels
