#pragma once

#include "common/score_terms.cuh"

// The tiles of queries that a call consists of, in the order in which blocks take them, and the keys that
// each sees.

namespace tessera::kernels {

// Whether a tile's rows are (query, head) pairs of the heads that read one kv head, and each split of the
// keys has tiles of its own: for few queries, whose tiles would be mostly empty and too few.
#ifdef TESSERA_PACKS
constexpr bool kPacks = true;
#else
constexpr bool kPacks = false;
#endif

/// Queries from `row` on of one head of a sequence, or of all heads of a group from `head` on, as far as they
/// exist.
struct QueryTile {
  int b;
  int head;
  int kv_head;
  int row;
  int split;  // of the keys; -1: it lies behind the sequence's end
  Sequence sequence;

  TESSERA_DEVICE bool has_rows() const { return row < sequence.len_q; }
  TESSERA_DEVICE bool exists() const { return has_rows() && (!kPacks || split >= 0); }
};

/// A row of a tile.
struct TileRow {
  int i;  // its query
  int h;  // its head
  bool exists;
};

/// Queries of a tile.
template <int kBlockM>
TESSERA_DEVICE int tile_queries(const AttentionParams& p) {
  return kPacks ? kBlockM / p.pack_heads : kBlockM;
}
/// Tiles of the longest sequence's queries.
template <int kBlockM>
TESSERA_DEVICE int tiles_of_queries(const AttentionParams& p) {
  const int queries = tile_queries<kBlockM>(p);
  return (p.seq_len_q + queries - 1) / queries;
}

template <int kBlockM>
TESSERA_DEVICE TileRow row_of_tile(const AttentionParams& p, const QueryTile& t, int row) {
  if (!kPacks) return {t.row + row, t.head, t.row + row < t.sequence.len_q};
  const int query = row / p.pack_heads;
  const int i = t.row + query;
  return {i, t.head + row - query * p.pack_heads, query < tile_queries<kBlockM>(p) && i < t.sequence.len_q};
}

/// Where a row's partial results stand, or -1 if the keys aren't split.
TESSERA_DEVICE int64 partial_of_row(const AttentionParams& p, const QueryTile& t, const TileRow& row) {
  if (!kPacks || p.num_splits == 1) return -1;
  return split_row(p, t.split, t.b, row.h, row.i);
}

/// Keys that a query of the tile sees of its split.
TESSERA_DEVICE KeyRange keys_of_tile_query(const AttentionParams& p, const QueryTile& t, int i) {
  const KeyRange keys = keys_of_query(p, t.sequence, i);
  if (!kPacks) return keys;
  const KeyRange split = keys_of_split(p, t.sequence, t.split);
  return {maximum(keys.begin, split.begin), minimum(keys.end, split.end)};
}

template <int kBlockM>
TESSERA_DEVICE int num_query_tiles(const AttentionParams& p) {
  const int heads = (kPacks ? p.num_heads / p.pack_heads : p.num_heads) * p.batch;
  const int groups = (heads + p.heads_at_once - 1) / p.heads_at_once;
  return groups * p.heads_at_once * tiles_of_queries<kBlockM>(p) * (kPacks ? p.num_splits : 1);
}

/// Tile `index` of num_query_tiles(). As in block_work of common/attention_block.cuh the tiles of
/// heads_at_once heads stand together, those of the last queries first: under a causal mask they are the
/// longest, and short ones are left for the end while the heads' keys and values stay in the cache.
/// A tile's splits are neighbours.
template <int kBlockM>
TESSERA_DEVICE QueryTile query_tile(const AttentionParams& p, int index) {
  QueryTile t;
  t.split = 0;
  if (kPacks) {
    const int tile_of_all = index / p.num_splits;
    t.split = index - tile_of_all * p.num_splits;
    index = tile_of_all;
  }
  const int pack = kPacks ? p.pack_heads : 1;
  const int heads = p.num_heads / pack;  // of a sequence
  const int tiles_of_head = tiles_of_queries<kBlockM>(p);
  const int tiles_of_group = tiles_of_head * p.heads_at_once;
  const int group = index / tiles_of_group;
  const int in_group = index - group * tiles_of_group;
  const int tile = in_group / p.heads_at_once;
  const int head = group * p.heads_at_once + in_group - tile * p.heads_at_once;
  t.b = minimum(head / heads, p.batch - 1);
  t.head = (head - t.b * heads) * pack;
  t.kv_head = t.head / (p.num_heads / p.num_kv_heads);
  t.row = (tiles_of_head - 1 - tile) * tile_queries<kBlockM>(p);
  t.sequence = load_sequence(p, t.b);
  if (kPacks && t.split >= splits_of(p, t.sequence)) t.split = -1;
  if (t.head >= p.num_heads) t.sequence.len_q = 0;  // the last group is not whole
  return t;
}

/// The first sequence from b on that has queries, or p.batch. The lengths of several are on their way at
/// once.
TESSERA_DEVICE int next_with_queries(const AttentionParams& p, int b) {
  constexpr int kAtOnce = 4;
  for (; b < p.batch; b += kAtOnce) {
    bool has_queries[kAtOnce];
    TESSERA_UNROLL
    for (int n = 0; n < kAtOnce; ++n)
      has_queries[n] = load_sequence(p, minimum(b + n, p.batch - 1)).len_q > 0;
    TESSERA_UNROLL
    for (int n = 0; n < kAtOnce; ++n) {
      if (has_queries[n] && b + n < p.batch) return b + n;
    }
  }
  return p.batch;
}

/// The first tile that exists behind one that doesn't, or num_query_tiles(). Takes a pass over the sequences
/// between, in few registers: the thread that finds tiles has no more.
template <int kBlockM>
TESSERA_DEVICE int next_query_tile(const AttentionParams& p, const QueryTile& missing, int index) {
  const int splits = kPacks ? p.num_splits : 1;
  const int heads_of_sequence = kPacks ? p.num_heads / p.pack_heads : p.num_heads;
  const int queries = tile_queries<kBlockM>(p);
  const int heads = p.heads_at_once;
  const int tiles = heads * tiles_of_queries<kBlockM>(p);  // of a group
  index /= splits;
  if (kPacks && missing.has_rows()) return (index + 1) * splits;  // whose other splits lie there, too
  int begin = index - index % tiles;                              // of the index's group
  for (int head = begin / tiles * heads; head < heads_of_sequence * p.batch; head = begin / tiles * heads) {
    const int row = maximum(index, begin) / heads * heads;
    int first = begin + tiles;
    for (int b = head / heads_of_sequence; b < p.batch && b * heads_of_sequence < head + heads; ++b) {
      const int in_row = maximum(b * heads_of_sequence - head, 0);
      const int next = row + in_row + (row + in_row <= index ? heads : 0);
      const int missing = tiles - (load_sequence(p, b).len_q + queries - 1) / queries * heads;
      first = minimum(first, maximum(next, begin + missing + in_row));
    }
    if (first < begin + tiles) return first * splits;
    begin += tiles;
    if (heads_of_sequence % heads != 0) continue;  // else groups are of one sequence each
    const int groups = heads_of_sequence / heads;
    begin = maximum(begin, next_with_queries(p, begin / tiles / groups) * groups * tiles);
  }
  return num_query_tiles<kBlockM>(p);
}

/// Tiles of keys, counted from key 0: at least one, even if no query sees a key.
struct KeyTiles {
  int begin;
  int end;
};

template <int kBlockM, int kBlockN>
TESSERA_DEVICE KeyTiles key_tiles(const AttentionParams& p, const QueryTile& t) {
  const int last_query = minimum(t.row + tile_queries<kBlockM>(p), t.sequence.len_q) - 1;
  const int end = keys_of_tile_query(p, t, last_query).end;
  const int begin = keys_of_tile_query(p, t, t.row).begin / kBlockN;
  return {begin, maximum((end + kBlockN - 1) / kBlockN, begin + 1)};
}

}  // namespace tessera::kernels
