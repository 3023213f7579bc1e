#pragma once

#include "sm80/mma_block.cuh"
#include "sm80/row_bases.cuh"

// What the warps of attention_mma.cu that share their rows tell each other of them.

namespace tessera::kernels {

/// Joins a value a row with those of the other warps of the same rows. All lanes of a row hold the same
/// value.
template <class Join>
TESSERA_DEVICE void share_with_rows(RowValues* row_values, float (&value)[kRowTiles][2], Join join) {
  const int lane = thread_x() % 32;
  RowValues* own = row_values + warp_first_row() + lane / 4;
  sync_rows();
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    if (lane % 4 == 0) own[8 * i].of_column[warp_column()] = value[i / 2][i % 2];
  }
  sync_rows();
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    float joined = own[8 * i].of_column[0];
    TESSERA_UNROLL
    for (int c = 1; c < kWarpColumns; ++c) joined = join(joined, own[8 * i].of_column[c]);
    value[i / 2][i % 2] = joined;
  }
}

/// For rows that warps share: decides by the scores, before there are weights to hand over.
TESSERA_DEVICE void raise_shared_base(float scale, const float (&scores)[kRowTiles][kScoreTiles][4],
                                      RowValues* row_values, float (&row_base)[kRowTiles][2],
                                      float (&row_sum)[kRowTiles][2], float (&o)[kRowTiles][kOutTiles][4]) {
  float top[kRowTiles][2];
  bool raise[kRowTiles][2];
  top_scores(0, kScoreTiles, scores, top);
  bool any = false;
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i)
    any = any || fmaf(top[i / 2][i % 2], scale, -row_base[i / 2][i % 2]) > kMaxRise;
  if (!rows_any(any)) return;  // nearly always after the first tile
  join_lanes(top);
  share_with_rows(row_values, top, [](float a, float b) { return fmaxf(a, b); });
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i)
    raise[i / 2][i % 2] = fmaf(top[i / 2][i % 2], scale, -row_base[i / 2][i % 2]) > kMaxRise;
  raise_base(scale, top, raise, row_base, row_sum, o);
}

}  // namespace tessera::kernels
