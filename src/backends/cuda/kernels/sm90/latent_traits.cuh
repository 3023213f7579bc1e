#pragma once

#include "common/decode_parts.cuh"
#include "common/visible_tiles.cuh"
#include "sm90/attention_arguments.h"
#include "sm90/attention_latent_traits.h"
#include "sm90/decode_dims.cuh"
#include "sm90/ptx.cuh"

// What sm90/attention_latent.cu keeps in shared memory, and the rows of a block.

namespace tessera::kernels {

static_assert(kBlockN == kLatentTileKeys);
constexpr int kHalfV = kHeadDimV / 2;  // columns of o that a warpgroup has
constexpr int kHalfPanels = kHalfV / 64;
constexpr int kCopyRegisters = 72;
constexpr int kComputeRegisters = 216;
static_assert(kHeadDimQk == kLatentHeadDimQk && kHeadDimV == kLatentHeadDimV);

/// A tile of 64 keys: panels of 64 elements, rows of 128 bytes, swizzled by 128 bytes.
struct KeyTile {
  unsigned char panels[kLatentPanels][kLatentPanelBytes];
};

/// Tile n of a block, counted from 0 over all its pieces, goes through buffer n % 2 and is warpgroup n % 2's
/// to multiply with the queries. Its values' left half (panels 0 to 3) is warpgroup 0's, the right one
/// warpgroup 1's; panel 8 is of keys alone, and takes the tile's weights once the scores are there, for the
/// other warpgroup.
struct SharedStorage {
  unsigned char q[kLatentPanels][kLatentPanelBytes];
  KeyTile tiles[kLatentBuffers];
  float base[kLatentRows];     // of the last weights
  float sum[2][kLatentRows];   // of a warpgroup's weights
  int spoilt[2][kLatentRows];  // 1: the warpgroup's half of the row's result is NaN or infinite
  unsigned long long filled[kLatentBuffers][2];  // halves
  unsigned long long emptied[kLatentBuffers][2];
  Part part;
};
static_assert(sizeof(SharedStorage) <= kLatentSharedBytes, "the host asks for as much");

/// The same for all lanes, as the compiler can see; all of them have to ask.
TESSERA_DEVICE int warp_of_block() { return __shfl_sync(0xffffffffu, thread_x() / 32, 0); }

/// A thread has this row of the block's 64 and the one 8 further, in either warpgroup.
TESSERA_DEVICE int first_row_of_thread() { return warp_of_block() % 4 * 16 + thread_x() % 32 / 4; }

/// Of the panels that each half of a tile is copied with, panel 8 goes with those of the warpgroup that reads
/// the tile's weights there.
TESSERA_DEVICE int half_of_last_panel(int n) { return 1 - n % 2; }

TESSERA_DEVICE void wait_filled(SharedStorage& smem, int n, int half) {
  mbarrier_wait(shared_address(&smem.filled[n % 2][half]), n / 2 & 1);
}
TESSERA_DEVICE void wait_emptied(SharedStorage& smem, int n, int half) {
  mbarrier_wait(shared_address(&smem.emptied[n % 2][half]), (n / 2 & 1) ^ 1);
}
/// This warp has read its half of the tile, into which all blocks of the cluster write.
TESSERA_DEVICE void release(const LatentArguments& arguments, SharedStorage& smem, int n, int half) {
  const int lane = thread_x() % 32;
  if (lane < arguments.blocks_of_cluster)
    mbarrier_arrive_in_cluster(shared_address(&smem.emptied[n % 2][half]), lane);
}

/// The rows of a piece that this block has, of a sequence's packed ones.
struct RowGroup {
  int begin;
  int count;  // 0 or less: the sequence has none of them; begin + count - 1 is its last one then
};

/// That `groups` groups from `group` on have.
TESSERA_DEVICE RowGroup row_groups(const AttentionParams& p, const Sequence& s, int group, int groups) {
  const int begin = group * kLatentRows;
  return {begin, minimum(s.len_q * (p.num_heads / p.num_kv_heads) - begin, groups * kLatentRows)};
}

/// Past the last tile of a piece that some row of a group sees; the first is always taken, so that every row
/// has a result.
TESSERA_DEVICE int last_tile_of_group(const AttentionParams& p, const Piece& piece, const RowGroup& rows) {
  const int pack = p.num_heads / p.num_kv_heads;
  const int keys_end = keys_of_query(p, piece.sequence, (rows.begin + rows.count - 1) / pack).end;
  return maximum(minimum(piece.tile_end, (keys_end + kBlockN - 1) / kBlockN), piece.tile_begin + 1);
}

/// The tiles of a piece, below `end`, that some row of a group may see by a modifier's mask, or the first if
/// there are none. All lanes of a warp ask together; who copies tiles and who computes them get the same.
class GroupTiles {
 public:
  TESSERA_DEVICE GroupTiles(const AttentionParams& p, const Piece& piece, const RowGroup& rows, int end)
      : visible_(
            p,
            packed_tile_rows(piece.sequence, piece.b, rows.begin, rows.begin + rows.count - 1,
                             p.num_heads / p.num_kv_heads, piece.kv_head * (p.num_heads / p.num_kv_heads)),
            kBlockN),
        end_(end),
        tile_(visible_.next(piece.tile_begin, end)) {
    if (kHidesTiles && tile_ >= end) tile_ = piece.tile_begin;
    // A piece without tiles: what is behind the last key, since its first is another piece's.
    if (kHidesTiles && piece.tile_begin >= piece.tile_end) {
      tile_ = (piece.sequence.len_kv + kBlockN - 1) / kBlockN;
      end_ = tile_ + 1;
    }
    next_ = visible_.next(tile_ + 1, end_);
  }

  TESSERA_DEVICE bool has_tile() const { return tile_ < end_; }
  TESSERA_DEVICE bool has_two() const { return next_ < end_; }
  TESSERA_DEVICE int tile() const { return tile_; }
  TESSERA_DEVICE void advance() {
    tile_ = next_;
    next_ = visible_.next(next_ + 1, end_);
  }

  /// Past the last.
  TESSERA_DEVICE int end() const { return end_; }

 private:
  VisibleTiles visible_;
  int end_;
  int tile_;
  int next_;
};

/// Calls f(piece, rows, tiles) for the pieces of the block's part of which some block of the cluster has
/// rows, so that all of them take the same tiles; this one may have none.
template <class F>
TESSERA_DEVICE void for_each_piece_of_group(const LatentArguments& arguments, const Part& part, F f) {
  const AttentionParams& p = arguments.params;
  const int group = block_x() % arguments.row_groups;
  const int blocks = arguments.blocks_of_cluster;
  for_each_visible_piece(p, arguments.parts, part, [&](const Piece& piece) {
    const RowGroup of_cluster = row_groups(p, piece.sequence, group / blocks * blocks, blocks);
    if (of_cluster.count <= 0) return;
    GroupTiles tiles(p, piece, of_cluster, last_tile_of_group(p, piece, of_cluster));
    f(piece, row_groups(p, piece.sequence, group, 1), tiles);
  });
}

}  // namespace tessera::kernels
