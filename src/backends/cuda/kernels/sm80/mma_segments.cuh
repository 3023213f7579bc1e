#pragma once

#include "sm80/joined_rows.cuh"
#include "sm80/mma_results.cuh"

// What attention_mma.cu does with the segments of a batch-invariant problem's keys.

namespace tessera::kernels {

using BlockRows = JoinedRows<kRowTiles, kOutTiles>;

/// From a segment's accumulators to its results: o is normalised, lse in units of log2. The result is that of
/// store_rows.
TESSERA_DEVICE unsigned close_segment(const AttentionParams& p, const BlockWork& w, RowValues* row_values,
                                      const float (&row_base)[kRowTiles][2],
                                      const float (&row_sum)[kRowTiles][2],
                                      float (&o)[kRowTiles][kOutTiles][4], float (&lse)[kRowTiles][2]) {
  float sums[kRowTiles][2];
  join_sums(row_values, row_sum, sums);
  const float v_scale = kIsNarrow ? scale_of_head(p, p.kv_scales.v, w.b, w.kv_head) : 1.0f;
  return share_spoilt(row_values, close_rows(
                                      row_base, [&](int m, int r) { return sums[m][r]; }, v_scale, o, lse));
}

/// Writes a segment's results, for attention_join.cu.
TESSERA_DEVICE void store_segment(const AttentionParams& p, BlockWork w, int segment, unsigned spoilt,
                                  const float (&lse)[kRowTiles][2],
                                  const float (&o)[kRowTiles][kOutTiles][4]) {
  w.split = segment;
  float ones[kRowTiles][2];
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) ones[i / 2][i % 2] = 1.0f;
  store_partial_rows(p, w, ones, o);
  const int lane = thread_x() % 32;
  spoilt = join_found(spoilt);
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int row = w.row_begin + warp_first_row() + i / 2 * 16 + i % 2 * 8 + lane / 4;
    if (row >= w.num_rows || lane % 4 != 0 || warp_column() != 0) continue;
    p.lse_partial[partial_of(p, w, row_index(w, row))] =
        (spoilt >> i & 1u) != 0 ? lse_of_spoilt_row() : lse[i / 2][i % 2];
  }
}

/// Joins a segment to the block's earlier ones; after the last writes the rows. The result is that of
/// store_rows: rows that came out as NaN or infinite, as sums of finite segments may.
TESSERA_DEVICE unsigned join_block_segment(const AttentionParams& p, const BlockWork& w,
                                           RowValues* row_values, BlockRows* before, bool is_first,
                                           bool is_last, const float (&lse)[kRowTiles][2],
                                           float (&o)[kRowTiles][kOutTiles][4], T* o_smem) {
  JoinedRow rows[kRowTiles][2];
  join_segment(before, is_first, is_last, lse, o, rows);
  if (!is_last) return 0;
  float factors[kRowTiles][2];
  norm_joined_rows(p, w, warp_first_row(), warp_column() == 0, rows, factors);
  return share_spoilt(row_values, write_rows(p, w, o_smem, factors, o));
}

}  // namespace tessera::kernels
