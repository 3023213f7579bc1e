#pragma once

#include "sm90/decode_traits.cuh"
#include "sm90/page_window.cuh"

// The warp that asks for copies of keys and values, in the order in which they are used.

namespace tessera::kernels {

/// Where a tile's keys are.
struct TilePlace {
  int key;  // first
  int kv_head;
  int b;      // unless paged
  int page;   // of this lane's box, if paged
  int pages;  // that the tile has keys in, if they are smaller than it
};

/// Coordinates of a panel in the map's first and third dimension.
template <class Panels>
TESSERA_DEVICE int column_of_panel(int panel) {
  return Panels::kAreWhole ? 0 : panel * Panels::kElements;
}
template <class Panels>
TESSERA_DEVICE int index_of_panel(int panel) {
  return Panels::kAreWhole ? panel : 0;
}

template <int kHeadDim>
TESSERA_DEVICE void copy_tile(const AttentionParams& p, const TensorMap& map, SharedStorage& smem, int n,
                              const TilePlace& place) {
  using Panels = DecodePanels<kHeadDim>;
  const int lane = thread_x() % 32;
  const unsigned to = slot_of(smem, n);
  const unsigned filled = shared_address(&smem.filled[n % kSlots]);
  if (!kPaged || p.page_size >= kBlockN) {
    if (lane != 0) return;
    wait_emptied(smem, n);
    mbarrier_arrive_expect_tx(filled, Panels::kCount * Panels::kBytes);
    TESSERA_UNROLL
    for (int panel = 0; panel < (Panels::kAreWhole ? 1 : Panels::kCount); ++panel) {
      cp_async_bulk_tensor_5d(to + panel * Panels::kBytes, &map, filled, column_of_panel<Panels>(panel),
                              kPaged ? place.key % p.page_size : place.key, 0, place.kv_head,
                              kPaged ? place.page : place.b);
    }
    return;
  }
  if (lane == 0) {
    wait_emptied(smem, n);
    mbarrier_arrive_expect_tx(filled, place.pages * Panels::kCount * p.page_size * Panels::kRowBytes);
  }
  sync_warp();
  // A lane for each box: page by page, or all pages of a panel.
  const int page = lane / Panels::kCount;
  const int panel = lane % Panels::kCount;
  if (page < place.pages) {
    cp_async_bulk_tensor_5d(to + panel * Panels::kBytes + page * p.page_size * Panels::kRowBytes, &map,
                            filled, column_of_panel<Panels>(panel), 0, index_of_panel<Panels>(panel),
                            place.kv_head, place.page);
  }
}

/// Calls use(tile) for the piece's tiles that compute() takes, which go through slots n and n + 1.
template <class Use>
TESSERA_DEVICE void for_visible_tiles(VisibleTiles& visible, const Piece& piece, int& n, Use use) {
  for (int tile = piece.tile_begin;; ++tile, n += 2) {
    tile = visible.next(tile, piece.tile_end);
    if (tile >= piece.tile_end) break;
    use(tile);
  }
}

/// Whether all keys but each sequence's last len_q, the lengths and the tables may be read before the kernels
/// before have ended.
TESSERA_DEVICE bool has_settled_keys(const AttentionParams& p) { return !kHidesTiles && p.settled_kv != 0; }

/// What the first warp does. Keys that the kernels before may write it copies after they have ended.
TESSERA_DEVICE void copy_tiles(const DecodeArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  const int lane = thread_x() % 32;
  const bool is_settled = has_settled_keys(p);
  int n = 0;
  for_each_visible_piece(p, arguments.parts, smem.part, [&](const Piece& piece) {
    const Sequence& s = piece.sequence;
    const auto wait_for_keys = [&](int tile) {
      if (is_settled && (tile + 1) * kBlockN > s.len_kv - s.len_q) wait_for_prior_kernels();
    };
    VisibleTiles visible(p, rows_of_piece(p, piece), kBlockN);
    TilePlace place = {0, piece.kv_head, p.cu_seqlens_kv != nullptr ? 0 : piece.b, 0, 0};
    if constexpr (kPaged) {
      const bool is_small = p.page_size < kBlockN;
      const auto page_of = [&](int key) {
        return p.page_shift >= 0 ? key >> p.page_shift : key / p.page_size;
      };
      if (s.len_kv == 0) {  // nothing to look up
        for_visible_tiles(visible, piece, n, [&](int) {
          if (lane != 0) return;
          wait_emptied(smem, n);
          mbarrier_arrive(shared_address(&smem.filled[n % kSlots]));
          wait_emptied(smem, n + 1);
          mbarrier_arrive(shared_address(&smem.filled[(n + 1) % kSlots]));
        });
        return;
      }
      PageWindow window(p, piece.b, s.len_kv, page_of(piece.tile_begin * kBlockN));
      for_visible_tiles(visible, piece, n, [&](int tile) {
        wait_for_keys(tile);
        place.key = tile * kBlockN;
        const int first_page = page_of(place.key);
        if (kHidesTiles) window.skip_to(first_page);
        place.pages =
            is_small ? maximum(page_of(minimum(place.key + kBlockN, s.len_kv) - 1) - first_page + 1, 0) : 1;
        place.page =
            window.at(first_page, first_page + (is_small ? lane / DecodePanels<kHeadDimQk>::kCount : 0));
        copy_tile<kHeadDimQk>(p, arguments.k, smem, n, place);
        if (DecodePanels<kHeadDimV>::kCount != DecodePanels<kHeadDimQk>::kCount)
          place.page =
              window.at(first_page, first_page + (is_small ? lane / DecodePanels<kHeadDimV>::kCount : 0));
        copy_tile<kHeadDimV>(p, arguments.v, smem, n + 1, place);
      });
    } else {
      if (!kHidesTiles && lane != 0) return;
      for_visible_tiles(visible, piece, n, [&](int tile) {
        wait_for_keys(tile);
        place.key = static_cast<int>(s.kv_begin) + tile * kBlockN;
        copy_tile<kHeadDimQk>(p, arguments.k, smem, n, place);
        copy_tile<kHeadDimV>(p, arguments.v, smem, n + 1, place);
      });
    }
  });
}

template <int kHeadDim>
TESSERA_DEVICE void prefetch_tile(const TensorMap& map, int key, const Piece& piece) {
  using Panels = DecodePanels<kHeadDim>;
  TESSERA_UNROLL
  for (int panel = 0; panel < (Panels::kAreWhole ? 1 : Panels::kCount); ++panel) {
    cp_async_bulk_prefetch_tensor_5d(&map, column_of_panel<Panels>(panel), key, 0, piece.kv_head, piece.b);
  }
}

/// Brings the first tiles of a block into the L2 cache: memory would stand still until the kernels before
/// have ended. What is prefetched is not read yet, so that a kernel before may still write it.
TESSERA_DEVICE void prefetch_tiles(const DecodeArguments& arguments, const Part& part) {
  const AttentionParams& p = arguments.params;
  int tiles = kSlots / 2;
  for_each_piece(p, arguments.parts, part, [&](const Piece& piece) {
    for (int tile = piece.tile_begin; tile < piece.tile_end && tiles > 0; ++tile, --tiles) {
      prefetch_tile<kHeadDimQk>(arguments.k, tile * kBlockN, piece);
      prefetch_tile<kHeadDimV>(arguments.v, tile * kBlockN, piece);
    }
  });
}

}  // namespace tessera::kernels
