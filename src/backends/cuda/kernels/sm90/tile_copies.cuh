#pragma once

#include "sm80/narrow_rows.cuh"
#include "sm90/attention_arguments.h"
#include "sm90/attention_modifier.cuh"
#include "sm90/ring_barriers.cuh"

// What the threads need that find tiles of queries and ask for copies: which tiles a block computes, and
// where their rows are.

namespace tessera::kernels {

/// Which tiles of queries the block computes.
class TileFinder {
 public:
  TESSERA_DEVICE explicit TileFinder(const WgmmaArguments& arguments)
      : arguments_(arguments), num_tiles_(num_query_tiles<kBlockM>(arguments.params)), index_(block_x()) {}

  /// Fills slot `count`, from 0 on. Whether there is such a tile. Others may read it after release_slot().
  template <class Storage>
  TESSERA_DEVICE bool fill_slot(Storage& smem, int count) {
    const AttentionParams& p = arguments_.params;
    smem.tile_ring.wait_emptied(count);
    if (count > 0) go_on();
    TileSlot& slot = smem.tiles[count % kTileSlots];
    for (; index_ < num_tiles_; go_on()) {
      slot.tile = query_tile<kBlockM>(p, index_);
      if (slot.tile.exists()) break;
      skip_missing_tiles(slot.tile);
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
  template <class Storage>
  TESSERA_DEVICE static void release_slot(Storage& smem, int count) {
    mbarrier_arrive(shared_address(&smem.tile_ring.filled[count % kTileSlots]));
  }

 private:
  /// Where lengths differ, thousands of tiles in a row may be missing: no block draws another of these.
  TESSERA_DEVICE void skip_missing_tiles(const QueryTile& tile) const {
    if (arguments_.tickets == nullptr) return;
    atomicMax(arguments_.tickets, next_query_tile<kBlockM>(arguments_.params, tile, index_) - grid_x());
  }
  TESSERA_DEVICE void go_on() {
    if (arguments_.tickets != nullptr) {
      index_ = grid_x() + atomicAdd(arguments_.tickets, 1);
      return;
    }
    // To and fro, so that who has had a longer tile has a shorter one next.
    index_ += 2 * (goes_back_ ? block_x() : grid_x() - 1 - block_x()) + 1;
    goes_back_ = !goes_back_;
  }

  const WgmmaArguments& arguments_;
  int num_tiles_;
  int index_;
  bool goes_back_ = false;
};

/// Fills the ring of tile slots until there are no more tiles. Apart from the copies, which would wait for
/// the ticket, for the divisions and for a modifier's bounds. By a thread, or with a modifier by a warp.
template <class Storage>
TESSERA_DEVICE void find_tiles(const WgmmaArguments& arguments, Storage& smem) {
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

/// Rows of a head into panels of the ring's next buffer: kRows from `place` on, kPanels from first_panel on.
/// With pages each lane of the warp copies the rows of one box, its own `place`, as many lanes as the tile
/// has boxes. filled_rows: of which copies come.
template <int kPanels, int kRows, int kElements, int kBuffers, int kBytes>
TESSERA_DEVICE void copy_tile(const TensorMap& map, unsigned char (&buffers)[kBuffers][kBytes],
                              RingBarriers<kBuffers>& ring, int count, const RowPlace& place,
                              unsigned long long cache_policy, int box_rows = kRows, int first_panel = 0,
                              int filled_rows = kRows) {
  static_assert(kPanels * kRows * 128 <= kBytes, "a tile does not fit its buffer");
  const int buffer = count % kBuffers;
  ring.wait_emptied(count);
  const int first_row = kPaged ? copying_lane() * box_rows : 0;
  const unsigned to = shared_address(buffers[buffer]) + first_row * 128;
  const unsigned filled = shared_address(&ring.filled[buffer]);
  if (first_row == 0) mbarrier_arrive_expect_tx(filled, kPanels * filled_rows * 128);
  if (first_row >= kRows) return;
  TESSERA_UNROLL
  for (int panel = 0; panel < kPanels; ++panel) {
    cp_async_bulk_tensor_4d(to + panel * kRows * 128, &map, filled, (first_panel + panel) * kElements,
                            place.row, place.head, place.b, cache_policy);
  }
}

/// Packed rows have a map of their own, in which heads come before tokens.
TESSERA_DEVICE RowPlace place_of_queries(const AttentionParams& p, const QueryTile& t) {
  const int token = static_cast<int>(t.sequence.q_begin) + t.row;
  const int b = p.cu_seqlens_q != nullptr ? 0 : t.b;
  return kPacks ? RowPlace{t.head, token, b} : RowPlace{token, t.head, b};
}

/// Asks for the next tile of queries.
template <class Storage>
TESSERA_DEVICE void copy_query_tile(const WgmmaArguments& arguments, Storage& smem, int count,
                                    const RowPlace& place) {
  const AttentionParams& p = arguments.params;
  const int rows = kPacks ? tile_queries<kBlockM>(p) * p.pack_heads : kBlockM;
  copy_tile<kPanelsQk, kBlockM, kPanelColumns>(arguments.q, smem.q, smem.q_ring, count, place, kEvictFirst,
                                               kBlockM, 0, rows);
}

/// Rows of a tile that no query comes to, where a tile isn't a multiple of the heads of a group: 0, so that
/// nothing in them looks like a NaN that has to be dealt with. By all threads, before the first copies.
template <class Storage>
TESSERA_DEVICE void clear_rows_without_queries(const AttentionParams& p, Storage& smem) {
  const int first_row = tile_queries<kBlockM>(p) * p.pack_heads;
  if (first_row == kBlockM) return;
  const int words = (kBlockM - first_row) * kPanelRowBytes / 16;  // of a panel
  for (int buffer = 0; buffer < kQBuffers; ++buffer) {
    for (int panel = 0; panel < kPanelsQk; ++panel) {
      auto* const rows =
          reinterpret_cast<uint4*>(smem.q[buffer] + panel * kQPanelBytes + first_row * kPanelRowBytes);
      for (int i = thread_x(); i < words; i += block_size()) rows[i] = make_uint4(0, 0, 0, 0);
    }
  }
  fence_proxy_async();
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

}  // namespace tessera::kernels
