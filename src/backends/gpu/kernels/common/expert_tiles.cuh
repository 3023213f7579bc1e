#pragma once

#include "common/expert_slots.cuh"

// How a kernel whose blocks take tiles of slots finds those of its own, without the host: experts' slots
// stand together in routing.order, and each expert has as many tiles as its slots fill.

namespace tessera::kernels {

/// Slots order[begin], ... order[begin + count - 1] are `expert`'s; count 0: no tile is left.
struct ExpertTile {
  int expert;
  int begin;
  int count;
};

/// Tile number `tile` of up to `tile_slots` slots. All threads of the block must call it.
TESSERA_DEVICE ExpertTile find_expert_tile(const RoutingParams& r, int tile, int tile_slots) {
  TESSERA_SHARED(found, ExpertTile);
  if (thread_x() == 0) found.count = 0;
  sync_threads();
  if (thread_x() < kWarpSize) {
    // A lane counts the tiles of some experts, then those of the lanes before it.
    const int lane = thread_x();
    const int experts_of_lane = (r.num_experts + kWarpSize - 1) / kWarpSize;
    const int first = lane * experts_of_lane;
    const int last = minimum(first + experts_of_lane, r.num_experts);
    const auto tiles_of = [&](int expert) {
      return (r.offsets[expert + 1] - r.offsets[expert] + tile_slots - 1) / tile_slots;
    };
    int own = 0;
    for (int expert = first; expert < last; ++expert) own += tiles_of(expert);
    int end = own;
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int before = shuffle(end, maximum(lane - distance, 0));
      if (lane >= distance) end += before;
    }
    int left = tile - (end - own);
    if (left >= 0 && left < own) {
      int expert = first;
      for (; left >= tiles_of(expert); ++expert) left -= tiles_of(expert);
      found.expert = expert;
      found.begin = r.offsets[expert] + left * tile_slots;
      found.count = minimum(tile_slots, r.offsets[expert + 1] - found.begin);
    }
  }
  sync_threads();
  return found;
}

}  // namespace tessera::kernels
