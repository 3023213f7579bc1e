#pragma once

#include "sm80/mma_block.cuh"

// attention_mma.cu's softmax: from scores to weights, and the rows' bases and sums.

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

// row_base: what a row's exponents are taken against, in units of log2. It stays where it is until the
// weights grow too large; then it becomes the row's largest score, and sums and o are rescaled. Each row
// decides for itself, so that its bits do not depend on the rows beside it.

/// How far (in powers of two) a row's scores may rise above its base. Weights up to 2^8 lose nothing: f16
/// holds them, and the sums are fp32.
constexpr float kMaxRise = 8.0f;
constexpr float kMostWeights = 256.0f;  // 2^kMaxRise
/// A row's base before its first key: the weight of any score above it is infinite, which is too large.
constexpr float kLowestBase = -3.402823466e+38f;

/// The rows' largest scores from score tile `first` on.
TESSERA_DEVICE void top_scores(int first, const float (&scores)[kRowTiles][kScoreTiles][4],
                               float (&top)[kRowTiles][2]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      // Two chains of comparisons, which do not wait for each other.
      float even = scores[m][first][2 * r];
      float odd = scores[m][first][2 * r + 1];
      TESSERA_UNROLL
      for (int n = first + 1; n < kScoreTiles; ++n) {
        even = fmaxf(even, scores[m][n][2 * r]);
        odd = fmaxf(odd, scores[m][n][2 * r + 1]);
      }
      top[m][r] = fmaxf(even, odd);
    }
  }
}

/// The largest of the four lanes that hold a row.
TESSERA_DEVICE void join_lanes(float (&value)[kRowTiles][2]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      value[m][r] = fmaxf(value[m][r], __shfl_xor_sync(0xffffffffu, value[m][r], 1));
      value[m][r] = fmaxf(value[m][r], __shfl_xor_sync(0xffffffffu, value[m][r], 2));
    }
  }
}

/// Makes the largest score the base of the rows to raise.
TESSERA_DEVICE void raise_base(float scale, const float (&top)[kRowTiles][2],
                               const bool (&raise)[kRowTiles][2], float (&row_base)[kRowTiles][2],
                               float (&row_sum)[kRowTiles][2], float (&o)[kRowTiles][kOutTiles][4]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float base = raise[m][r] ? top[m][r] * scale : row_base[m][r];
      const float rescale = raise[m][r] ? ex2(row_base[m][r] - base) : 1.0f;
      row_base[m][r] = base;
      row_sum[m][r] *= rescale;
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        o[m][n][2 * r] *= rescale;
        o[m][n][2 * r + 1] *= rescale;
      }
    }
  }
}

/// For rows that warps share: decides by the scores, before there are weights to hand over.
TESSERA_DEVICE void raise_shared_base(float scale, const float (&scores)[kRowTiles][kScoreTiles][4],
                                      RowValues* row_values, float (&row_base)[kRowTiles][2],
                                      float (&row_sum)[kRowTiles][2], float (&o)[kRowTiles][kOutTiles][4]) {
  float top[kRowTiles][2];
  bool raise[kRowTiles][2];
  top_scores(0, scores, top);
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

/// exp2(scores * scale - base) of 16 keys as fragments, and this lane's part of the rows' sums.
TESSERA_DEVICE void weigh(int k, float scale, const float (&scores)[kRowTiles][kScoreTiles][4],
                          const float (&row_base)[kRowTiles][2], float (&part)[kRowTiles][2],
                          unsigned (&weights)[kRowTiles][4]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      float sums[2];
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float* s = &scores[m][2 * k + half][2 * r];
        const float low = ex2(fmaf(s[0], scale, -row_base[m][r]));
        const float high = ex2(fmaf(s[1], scale, -row_base[m][r]));
        sums[half] = low + high;
        weights[m][2 * half + r] = cvt_x2<T>(low, high);
      }
      part[m][r] = sums[0] + sums[1];
    }
  }
}

TESSERA_DEVICE void add_to_sums(const float (&part)[kRowTiles][2], float (&row_sum)[kRowTiles][2]) {
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) row_sum[i / 2][i % 2] += part[i / 2][i % 2];
}

/// Adds the sums of 16 keys' weights. Where they are too large, raises the base and weighs the keys again:
/// looking at sums, which are needed anyway, saves comparing every score.
TESSERA_DEVICE void settle(int k, float scale, const float (&scores)[kRowTiles][kScoreTiles][4],
                           float (&part)[kRowTiles][2], unsigned (&weights)[kRowTiles][4],
                           float (&row_base)[kRowTiles][2], float (&row_sum)[kRowTiles][2],
                           float (&o)[kRowTiles][kOutTiles][4]) {
  float most = part[0][0];
  TESSERA_UNROLL
  for (int i = 1; i < 2 * kRowTiles; ++i) most = fmaxf(most, part[i / 2][i % 2]);
  if (warp_any(most > kMostWeights)) {  // seldom after the first tile
    float top[kRowTiles][2];
    bool raise[kRowTiles][2];
    top_scores(2 * k, scores, top);
    join_lanes(top);
    join_lanes(part);
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kRowTiles; ++i) raise[i / 2][i % 2] = part[i / 2][i % 2] > kMostWeights;
    raise_base(scale, top, raise, row_base, row_sum, o);
    weigh(k, scale, scores, row_base, part, weights);
  }
  add_to_sums(part, row_sum);
}

}  // namespace tessera::kernels
