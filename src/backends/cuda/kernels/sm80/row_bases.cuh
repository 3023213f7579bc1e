#pragma once

#include "common/platform.cuh"
#include "sm80/ptx.cuh"

// From scores to weights, and the rows' bases and sums, of rows that one warp has: scores[m][n] and o[m][n]
// are accumulators of m16n8 products. A row's bits are the same in every kernel that takes its keys 16 by 16
// in their order, and raises its bases by raise_bases() for 64 keys at once.
//
// row_base: what a row's exponents are taken against, in units of log2. It stays where it is until the
// weights grow too large; then it becomes the row's largest score, and sums and o are rescaled. Each row
// decides for itself, so that its bits do not depend on the rows beside it.

namespace tessera::kernels {

/// How far (in powers of two) a row's scores may rise above its base. Weights up to 2^8 lose nothing: f16
/// holds them, and the sums are fp32.
constexpr float kMaxRise = 8.0f;
constexpr float kMostWeights = 256.0f;  // 2^kMaxRise
/// A row's base before its first key: the weight of any score above it is infinite, which is too large.
constexpr float kLowestBase = -3.402823466e+38f;

/// Whether a row's base is off by rounding (above 2^24) so much that even its own score's weight, else 1, may
/// be small. Such a row is as one that came out as NaN.
TESSERA_DEVICE bool is_off_base(float base, float sum) { return sum < 0.5f && base != kLowestBase; }

/// The rows' largest scores of score tiles [first, end).
template <int kRowTiles, int kScoreTiles>
TESSERA_DEVICE void top_scores(int first, int end, const float (&scores)[kRowTiles][kScoreTiles][4],
                               float (&top)[kRowTiles][2]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      // Two chains of comparisons, which do not wait for each other.
      float even = scores[m][first][2 * r];
      float odd = scores[m][first][2 * r + 1];
      TESSERA_UNROLL
      for (int n = first + 1; n < end; ++n) {
        even = fmaxf(even, scores[m][n][2 * r]);
        odd = fmaxf(odd, scores[m][n][2 * r + 1]);
      }
      top[m][r] = fmaxf(even, odd);
    }
  }
}

/// The largest of the four lanes that hold a row.
template <int kRowTiles>
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
template <int kRowTiles, int kOutTiles>
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

/// Whether a row's base is too low for its largest score. Its bits depend on this alone in kernels of
/// batch-invariant problems, so that all of them have to ask it in this way.
TESSERA_DEVICE bool is_too_low(float base, float scale, float top) {
  return fmaf(top, scale, -base) > kMaxRise;
}

/// Raises bases that are too low for the scores' largest, before these are weighed: decided by scores, not by
/// weights' sums as in settle(), a row's bits don't depend on who else has keys of it.
template <int kRowTiles, int kScoreTiles, int kOutTiles>
TESSERA_DEVICE void raise_bases(float scale, const float (&scores)[kRowTiles][kScoreTiles][4],
                                float (&row_base)[kRowTiles][2], float (&row_sum)[kRowTiles][2],
                                float (&o)[kRowTiles][kOutTiles][4]) {
  float top[kRowTiles][2];
  top_scores(0, kScoreTiles, scores, top);
  bool any = false;
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i)
    any = any || is_too_low(row_base[i / 2][i % 2], scale, top[i / 2][i % 2]);
  if (!warp_any(any)) return;  // nearly always after the first keys
  bool raise[kRowTiles][2];
  join_lanes(top);
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i)
    raise[i / 2][i % 2] = is_too_low(row_base[i / 2][i % 2], scale, top[i / 2][i % 2]);
  raise_base(scale, top, raise, row_base, row_sum, o);
}

/// exp2(scores * scale - base) of 16 keys as fragments, and this lane's part of the rows' sums.
template <class T, int kRowTiles, int kScoreTiles>
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

template <int kRowTiles>
TESSERA_DEVICE void add_to_sums(const float (&part)[kRowTiles][2], float (&row_sum)[kRowTiles][2]) {
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) row_sum[i / 2][i % 2] += part[i / 2][i % 2];
}

/// Adds the sums of 16 keys' weights. Where they are too large, raises the base and weighs the keys again:
/// looking at sums, which are needed anyway, saves comparing every score.
template <class T, int kRowTiles, int kScoreTiles, int kOutTiles>
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
    top_scores(2 * k, kScoreTiles, scores, top);
    join_lanes(top);
    join_lanes(part);
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kRowTiles; ++i) raise[i / 2][i % 2] = part[i / 2][i % 2] > kMostWeights;
    raise_base(scale, top, raise, row_base, row_sum, o);
    weigh<T>(k, scale, scores, row_base, part, weights);
  }
  add_to_sums(part, row_sum);
}

/// What a segment's o is multiplied by, and the row's lse in units of log2. sum: the row's, whole.
TESSERA_DEVICE float close_row(float base, float sum, float v_scale, float& lse) {
  lse = sum == 0.0f ? -infinity() : base + log2f(sum);
  if (is_off_base(base, sum)) return float_of_bits(0x7fffffffu);
  return sum == 0.0f ? 0.0f : v_scale / sum;
}

/// From a segment's accumulators (common/attention_segments.cuh) to its results: o is normalised, times
/// v_scale, lse in units of log2. sum_of(m, r): a row's sum, whole. Bit m * 2 + r of the result: the row came
/// out as NaN or infinite in the thread's columns although its own keys may be finite.
template <int kRowTiles, int kOutTiles, class SumOf>
TESSERA_DEVICE unsigned close_rows(const float (&row_base)[kRowTiles][2], SumOf sum_of, float v_scale,
                                   float (&o)[kRowTiles][kOutTiles][4], float (&lse)[kRowTiles][2]) {
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float factor = close_row(row_base[m][r], sum_of(m, r), v_scale, lse[m][r]);
      float probe = 0.0f;
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        TESSERA_UNROLL
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          o[m][n][e] *= factor;
          probe += o[m][n][e] * 0.0f;
        }
      }
      if (probe != probe) spoilt |= 1u << (m * 2 + r);
    }
  }
  return spoilt;
}

}  // namespace tessera::kernels
