#pragma once

#include "common/attention_block.cuh"
#include "common/attention_segments.cuh"
#include "sm80/attention_terms.cuh"

// What the tiled attention kernels share: which of a warp's scores are hidden, and the rows that a hidden NaN
// has spoilt.
//
// With TESSERA_INVARIANT a row's bits may not depend on whether a tile that it shares with others holds a NaN
// that it doesn't see. So a block in which a row came out spoilt takes that segment of the keys a second
// time, with 0 in place of infinite values and NaN, and only rows that see such a value, or are spoilt still,
// are done by the plain loop, with all their keys (common/attention_segments.cuh).
//
// A warp's scores are accumulators of m16n8 products, scores[m][n][e]: the warp's rows m * 16 + lane / 4
// (e = 0, 1) and 8 further (e = 2, 3), keys n * 8 + lane % 4 * 2 + e % 2 of the tile.

namespace tessera::kernels {

constexpr int kMostPasses = kInvariant ? 2 : 1;

/// The warp's first row in the block if each warp has rows of its own.
template <int kRowTiles>
TESSERA_DEVICE int own_first_row() {
  return thread_x() / 32 * (16 * kRowTiles);
}

/// Hides what each row does not see. row_keys: the block's rows' key ranges, in shared memory to keep
/// registers free. local_row: the warp's first row in the block.
template <int kRowTiles, int kScoreTiles>
TESSERA_DEVICE void hide_keys(const KeyRange* row_keys, int key_begin,
                              float (&scores)[kRowTiles][kScoreTiles][4],
                              int local_row = own_first_row<kRowTiles>()) {
  const int lane = thread_x() % 32;
  const int first_row = local_row + lane / 4;
  const int first_key = key_begin + lane % 4 * 2;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const KeyRange keys = row_keys[first_row + m * 16 + r * 8];
      // Relative to this thread's first key, so that the comparisons are with constants.
      const int begin = keys.begin - first_key;
      const int end = keys.end - first_key;
      TESSERA_UNROLL
      for (int n = 0; n < kScoreTiles; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int j = n * 8 + e;
          if (j < begin || j >= end) scores[m][n][2 * r + e] = -infinity();
        }
      }
    }
  }
}

/// What every lane of a row has found: each has looked at its own columns, and four lanes share a row.
TESSERA_DEVICE unsigned join_found(unsigned found) {
  found |= __shfl_xor_sync(0xffffffffu, found, 1);
  return found | __shfl_xor_sync(0xffffffffu, found, 2);
}

/// Calls use(row of the warp, bit m * 2 + r, row's query and head) for the warp's rows whose bit is set in
/// some lane's `chosen`. All lanes take part. local_row: as above.
template <int kRowTiles, class Use>
TESSERA_DEVICE void for_rows(const BlockWork& w, unsigned chosen, int local_row, Use use) {
  chosen = join_found(chosen);
  if (!warp_any(chosen != 0)) return;
  sync_warp();
  for (int local = 0; local < 16 * kRowTiles; ++local) {
    const unsigned bits = __shfl_sync(0xffffffffu, chosen, local % 8 * 4);
    const int row = w.row_begin + local_row + local;
    const int bit = local / 16 * 2 + local / 8 % 2;
    if ((bits >> bit & 1u) == 0 || row >= w.num_rows) continue;
    use(local, bit, row_index(w, row));
  }
}

/// Does the warp's rows in `spoilt` again by the plain loop, which never reads a hidden key's value.
/// row_keys: the block's rows' key ranges, in shared memory; local_row: as in hide_keys().
template <class T, int kRowTiles, class Kv = T>
TESSERA_DEVICE void redo_rows(const AttentionParams& p, const BlockWork& w, unsigned spoilt,
                              const KeyRange* row_keys, int local_row = own_first_row<kRowTiles>()) {
  for_rows<kRowTiles>(w, spoilt, local_row, [&](int local, int, const RowIndex& index) {
    const KeyRange keys = row_keys[local_row + local];
    RowState state;
    attend_row<T, Kv>(p, w.sequence, w.b, index.h, index.i, keys.begin, keys.end, state);
    store_row<T>(p, w.sequence, w.b, index.h, index.i, w.split, state);
  });
}

/// Of the warp's rows in `doubtful` those that see an infinite value or NaN among keys [begin, end).
template <class T, int kRowTiles, class Kv = T>
TESSERA_DEVICE unsigned find_spoilt_rows(const AttentionParams& p, const BlockWork& w, unsigned doubtful,
                                         int begin, int end, int local_row = own_first_row<kRowTiles>()) {
  unsigned spoilt = 0;
  for_rows<kRowTiles>(w, doubtful, local_row, [&](int local, int bit, const RowIndex& index) {
    const KeyRange keys = keys_of_query(p, w.sequence, index.i);
    const bool sees = adds_spoilt_value<T, Kv>(p, w.sequence, w.b, index.h, index.i,
                                               maximum(keys.begin, begin), minimum(keys.end, end));
    if (sees && thread_x() % 32 / 4 == local % 8) spoilt |= 1u << bit;
  });
  return spoilt;
}

}  // namespace tessera::kernels
