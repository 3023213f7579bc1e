#pragma once

#include "common/score_terms.cuh"

// The tiles of queries that a call consists of, in the order in which blocks take them, and the keys that
// each sees.

namespace tessera::kernels {

/// Queries [row, row + block_m) of one head of a sequence, as far as they exist.
struct QueryTile {
  int b;
  int head;
  int kv_head;
  int row;
  Sequence sequence;

  TESSERA_DEVICE bool exists() const { return row < sequence.len_q; }
};

template <int kBlockM>
TESSERA_DEVICE int num_query_tiles(const AttentionParams& p) {
  const int heads = p.num_heads * p.batch;
  const int groups = (heads + p.heads_at_once - 1) / p.heads_at_once;
  return groups * p.heads_at_once * ((p.seq_len_q + kBlockM - 1) / kBlockM);
}

/// Tile `index` of num_query_tiles(). As in block_work of common/attention_block.cuh the tiles of
/// heads_at_once heads stand together, those of the last queries first: under a causal mask they are the
/// longest, and short ones are left for the end while the heads' keys and values stay in the cache.
template <int kBlockM>
TESSERA_DEVICE QueryTile query_tile(const AttentionParams& p, int index) {
  const int tiles_of_head = (p.seq_len_q + kBlockM - 1) / kBlockM;
  const int tiles_of_group = tiles_of_head * p.heads_at_once;
  const int group = index / tiles_of_group;
  const int in_group = index - group * tiles_of_group;
  const int tile = in_group / p.heads_at_once;
  const int head = group * p.heads_at_once + in_group - tile * p.heads_at_once;
  QueryTile t;
  t.b = minimum(head / p.num_heads, p.batch - 1);
  t.head = head - t.b * p.num_heads;
  t.kv_head = t.head / (p.num_heads / p.num_kv_heads);
  t.row = (tiles_of_head - 1 - tile) * kBlockM;
  t.sequence = load_sequence(p, t.b);
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
TESSERA_DEVICE int next_query_tile(const AttentionParams& p, int index) {
  const int heads = p.heads_at_once;
  const int tiles = heads * ((p.seq_len_q + kBlockM - 1) / kBlockM);  // of a group
  int begin = index - index % tiles;                                  // of the index's group
  for (int head = begin / tiles * heads; head < p.num_heads * p.batch; head = begin / tiles * heads) {
    const int row = maximum(index, begin) / heads * heads;
    int first = begin + tiles;
    for (int b = head / p.num_heads; b < p.batch && b * p.num_heads < head + heads; ++b) {
      const int in_row = maximum(b * p.num_heads - head, 0);
      const int next = row + in_row + (row + in_row <= index ? heads : 0);
      const int missing = tiles - (load_sequence(p, b).len_q + kBlockM - 1) / kBlockM * heads;
      first = minimum(first, maximum(next, begin + missing + in_row));
    }
    if (first < begin + tiles) return first;
    begin += tiles;
    if (p.num_heads % heads != 0) continue;  // else groups are of one sequence each
    const int groups = p.num_heads / heads;
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
  const int last_query = minimum(t.row + kBlockM, t.sequence.len_q) - 1;
  const int end = keys_of_query(p, t.sequence, last_query).end;
  const int begin = keys_of_query(p, t.sequence, t.row).begin / kBlockN;
  return {begin, maximum((end + kBlockN - 1) / kBlockN, begin + 1)};
}

}  // namespace tessera::kernels
