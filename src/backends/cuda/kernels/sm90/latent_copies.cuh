#pragma once

#include "sm90/latent_traits.cuh"
#include "sm90/page_window.cuh"

// The warp that asks for copies of keys, in the order in which they are used. In a cluster each block's asks
// for every other box, which goes to both blocks: a tile leaves the L2 cache once for 128 rows.

namespace tessera::kernels {

/// A box's first key, and its sequence or page.
struct BoxPlace {
  int key;
  int sequence;
};

/// Asks for this block's share of the panels of one half of tile n, `boxes` boxes of box_rows keys each, a
/// lane a box; place(box): where a box's keys are.
template <class Place>
TESSERA_DEVICE void copy_half(const LatentArguments& arguments, SharedStorage& smem, int n, int half,
                              int kv_head, int boxes, int box_rows, Place place) {
  const int lane = thread_x() % 32;
  const int blocks = arguments.blocks_of_cluster;
  const int panels = kHalfPanels + (half == half_of_last_panel(n) ? 1 : 0);
  const unsigned filled = shared_address(&smem.filled[n % 2][half]);
  if (lane == 0) {
    wait_emptied(smem, n, half);
    if (boxes > 0) {
      mbarrier_arrive_expect_tx(filled, panels * boxes * box_rows * 128);
    } else {
      mbarrier_arrive(filled);
    }
  }
  sync_warp();
  // Whose the first is alternates with the buffer's tiles, since the number may be odd.
  const int first = blocks == 1 ? 0 : (block_x() + n / 2) % kLatentPair;
  for (int begin = 0; begin < panels * boxes; begin += 32 * blocks) {
    const int i = begin + lane * blocks + first;
    const int box = i / panels;
    const int index = i % panels;
    const int panel = index < kHalfPanels ? half * kHalfPanels + index : kLatentPanels - 1;
    const auto [key, sequence] = place(minimum(box, maximum(boxes - 1, 0)));
    const unsigned to = shared_address(smem.tiles[n % 2].panels[panel]) + box * box_rows * 128;
    if (box >= boxes) continue;
    if (blocks == 1) {
      cp_async_bulk_tensor_5d(to, &arguments.k, filled, 0, key, panel, kv_head, sequence);
    } else {
      cp_async_bulk_tensor_5d_multicast(to, &arguments.k, filled, 0, key, panel, kv_head, sequence,
                                        (1 << kLatentPair) - 1);
    }
  }
}

/// What the copying warp does.
TESSERA_DEVICE void copy_tiles(const LatentArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  int n = 0;
  for_each_piece_of_group(arguments, smem.part, [&](const Piece& piece, const RowGroup&, GroupTiles& tiles) {
    const Sequence& s = piece.sequence;
    if constexpr (kPaged) {
      const bool is_small = p.page_size < kBlockN;
      const auto page_of = [&](int key) {
        return p.page_shift >= 0 ? key >> p.page_shift : key / p.page_size;
      };
      if (s.len_kv == 0) {  // nothing to look up
        for (; tiles.has_tile(); tiles.advance(), ++n) {
          for (int half = 0; half < 2; ++half) {
            copy_half(arguments, smem, n, half, piece.kv_head, 0, kBlockN, [](int) { return BoxPlace{}; });
          }
        }
        return;
      }
      PageWindow window(p, piece.b, s.len_kv, page_of(tiles.tile() * kBlockN));
      for (; tiles.has_tile(); tiles.advance(), ++n) {
        const int first_key = tiles.tile() * kBlockN;
        const int first_page = page_of(first_key);
        if (kHidesTiles) window.skip_to(first_page);
        const int keys = minimum(s.len_kv - first_key, kBlockN);
        const int boxes = keys <= 0 ? 0 : is_small ? page_of(first_key + keys - 1) - first_page + 1 : 1;
        for (int half = 0; half < 2; ++half) {
          copy_half(arguments, smem, n, half, piece.kv_head, boxes, minimum(p.page_size, kBlockN),
                    [&](int box) {
                      return BoxPlace{is_small ? 0 : first_key % p.page_size,
                                      window.at(first_page, first_page + box)};
                    });
        }
      }
    } else {
      const int b = p.cu_seqlens_kv != nullptr ? 0 : piece.b;
      for (; tiles.has_tile(); tiles.advance(), ++n) {
        for (int half = 0; half < 2; ++half) {
          copy_half(arguments, smem, n, half, piece.kv_head, 1, kBlockN, [&](int) {
            return BoxPlace{static_cast<int>(s.kv_begin) + tiles.tile() * kBlockN, b};
          });
        }
      }
    }
  });
}

}  // namespace tessera::kernels
