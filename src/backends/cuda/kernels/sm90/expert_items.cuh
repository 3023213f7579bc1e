#pragma once

#include "common/expert_slots.cuh"

// How blocks that stay share out the products of a mixture of experts, without the host: by items, each a
// tile of one expert's slots by one of its rows of w.

namespace tessera::kernels {

/// The block's items: one of every grid_x(). Those of the same slots are neighbours, so that blocks at work
/// at the same time read the same rows of x.
class ExpertItems {
 public:
  /// w_tiles: of an expert's rows of w. slots: of a tile, at most.
  TESSERA_DEVICE ExpertItems(const RoutingParams& routing, int w_tiles, int slots)
      : routing_(routing),
        w_tiles_(w_tiles),
        slots_(slots),
        item_(block_x()),
        begin_(routing.offsets[0]),
        end_(routing.offsets[1]) {}

  TESSERA_DEVICE bool next() {
    const int tile = item_ / w_tiles_;
    w_tile_ = item_ - tile * w_tiles_;
    item_ += grid_x();
    for (;;) {
      const int tiles = (end_ - begin_ + slots_ - 1) / slots_;
      if (tile < tiles_before_ + tiles) break;
      if (expert_ + 1 == routing_.num_experts) return false;
      tiles_before_ += tiles;
      ++expert_;
      begin_ = end_;
      end_ = routing_.offsets[expert_ + 1];
    }
    first_ = begin_ + (tile - tiles_before_) * slots_;
    count_ = minimum(end_ - first_, slots_);
    return true;
  }
  TESSERA_DEVICE int expert() const { return expert_; }
  TESSERA_DEVICE int w_tile() const { return w_tile_; }
  TESSERA_DEVICE int count() const { return count_; }  ///< of slots
  /// Which of all slots slot i of the item is.
  TESSERA_DEVICE int slot(int i) const { return routing_.order[first_ + i]; }

 private:
  const RoutingParams& routing_;
  int w_tiles_, slots_, item_, begin_, end_;
  int expert_ = 0, tiles_before_ = 0, w_tile_ = 0, first_ = 0, count_ = 0;
};

}  // namespace tessera::kernels
