#pragma once

#include "common/attention_constants.cuh"
#include "common/attention_row.cuh"

// Which rows a block of a tiled attention kernel computes.

namespace tessera::kernels {

/// Which (sequence, heads, rows, keys) this block computes.
struct BlockWork {
  Sequence sequence;
  int b;
  int split;
  int kv_head;
  int first_head;  // of the packed group, or the one head
  int row_begin;   // first packed row
  int num_rows;    // packed rows of the sequence
  int pack;
};

TESSERA_DEVICE RowIndex row_index(const BlockWork& w, int row) {
  return packed_row_index(row, w.pack, w.first_head);
}

/// The packed rows from `first` on, `count` at most, of which there is one.
TESSERA_DEVICE TileRows tile_rows(const BlockWork& w, int first, int count) {
  return packed_tile_rows(w.sequence, w.b, first, minimum(first + count, w.num_rows) - 1, w.pack,
                          w.first_head);
}

/// The rows of a block of block_m, of which there is one.
TESSERA_DEVICE TileRows rows_of_block(const BlockWork& w, int block_m) {
  return tile_rows(w, w.row_begin, block_m);
}

/// The keys of the block's split of those that its rows see, in segments if is_invariant.
TESSERA_DEVICE KeyRange share_of_block(const AttentionParams& p, const BlockWork& w, const TileRows& rows,
                                       int block_n, bool is_invariant) {
  return is_invariant ? keys_of_split(p, w.sequence, w.split) : visible_share(p, rows, block_n, w.split);
}

/// Grid: (row tiles * heads_at_once, groups of heads_at_once heads counted through all sequences, splits).
/// The last rows of a causal problem have the most keys: those of a group's heads start first, so that short
/// blocks are left for the end, and a group's keys and values stay in the cache meanwhile.
template <int kBlockM>
TESSERA_DEVICE BlockWork block_work(const AttentionParams& p) {
  BlockWork w;
  int tile = block_x();
  int head = block_y();
  int num_tiles = grid_x();
  if (p.heads_at_once > 1) {
    tile = block_x() / p.heads_at_once;
    head = head * p.heads_at_once + block_x() - tile * p.heads_at_once;
    num_tiles /= p.heads_at_once;
  }
  w.pack = p.pack_heads;
  const int head_blocks = w.pack == 1 ? p.num_heads : p.num_kv_heads;
  const int sequence = head / head_blocks;
  head -= sequence * head_blocks;
  const bool exists = p.batch_begin + sequence < p.batch;
  w.b = exists ? p.batch_begin + sequence : p.batch - 1;
  w.split = block_z();
  w.sequence = load_sequence(p, w.b);
  w.kv_head = w.pack == 1 ? head / (p.num_heads / p.num_kv_heads) : head;
  w.first_head = head * w.pack;
  w.num_rows = exists ? w.sequence.len_q * w.pack : 0;
  w.row_begin = (num_tiles - 1 - tile) * kBlockM;
  return w;
}

}  // namespace tessera::kernels
