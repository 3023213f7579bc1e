#pragma once

#include "sm90/attention_arguments.h"
#include "sm90/attention_traits.cuh"

// The two threads of the first warpgroup that work: one finds out which tiles of queries the block computes,
// the other asks for copies in the order in which they are used.

namespace tessera::kernels {

/// Fills the ring of tile slots until there are no more tiles. Apart from the copies, which would wait for
/// the ticket and for the divisions.
TESSERA_DEVICE void find_tiles(const WgmmaArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  const int num_tiles = num_query_tiles<kBlockM>(p);
  const auto next = [&](int index) {
    return arguments.tickets == nullptr ? index + grid_x() : grid_x() + atomicAdd(arguments.tickets, 1);
  };
  int index = block_x();
  for (int count = 0;; ++count) {
    smem.tile_ring.wait_emptied(count);
    if (count > 0) index = next(index);
    TileSlot& slot = smem.tiles[count % kTileSlots];
    for (; index < num_tiles; index = next(index)) {
      slot.tile = query_tile<kBlockM>(p, index);
      if (slot.tile.exists()) break;
    }
    const bool exists = index < num_tiles;
    if (exists) slot.keys = key_tiles<kBlockM, kBlockN>(p, slot.tile);
    slot.index = exists ? index : kNoTile;
    mbarrier_arrive(shared_address(&smem.tile_ring.filled[count % kTileSlots]));
    if (!exists) return;
  }
}

/// Where a tile is in its tensor: the copies' coordinates.
struct RowPlace {
  int row;
  int head;
  int b;
};

/// Rows [place.row, place.row + kRows) of a head into panels of the ring's next buffer.
template <int kPanels, int kRows, int kBuffers>
TESSERA_DEVICE void copy_tile(const TensorMap& map, unsigned char (&buffers)[kBuffers][kPanels * kRows * 128],
                              RingBarriers<kBuffers>& ring, int count, const RowPlace& place,
                              unsigned long long cache_policy) {
  const int buffer = count % kBuffers;
  ring.wait_emptied(count);
  const unsigned to = shared_address(buffers[buffer]);
  const unsigned filled = shared_address(&ring.filled[buffer]);
  mbarrier_arrive_expect_tx(filled, kPanels * kRows * 128);
  TESSERA_UNROLL
  for (int panel = 0; panel < kPanels; ++panel) {
    cp_async_bulk_tensor_4d(to + panel * kRows * 128, &map, filled, panel * 64, place.row, place.head,
                            place.b, cache_policy);
  }
}

TESSERA_DEVICE void copy_tiles(const WgmmaArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  int k_count = 0;
  const auto copy_k = [&](RowPlace keys, int tile) {
    keys.row += tile * kBlockN;
    copy_tile<kPanelsQk, kBlockN>(arguments.k, smem.k, smem.k_ring, k_count++, keys, kEvictLast);
  };
  // Of the last tile of keys but `behind`.
  const auto copy_v = [&](RowPlace keys, int tile, int behind) {
    keys.row += tile * kBlockN;
    copy_tile<kPanelsV, kBlockN>(arguments.v, smem.v, smem.v_ring, k_count - 1 - behind, keys, kEvictLast);
  };
  for (int count = 0;; ++count) {
    smem.tile_ring.wait_filled(count);
    const TileSlot& slot = smem.tiles[count % kTileSlots];
    if (slot.index == kNoTile) return;
    const QueryTile& t = slot.tile;
    const RowPlace queries = {static_cast<int>(t.sequence.q_begin) + t.row, t.head,
                              p.cu_seqlens_q != nullptr ? 0 : t.b};
    const RowPlace keys = {static_cast<int>(t.sequence.kv_begin), t.kv_head,
                           p.cu_seqlens_kv != nullptr ? 0 : t.b};
    const KeyTiles tiles = slot.keys;
    smem.tile_ring.release(count);
    copy_tile<kPanelsQk, kBlockM>(arguments.q, smem.q, smem.q_ring, count, queries, kEvictFirst);
    copy_k(keys, tiles.end - 1);
    for (int tile = tiles.end - 1; tile > tiles.begin; --tile) {
      copy_k(keys, tile - 1);
      copy_v(keys, tile, 1);
    }
    copy_v(keys, tiles.begin, 0);
  }
}

}  // namespace tessera::kernels
