#pragma once

#include "sm90/tile_copies.cuh"
#include "sm90/wide_storage.cuh"

// The thread, or with pages the warp, of attention_wide.cu that asks for copies in the order in which they
// are used.

namespace tessera::kernels {

/// Half a tile of keys or values, kPanels panels from first_panel on.
template <int kPanels>
TESSERA_DEVICE void copy_half(const TensorMap& map, SharedStorage& smem, int count, const RowPlace& place,
                              int box_rows, int first_panel) {
  copy_tile<kPanels, kBlockN, kPanelColumns>(map, smem.halves, smem.ring, count, place, kEvictLast, box_rows,
                                             first_panel);
}

TESSERA_DEVICE void copy_tiles(const WgmmaArguments& arguments, SharedStorage& smem) {
  int n = 0;
  for (int count = 0;; ++count) {
    smem.tile_ring.wait_filled(count);
    const TileSlot& slot = smem.tiles[count % kTileSlots];
    if (slot.index == kNoTile) return;
    const RowPlace queries = place_of_queries(arguments.params, slot.tile);
    const KeyPlaces keys(arguments.params, slot.tile);
    const KeyTiles tiles = slot.keys;
    if (kPaged) sync_warp();
    if (copying_lane() == 0) smem.tile_ring.release(count);
    copy_query_tile(arguments, smem, count, queries);
    RowPlace place = keys(tiles.end - 1);
    for (int tile = tiles.end - 1; tile >= tiles.begin; --tile, ++n) {
      const RowPlace next = keys(tile - 1);  // pages are looked up a tile ahead
      copy_half<kFirstKeyPanels>(arguments.k, smem, keys_of_tile(n, 0), place, keys.box_rows, 0);
      copy_half<kSecondKeyPanels>(arguments.k, smem, keys_of_tile(n, 1), place, keys.box_rows,
                                  kFirstKeyPanels);
      copy_half<kLeftPanels>(arguments.v, smem, values_of_tile(n, 0), place, keys.box_rows, 0);
      copy_half<kRightPanels>(arguments.v, smem, values_of_tile(n, 1), place, keys.box_rows, kLeftPanels);
      place = next;
    }
  }
}

}  // namespace tessera::kernels
