#pragma once

#include "sm80/row_bases.cuh"
#include "sm90/attention_traits.cuh"

// From a warpgroup's scores to weights. A thread's scores of a tile are accumulators of wgmma: scores[4 i + 2
// r + e] is of its row r (of two, 8 apart) and key 8 i + thread % 4 * 2 + e.

namespace tessera::kernels {

// A row's base: what its exponents are taken against, in units of log2. It stays where it is until the row's
// largest score is more than kMostRise above it; weights below 2^kMostRise lose nothing (f16 holds them, and
// sums are fp32), and o is seldom rescaled. Each row decides for itself, so that its bits don't depend on the
// rows beside it.
constexpr float kMostRise = kIsSplit ? 15.0f : 8.0f;
// Below a row's largest score when it is put there. e4m3 has 2^-9 to 448: weights rise to 2^8 and keep four
// bits down to 2^-6. Those that are split into two numbers of fp16 rise to 2^15, and have fp32's bits down to
// 2^-14.
constexpr float kBaseBelow = kIsE4M3 ? 5.0f : kIsSplit ? 14.0f : 0.0f;

struct Rows {
  float base[2];
  float sum[2];     // of this thread's keys
  float shrink[2];  // what o has to be multiplied with before the next values are added
  bool shrinks;     // whether that is not 1 in some row of the warp

  TESSERA_DEVICE void clear() {
    base[0] = base[1] = kLowestBase;
    sum[0] = sum[1] = 0.0f;
    shrinks = false;
  }
};

/// What the loop over a tile's keys has to know of it.
struct TileView {
  int first_query;  // of the warpgroup's rows
  int last_query;
  int len_kv;
  int shift;
  KeyTiles keys;
  int tile_query;  // of packed rows: QueryTile's row, and its split
  int split;
  float score_scale;  // TileSlot's

  /// Of the thread's row r of two.
  TESSERA_DEVICE int query_of_thread(const AttentionParams& p, int r) const {
    const int row = thread_x() % 128 / 32 * 16 + thread_x() % 32 / 4 + 8 * r;  // of the warpgroup
    return kPacks ? tile_query + (row_group() * kWarpgroupRows + row) / p.pack_heads : first_query + row;
  }

  TESSERA_DEVICE KeyRange keys_of_query_at(const AttentionParams& p, int i) const {
    return keys_of_tile_query(p, {0, 0, 0, 0, split, {0, 0, 0, len_kv, shift}}, i);
  }
};

TESSERA_DEVICE TileView view_of(const AttentionParams& p, const TileSlot& slot) {
  const QueryTile& t = slot.tile;
  const int first_row = row_group() * kWarpgroupRows;
  return {row_of_tile<kBlockM>(p, t, first_row).i,
          row_of_tile<kBlockM>(p, t, first_row + kWarpgroupRows - 1).i,
          t.sequence.len_kv,
          t.sequence.shift,
          slot.keys,
          t.row,
          t.split,
          kIsNarrow ? slot.score_scale : 1.0f};
}

/// The thread's row r of two.
TESSERA_DEVICE TileRow row_of_thread(const AttentionParams& p, const QueryTile& t, int r) {
  return row_of_tile<kBlockM>(p, t, row_warp() * kWgmmaWarpRows + thread_x() % 32 / 4 + 8 * r);
}

/// Hides keys that a row doesn't see, if there are any in the tile that starts at key_begin.
TESSERA_DEVICE void hide_keys(const AttentionParams& p, const TileView& t, int key_begin,
                              float (&scores)[kBlockN / 2]) {
  const bool hides_begin = key_begin < t.keys_of_query_at(p, t.last_query).begin;
  const bool hides_end = key_begin + kBlockN > t.keys_of_query_at(p, t.first_query).end;
  if (!hides_begin && !hides_end) return;
  const int first_key = key_begin + thread_x() % 4 * 2;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const KeyRange keys = t.keys_of_query_at(p, t.query_of_thread(p, r));
    // Relative to this thread's first key, so that the comparisons are with constants.
    const int begin = keys.begin - first_key;
    const int end = keys.end - first_key;
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 8; ++i) {
      TESSERA_UNROLL
      for (int e = 0; e < 2; ++e) {
        if (8 * i + e >= end) scores[4 * i + 2 * r + e] = -infinity();
      }
    }
    if (!hides_begin) continue;
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 8; ++i) {
      TESSERA_UNROLL
      for (int e = 0; e < 2; ++e) {
        if (8 * i + e < begin) scores[4 * i + 2 * r + e] = -infinity();
      }
    }
  }
}

/// The scale, if it is above 0; else scores times it, in place, and 1: the softmax compares scores before it
/// scales them.
TESSERA_DEVICE float positive_scale(float scale, float (&scores)[kBlockN / 2]) {
  if (scale > 0.0f) return scale;
  TESSERA_UNROLL
  for (int i = 0; i < kBlockN / 2; ++i) scores[i] *= scale;
  return 1.0f;
}

/// Whether scores may be finite and yet not in units of log2, as those of a mask's lowest numbers.
#ifdef TESSERA_MODIFIER
constexpr bool kMayBeLow = true;
#else
constexpr bool kMayBeLow = (kTerms & kTermAdditiveMask) != 0;
#endif

/// Raises such scores of the rows that have no larger ones, whose largest is top.
TESSERA_DEVICE void lift_lowest(float (&scores)[kBlockN / 2], float (&top)[2]) {
  const auto is_low = [](float score) { return score < kLowestTerm && score != -infinity(); };
  if (!warp_any(is_low(top[0]) || is_low(top[1]))) return;
  TESSERA_UNROLL
  for (int i = 0; i < kBlockN / 2; ++i) scores[i] = is_low(scores[i]) ? kLowestTerm : scores[i];
  for (int r = 0; r < 2; ++r) top[r] = is_low(top[r]) ? kLowestTerm : top[r];
}

/// Puts the base of rows where it is too low kBaseBelow under the largest score. scale: scores to units of
/// log2.
TESSERA_DEVICE void raise_bases(float scale, float (&scores)[kBlockN / 2], Rows& rows) {
  float top[2];
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    // Two chains of comparisons, which don't wait for each other.
    float even = scores[2 * r];
    float odd = scores[2 * r + 1];
    TESSERA_UNROLL
    for (int i = 1; i < kBlockN / 8; ++i) {
      even = fmaxf(even, scores[4 * i + 2 * r]);
      odd = fmaxf(odd, scores[4 * i + 2 * r + 1]);
    }
    top[r] = fmaxf(even, odd);
  }
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
  if constexpr (kMayBeLow) lift_lowest(scores, top);
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) top[r] *= scale;
  rows.shrinks = warp_any(top[0] > rows.base[0] + kMostRise || top[1] > rows.base[1] + kMostRise);
  if (rows.shrinks) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const bool rises = top[r] > rows.base[r] + kMostRise;
      const float base = top[r] - kBaseBelow;
      rows.shrink[r] = rises ? ex2(rows.base[r] - base) : 1.0f;
      rows.base[r] = rises ? base : rows.base[r];
      rows.sum[r] *= rows.shrink[r];
    }
  }
}

/// Whether some score of the warp may be too large for its row's base. The bits of numbers above 0 have these
/// numbers' order as whole numbers, of which three are compared at once; those of numbers below 0 are less
/// than all of them, those of NaN more. So this is for limits above 0: with others a row always may.
TESSERA_DEVICE bool may_rise(float scale, const float (&scores)[kBlockN / 2], const Rows& rows) {
  bool may = false;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const auto bits = [&](int i, int e) {
      return static_cast<int>(bits_of_float(scores[4 * i + 2 * r + e]));
    };
    int top = maximum(bits(0, 0), bits(0, 1));
    TESSERA_UNROLL
    for (int i = 1; i < kBlockN / 8; ++i) top = maximum(maximum(bits(i, 0), bits(i, 1)), top);
    const float limit = rows.base[r] + kMostRise;
    may =
        may || limit < 0.0f || float_of_bits(static_cast<unsigned>(top)) * scale > limit || top > 0x7f800000;
  }
  return warp_any(may);
}

/// Turns scores into weights, in place, and adds these to the rows' sums. is_first: the rows' first tile.
TESSERA_DEVICE void weigh(float scale, bool is_first, float (&scores)[kBlockN / 2], Rows& rows) {
  rows.shrinks = false;
  if (is_first || may_rise(scale, scores, rows)) raise_bases(scale, scores, rows);
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    float sums[2] = {rows.sum[r], 0.0f};
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 8; ++i) {
      TESSERA_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& score = scores[4 * i + 2 * r + e];
        score = ex2(fmaf(score, scale, -rows.base[r]));
        sums[e] += score;
      }
    }
    rows.sum[r] = sums[0] + sums[1];
  }
}

}  // namespace tessera::kernels
