#pragma once

#include "common/attention_segments.cuh"
#include "sm80/attention_block.cuh"

// The segments of a batch-invariant problem's rows in accumulators of m16n8 products (attention_block.cuh):
// which a block has, and how it joins them where it has all that its rows see.

namespace tessera::kernels {

/// Segments [begin, end) that have a block's key tiles, one without keys if there are none; a problem that
/// isn't batch-invariant is one.
struct BlockSegments {
  int begin = 0;
  int end = 1;
  int tiles = 0;  // of a segment

  TESSERA_DEVICE BlockSegments(const AttentionParams& p, int block_n, int tile_begin, int tile_end) {
    if (!kInvariant) return;
    tiles = p.keys_per_segment / block_n;
    begin = tile_begin / tiles;
    end = maximum((tile_end + tiles - 1) / tiles, begin + 1);
  }
  TESSERA_DEVICE int first_tile(int segment, int tile_begin) const {
    return kInvariant ? maximum(segment * tiles, tile_begin) : tile_begin;
  }
  TESSERA_DEVICE int last_tile(int segment, int tile_end) const {
    return kInvariant ? minimum((segment + 1) * tiles, tile_end) : tile_end;
  }
};

/// What a thread has of its rows' segments so far.
template <int kRowTiles, int kOutTiles>
struct JoinedRows {
  float4 o[kRowTiles][kOutTiles];
  JoinedRow rows[kRowTiles][2];
};

/// Joins a segment to those before it. o: the segment's rows, normalised; afterwards those of all, times
/// rows' sums. lse: of the segment, in units of log2.
template <int kRowTiles, int kOutTiles>
TESSERA_DEVICE void join_segment(JoinedRows<kRowTiles, kOutTiles>* before, bool is_first, bool is_last,
                                 const float (&lse)[kRowTiles][2], float (&o)[kRowTiles][kOutTiles][4],
                                 JoinedRow (&rows)[kRowTiles][2]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    float4 old[kOutTiles];  // all on their way before any is used
    TESSERA_UNROLL
    for (int n = 0; n < kOutTiles; ++n) old[n] = is_first ? float4{} : before->o[m][n];
    JoinFactors factors[2];
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      rows[m][r] = is_first ? JoinedRow{-infinity(), 0.0f} : before->rows[m][r];
      factors[r] = join_row(lse[m][r], rows[m][r]);
      if (!is_last) before->rows[m][r] = rows[m][r];
    }
    TESSERA_UNROLL
    for (int n = 0; n < kOutTiles; ++n) {
      o[m][n][0] = joined(factors[0], old[n].x, o[m][n][0]);
      o[m][n][1] = joined(factors[0], old[n].y, o[m][n][1]);
      o[m][n][2] = joined(factors[1], old[n].z, o[m][n][2]);
      o[m][n][3] = joined(factors[1], old[n].w, o[m][n][3]);
      if (!is_last) before->o[m][n] = {o[m][n][0], o[m][n][1], o[m][n][2], o[m][n][3]};
    }
  }
}

/// What a warp's rows are multiplied by when all their segments are joined. Writes lse where it is wanted, if
/// `writes`.
template <int kRowTiles>
TESSERA_DEVICE void norm_joined_rows(const AttentionParams& p, const BlockWork& w, int local_row, bool writes,
                                     const JoinedRow (&rows)[kRowTiles][2], float (&factors)[kRowTiles][2]) {
  const int lane = thread_x() % 32;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = w.row_begin + local_row + m * 16 + r * 8 + lane / 4;
      const RowIndex index = row_index(w, minimum(row, w.num_rows - 1));
      const RowNorm norm = joined_norm(rows[m][r], sink_of_head(p, index.h));
      factors[m][r] = norm.factor;
      if (row < w.num_rows && lane % 4 == 0 && writes && p.lse.data != nullptr)
        p.lse.data[lse_offset(p, w.sequence, w.b, index.h, index.i)] = norm.lse;
    }
  }
}

}  // namespace tessera::kernels
