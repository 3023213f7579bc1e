#pragma once

#include "sm80/narrow_rows.cuh"
#include "sm90/attention_arguments.h"
#include "sm90/attention_modifier.cuh"

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

/// Which tiles of queries the block computes.
class TileFinder {
 public:
  TESSERA_DEVICE explicit TileFinder(const WgmmaArguments& arguments)
      : arguments_(arguments), num_tiles_(num_query_tiles<kBlockM>(arguments.params)), index_(block_x()) {}

  /// Fills slot `count`, from 0 on. Whether there is such a tile. Others may read it after release_slot().
  TESSERA_DEVICE bool fill_slot(SharedStorage& smem, int count) {
    const AttentionParams& p = arguments_.params;
    smem.tile_ring.wait_emptied(count);
    if (count > 0) go_on();
    TileSlot& slot = smem.tiles[count % kTileSlots];
    for (; index_ < num_tiles_; go_on()) {
      slot.tile = query_tile<kBlockM>(p, index_);
      if (slot.tile.exists()) break;
      skip_missing_tiles();
    }
    const bool exists = index_ < num_tiles_;
    if (exists) slot.keys = key_tiles<kBlockM, kBlockN>(p, slot.tile);
    if (exists && (kTerms & kTermAlibi) != 0)
      slot.slope = p.alibi_slopes[slot.tile.b * p.alibi_batch_stride + slot.tile.head];
    if (exists && kIsNarrow) {
      slot.score_scale = product_scale_of_head(p, slot.tile.b, slot.tile.kv_head);
      slot.value_scale = scale_of_head(p, p.kv_scales.v, slot.tile.b, slot.tile.kv_head);
    }
    slot.index = exists ? index_ : kNoTile;
    return exists;
  }
  TESSERA_DEVICE static void release_slot(SharedStorage& smem, int count) {
    mbarrier_arrive(shared_address(&smem.tile_ring.filled[count % kTileSlots]));
  }

 private:
  /// Where lengths differ, thousands of tiles in a row may be missing: no block draws another of these.
  TESSERA_DEVICE void skip_missing_tiles() const {
    if (arguments_.tickets == nullptr) return;
    atomicMax(arguments_.tickets, next_query_tile<kBlockM>(arguments_.params, index_) - grid_x());
  }
  TESSERA_DEVICE void go_on() {
    index_ = arguments_.tickets == nullptr ? index_ + grid_x() : grid_x() + atomicAdd(arguments_.tickets, 1);
  }

  const WgmmaArguments& arguments_;
  int num_tiles_;
  int index_;
};

/// Fills the ring of tile slots until there are no more tiles. Apart from the copies, which would wait for
/// the ticket, for the divisions and for a modifier's bounds. By a thread, or with a modifier by a warp.
TESSERA_DEVICE void find_tiles(const WgmmaArguments& arguments, SharedStorage& smem) {
  TileFinder finder(arguments);
  bool exists = true;
  for (int count = 0; exists; ++count) {
    if (!kHasModifier || copying_lane() == 0) exists = finder.fill_slot(smem, count);
#ifdef TESSERA_MODIFIER
    sync_warp();
    const TileSlot& slot = smem.tiles[count % kTileSlots];
    exists = slot.index != kNoTile;
    if (exists) fill_modifier_slot(arguments.params, slot, count);
    if (copying_lane() != 0) continue;
#endif
    TileFinder::release_slot(smem, count);
  }
}

/// Where a box is in its tensor: the copies' coordinates.
struct RowPlace {
  int row;
  int head;
  int b;     // or the page
  int tile;  // of keys
};

/// Rows of a head into panels of the ring's next buffer: kRows from `place` on. With pages each lane of the
/// warp copies the rows of one box, its own `place`, as many lanes as the tile has boxes.
template <int kPanels, int kRows, int kElements, int kBuffers, int kBytes>
TESSERA_DEVICE void copy_tile(const TensorMap& map, unsigned char (&buffers)[kBuffers][kBytes],
                              RingBarriers<kBuffers>& ring, int count, const RowPlace& place,
                              unsigned long long cache_policy, int box_rows = kRows) {
  static_assert(kPanels * kRows * 128 <= kBytes, "a tile does not fit its buffer");
  const int buffer = count % kBuffers;
  ring.wait_emptied(count);
  const int first_row = kPaged ? copying_lane() * box_rows : 0;
  const unsigned to = shared_address(buffers[buffer]) + first_row * 128;
  const unsigned filled = shared_address(&ring.filled[buffer]);
  if (first_row == 0) mbarrier_arrive_expect_tx(filled, kPanels * kRows * 128);
  if (first_row >= kRows) return;
  TESSERA_UNROLL
  for (int panel = 0; panel < kPanels; ++panel) {
    cp_async_bulk_tensor_4d(to + panel * kRows * 128, &map, filled, panel * kElements, place.row, place.head,
                            place.b, cache_policy);
  }
}

TESSERA_DEVICE RowPlace place_of_queries(const AttentionParams& p, const QueryTile& t) {
  return {static_cast<int>(t.sequence.q_begin) + t.row, t.head, p.cu_seqlens_q != nullptr ? 0 : t.b};
}

/// Where the keys and values of a query tile's sequence and head are.
struct KeyPlaces {
  const AttentionParams& p;
  int first_row;
  int head;
  int b;
  int len_kv;
  const int* pages;
  int box_rows;  // of a page in a tile

  TESSERA_DEVICE KeyPlaces(const AttentionParams& params, const QueryTile& t)
      : p(params),
        first_row(static_cast<int>(t.sequence.kv_begin)),
        head(t.kv_head),
        b(params.cu_seqlens_kv != nullptr ? 0 : t.b),
        len_kv(t.sequence.len_kv),
        pages(kPaged ? params.block_table + t.b * params.block_table_stride : nullptr),
        box_rows(kPaged ? minimum(params.page_size, kBlockN) : kBlockN) {}

  /// Of key tile `tile`, or with pages of the lane's box of it. Boxes behind the sequence's end are where
  /// there is nothing: they are filled with zeros, and no page is looked up for them.
  TESSERA_DEVICE RowPlace operator()(int tile) const {
    if (!kPaged) return {first_row + tile * kBlockN, head, b, tile};
    const int key = tile * kBlockN + copying_lane() * box_rows;
    const int page = p.page_shift >= 0 ? key >> p.page_shift : key / p.page_size;
    if (tile < 0 || key >= len_kv) return {p.page_size, head, 0};
    return {key - page * p.page_size, head, pages[page]};
  }
};

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
    if (asks)
      copy_tile<kPanelsQk, kBlockM, kPanelColumns>(arguments.q, smem.q, smem.q_ring, count, queries,
                                                   kEvictFirst);
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
    copy_tile<kPanelsQk, kBlockM, kPanelColumns>(arguments.q, smem.q, smem.q_ring, count, queries,
                                                 kEvictFirst);
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
