#pragma once

#include "sm90/attention_storage.cuh"
#include "sm90/tile_copies.cuh"

// The two threads of the first warpgroup that work: one finds out which tiles of queries the block computes,
// the other asks for copies in the order in which they are used.

namespace tessera::kernels {

// What is known of numbers that are split lies beside their buffers, too.
struct SplitNotes {
  SplitTile k[kStages], v[kStages];
};
TESSERA_DEVICE SplitNotes& split_notes() {
  __shared__ SplitNotes notes;
  return notes;
}
TESSERA_DEVICE SplitTile split_tile(const SplitTiles& tiles, int head, int tile) {
  return tiles.tiles[static_cast<int64>(head) * tiles.tiles_of_head + tile];
}
/// Before a copy is asked for; `note` is on its way while the buffer is waited for.
TESSERA_DEVICE void leave_split_note(RingBarriers<kStages>& ring, SplitTile (&notes)[kStages], int count,
                                     const SplitTile& note) {
  ring.wait_emptied(count);
  notes[count % kStages] = note;
}

/// Asks for all tiles of queries, keys and values, as one thread, or with pages as one warp. kFinds: and
/// finds them itself.
template <bool kFinds = false>
TESSERA_DEVICE void copy_tiles(const WgmmaArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  TileFinder finder(arguments);
  int k_count = 0;
  int stored_count = 0;
  for (int count = 0;; ++count) {
    if (kFinds && copying_lane() == 0) {
      finder.fill_slot(smem, count);
      TileFinder::release_slot(smem, count);
    }
    smem.tile_ring.wait_filled(count);
    const TileSlot& slot = smem.tiles[count % kTileSlots];
    if (slot.index == kNoTile) return;
    const QueryTile& t = slot.tile;
    const RowPlace queries = place_of_queries(p, t);
    const KeyPlaces keys(p, t);
    const KeyTiles tiles = slot.keys;
    const int kv_head = t.b * p.num_kv_heads + t.kv_head;  // of all sequences
#ifdef TESSERA_MODIFIER
    TilesOfSlot visible(p, slot, modifier_slot(count).tiles);
#endif
    constexpr bool kIsWarp = kPaged || kHasModifier;
    const auto release_slot = [&] {
      if (kIsWarp) sync_warp();
      if (!kIsWarp || copying_lane() == 0) smem.tile_ring.release(count);
    };
    if (!kHasModifier) release_slot();
    const auto copy_k = [&](const RowPlace& place) {
      if constexpr (kWidens) {
        copy_tile<kStoredPanelsQk, kBlockN, kPanelRowBytes>(arguments.k, smem.stored, smem.stored_ring,
                                                            stored_count++, place, kEvictLast, keys.box_rows);
      } else {
        if constexpr (kIsSplit)
          leave_split_note(smem.k_ring, split_notes().k, k_count,
                           split_tile(arguments.k_tiles, kv_head, place.tile));
        copy_tile<kPanelsQk, kBlockN, kPanelColumns>(arguments.k, smem.k, smem.k_ring, k_count, place,
                                                     kEvictLast, keys.box_rows);
      }
      ++k_count;
    };
    // Of the last tile of keys but `behind`.
    const auto copy_v = [&](const RowPlace& place, int behind) {
      if constexpr (kWidens) {
        copy_tile<kStoredPanelsV, kBlockN, kPanelRowBytes>(arguments.v, smem.stored, smem.stored_ring,
                                                           stored_count++, place, kEvictLast, keys.box_rows);
      } else if constexpr (kIsE4M3) {
        copy_tile<kStoredPanelsV, kBlockN, kPanelRowBytes>(arguments.v, smem.stored, smem.stored_ring,
                                                           k_count - 1 - behind, place, kEvictLast,
                                                           keys.box_rows);
      } else {
        if constexpr (kIsSplit)
          leave_split_note(smem.v_ring, split_notes().v, k_count - 1 - behind,
                           split_tile(arguments.v_tiles, kv_head, place.tile));
        copy_tile<kPanelsV, kBlockN, kPanelColumns>(arguments.v, smem.v, smem.v_ring, k_count - 1 - behind,
                                                    place, kEvictLast, keys.box_rows);
      }
    };
#ifdef TESSERA_MODIFIER
    // Lanes find the tiles together, and ask as one or, with pages, each for its own boxes.
    const bool asks = kPaged || copying_lane() == 0;
    if (asks) copy_query_tile(arguments, smem, count, queries);
    int tile = -1;  // that comes next, once it is known whether it is the last
    RowPlace place = {};
    RowPlace last = {};
    for (bool is_first = true;;) {
      int next = visible.next();
      if (tile < 0 && next < 0) next = tiles.begin * 2 + 1;  // there is one, even if no query sees a key
      const RowPlace here = place;
      if (next >= 0) place = keys(next / 2);  // pages are looked up a tile ahead
      if (tile >= 0) {
        const StoredKeys stored(p, slot, count, tile);
        if (asks || kSharesStored) smem.k_ring.wait_emptied(k_count);
        stored.leave(k_count);
        if (copying_lane() == 0) leave_note(k_count, {tile / 2, is_first, next < 0, tile % 2 != 0});
        if (asks) {
          copy_k(here);
          if (!is_first) copy_v(last, 1);
        } else {
          ++k_count;
        }
        last = here;
        is_first = false;
      }
      if (next < 0) break;
      tile = next;
    }
    release_slot();
    if (asks) copy_v(last, 0);
#else
    copy_query_tile(arguments, smem, count, queries);
    if constexpr (kPaged) {
      constexpr int kStep = kInvariant ? 1 : -1;
      int tile = kInvariant ? tiles.begin : tiles.end - 1;
      RowPlace place = keys(tile);
      RowPlace next = keys(tile + kStep);  // pages are looked up a tile ahead
      copy_k(place);
      for (int left = tiles.end - tiles.begin; left > 1; --left) {
        copy_k(next);
        copy_v(place, 1);
        place = next;
        tile += kStep;
        next = keys(tile + kStep);
      }
      copy_v(place, 0);
    } else if constexpr (kInvariant) {
      copy_k(keys(tiles.begin));
      for (int tile = tiles.begin + 1; tile < tiles.end; ++tile) {
        copy_k(keys(tile));
        copy_v(keys(tile - 1), 1);
      }
      copy_v(keys(tiles.end - 1), 0);
    } else {
      copy_k(keys(tiles.end - 1));
      for (int tile = tiles.end - 1; tile > tiles.begin; --tile) {
        copy_k(keys(tile - 1));
        copy_v(keys(tile), 1);
      }
      copy_v(keys(tiles.begin), 0);
    }
#endif
  }
}

/// The copied mask's tiles, in the order of the keys'. By a thread of its own: each warpgroup's tile has one
/// buffer, and keys and values don't wait for it to be read.
TESSERA_DEVICE void copy_masks(const WgmmaArguments& arguments, SharedStorage& smem, MaskStorage& masks) {
  constexpr int kPanelKeys = kMaskElementBytes > 0 ? kPanelRowBytes / kMaskElementBytes : 1;
  const MaskArgument& m =
      kCopiedMask == kTermBooleanMask ? arguments.params.boolean_mask : arguments.params.additive_mask;
  int k_count = 0;
  for (int count = 0;; ++count) {
    smem.tile_ring.wait_filled(count);
    const TileSlot& slot = smem.tiles[count % kTileSlots];
    if (slot.index == kNoTile) return;
    const int row = slot.tile.row;
    const int head = m.head_stride != 0 ? slot.tile.head : 0;
    const int b = m.batch_stride != 0 ? slot.tile.b : 0;
    const KeyTiles tiles = slot.keys;
    smem.tile_ring.release(count);
    for (int tile = tiles.end - 1; tile >= tiles.begin; --tile, ++k_count) {
      for (int consumer = 0; consumer < kConsumers; ++consumer) {
        RingBarriers<1>& ring = masks.rings[consumer];
        ring.wait_emptied(k_count);
        const unsigned filled = shared_address(&ring.filled[0]);
        mbarrier_arrive_expect_tx(filled, kMaskPanels * kMaskPanelBytes);
        TESSERA_UNROLL
        for (int panel = 0; panel < kMaskPanels; ++panel) {
          cp_async_bulk_tensor_4d(shared_address(masks.tiles[consumer]) + panel * kMaskPanelBytes,
                                  &arguments.mask, filled, tile * kBlockN + panel * kPanelKeys,
                                  row + 64 * consumer, head, b,
                                  m.head_stride != 0 ? kEvictFirst : kEvictLast);
        }
      }
    }
  }
}

}  // namespace tessera::kernels
