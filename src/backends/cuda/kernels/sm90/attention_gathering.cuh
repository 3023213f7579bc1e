#pragma once

#include "sm80/paged_rows.cuh"
#include "sm90/attention_copies.cuh"

// Keys and values in pages that no box of the copy engine takes, or only a few rows of: warps copy them row
// by row, 16 bytes a lane, into the same panels. A tile's barrier counts the threads whose copies are done;
// those who multiply make them known to the tensor cores. Where a thread has a mask to copy two warps gather
// beside it and one that asks for queries, else all four, whose first thread does that in between.

namespace tessera::kernels {

constexpr int kGatheringWarps = kCopiedMask != 0 ? 2 : 4;
constexpr int kFirstGatheringWarp = 4 - kGatheringWarps;

/// The thread that finds the tiles of queries and asks for their copies.
class QueryCopier {
 public:
  TESSERA_DEVICE QueryCopier(const WgmmaArguments& arguments, SharedStorage& smem)
      : arguments_(arguments), smem_(smem), finder_(arguments) {}

  /// Whether there is such a tile.
  TESSERA_DEVICE bool find(int count) {
    const bool exists = finder_.fill_slot(smem_, count);
    TileFinder::release_slot(smem_, count);
    return exists;
  }
  TESSERA_DEVICE void copy(int count) {
    const QueryTile& t = smem_.tiles[count % kTileSlots].tile;
    copy_query_tile(arguments_, smem_, count, place_of_queries(arguments_.params, t));
  }

 private:
  const WgmmaArguments& arguments_;
  SharedStorage& smem_;
  TileFinder finder_;
};

/// All of them, as a thread that does nothing else.
TESSERA_DEVICE void copy_queries(const WgmmaArguments& arguments, SharedStorage& smem) {
  QueryCopier queries(arguments, smem);
  for (int count = 0; queries.find(count); ++count) {
    queries.copy(count);
    smem.tile_ring.release(count);
  }
}

/// One of the warps that gather: its rows of each tile.
class Gatherer {
 public:
  TESSERA_DEVICE Gatherer(const AttentionParams& p, SharedStorage& smem)
      : p_(p), smem_(smem), first_row_((thread_x() / 32 - kFirstGatheringWarp) * kOwnRows) {
    TESSERA_UNROLL
    for (int n = 0; n < kPassesOfSwizzle; ++n) {
      const int row = first_row_ + n * kRowsAtOnce + row_of_pass();
      places_[n] = chunk_of_row(shared_row(0, row), chunk_of_lane());
    }
  }

  /// The tiles of a query tile's keys and values, from the last to the first. meanwhile(): once the first is
  /// on its way.
  template <class Meanwhile>
  TESSERA_DEVICE void gather(const TileSlot& slot, int count, Meanwhile meanwhile) {
    const QueryTile t = slot.tile;
    const KeyTiles tiles = slot.keys;
    sync_warp();
    smem_.tile_ring.release_by_warp(count);
    len_kv_ = t.sequence.len_kv;
    pages_ = p_.block_table + t.b * p_.block_table_stride;
    k_ = static_cast<const T*>(p_.k.data) + t.kv_head * p_.k.head_stride;
    v_ = static_cast<const T*>(p_.v.data) + t.kv_head * p_.v.head_stride;
    RowPlaces here = look_up(tiles.end - 1);
    RowPlaces next = look_up(tiles.end - 2);  // a tile ahead
    gather_k(here);
    meanwhile();
    for (int tile = tiles.end - 1; tile > tiles.begin; --tile) {
      const RowPlaces later = look_up(tile - 2);
      gather_k(next);
      gather_v(here);
      here = next;
      next = later;
    }
    gather_v(here);
  }

 private:
  static constexpr int kOwnRows = kBlockN / kGatheringWarps;
  static constexpr int kRowsOfLane = (kOwnRows + 31) / 32;
  static constexpr int kLanesOfRow = kPanelRowBytes / 16;
  static constexpr int kRowsAtOnce = 32 / kLanesOfRow;
  static constexpr int kPassesOfSwizzle = 8 / kRowsAtOnce;  // after which places are as before, 8 rows on
  static_assert(kOwnRows % 8 == 0, "a warp copies whole groups of the rows that are swizzled together");

  static TESSERA_DEVICE int chunk_of_lane() { return copying_lane() % kLanesOfRow; }
  static TESSERA_DEVICE int row_of_pass() { return copying_lane() / kLanesOfRow; }

  /// Of a tile's rows, where every 32nd that the warp has is, from its lane's on.
  struct RowPlaces {
    int page[kRowsOfLane];
    int token[kRowsOfLane];  // in the page
    int num_rows;            // that the warp has in front of the sequence's end
  };

  /// The first token of page 0 for what is behind the sequence's end or in front of it.
  TESSERA_DEVICE RowPlaces look_up(int tile) const {
    RowPlaces places;
    const int first_key = tile * kBlockN + first_row_;
    places.num_rows = len_kv_ - first_key;
    TESSERA_UNROLL
    for (int n = 0; n < kRowsOfLane; ++n) {
      const int key = first_key + 32 * n + copying_lane();
      const bool is_there = tile >= 0 && key < len_kv_;
      const int index = is_there ? page_of_key(p_, key) : 0;
      places.page[n] = is_there ? pages_[index] : 0;
      places.token[n] = is_there ? key - index * p_.page_size : 0;
    }
    return places;
  }

  TESSERA_DEVICE void gather_k(const RowPlaces& places) {
    gather_tile<kHeadDimQk>(p_.k, k_, p_.head_dim_qk, places, smem_.k, smem_.k_ring, k_count_++);
  }
  TESSERA_DEVICE void gather_v(const RowPlaces& places) {
    gather_tile<kHeadDimV>(p_.v, v_, p_.head_dim_v, places, smem_.v, smem_.v_ring, v_count_++);
  }

  /// Asks for this warp's rows of a tile, zeros behind the sequence's end and above head_dim.
  template <int kColumns, int kBytes>
  TESSERA_DEVICE void gather_tile(const TensorArgument& x, const T* from, int head_dim,
                                  const RowPlaces& places, unsigned char (&buffers)[kStages][kBytes],
                                  RingBarriers<kStages>& ring, int count) {
    const T* row_of_lane[kRowsOfLane];
    TESSERA_UNROLL
    for (int n = 0; n < kRowsOfLane; ++n)
      row_of_lane[n] = from + places.page[n] * x.batch_stride + places.token[n] * x.seq_stride;
    const int first_column = chunk_of_lane() * 8;
    const int num_rows = places.num_rows - row_of_pass();
    const unsigned to = shared_address(buffers[count % kStages]);
    ring.wait_emptied(count);
    TESSERA_UNROLL
    for (int row = 0; row < kOwnRows; row += kRowsAtOnce) {
      const T* source = address_of_lane(row_of_lane[row / 32], row % 32 + row_of_pass()) + first_column;
      const unsigned target =
          to + places_[row / kRowsAtOnce % kPassesOfSwizzle] + row / 8 * (8 * kPanelRowBytes);
      TESSERA_UNROLL
      for (int column = 0; column < kColumns; column += kPanelColumns) {
        cp_async_16_of_line(target + column / kPanelColumns * kKvPanelBytes, source + column,
                            row < num_rows && first_column + column < head_dim);
      }
    }
    cp_async_mbarrier_arrive(shared_address(&ring.filled[count % kStages]));
  }

  const AttentionParams& p_;
  SharedStorage& smem_;
  int first_row_;                      // of the warp in a tile
  unsigned places_[kPassesOfSwizzle];  // in a panel, of what the lane copies in the first passes
  int len_kv_ = 0;
  const int* pages_ = nullptr;
  const T* k_ = nullptr;  // page 0 of the head
  const T* v_ = nullptr;
  int k_count_ = 0;
  int v_count_ = 0;
};

/// Gathers all tiles, as one of kGatheringWarps warps.
TESSERA_DEVICE void gather_tiles(const WgmmaArguments& arguments, SharedStorage& smem) {
  Gatherer gatherer(arguments.params, smem);
  QueryCopier queries(arguments, smem);
  // Asked each time, with a barrier behind: the compiler lets a thread of which it knows that it alone comes
  // to the next branch, too, run apart from its warp until a tile ends, which copies everything twice.
  const auto copies_queries = [] { return kFirstGatheringWarp == 0 && opaque(thread_x()) == 0; };
  if (copies_queries()) queries.find(0);
  sync_warp();
  for (int count = 0;; ++count) {
    smem.tile_ring.wait_filled(count);
    const TileSlot& slot = smem.tiles[count % kTileSlots];
    if (slot.index == kNoTile) return;
    if (copies_queries()) queries.copy(count);
    sync_warp();
    gatherer.gather(slot, count, [&] {
      if (copies_queries()) queries.find(count + 1);
      sync_warp();
    });
  }
}

/// Between the wait for a tile that may be gathered and its products.
TESSERA_DEVICE void fence_gathered() {
  if (kGathers) fence_proxy_async();
}

}  // namespace tessera::kernels
