#pragma once

#include "sm80/split_f32.cuh"
#include "sm90/attention_copies.cuh"
#include "sm90/attention_row_results.cuh"

// From a warpgroup's accumulators to o and lse of fp32, and which rows have lost bits that count.

namespace tessera::kernels {

/// What a tile of queries has met in its tiles of keys: a bound of what its results may have lost.
///
/// Scores: q and k lose up to 2^-36 of their scales in each number. With products of up to 2^30 and up to 256
/// of them that is 2^-12; times what turns products to units of log2, if that is below kMostScale, 2^-22: a
/// few units of what the exponential is off by.
/// Results: where some value is stored with fewer bits, up to 2^-36 v_scale times the sum of the weights;
/// weights below 2^-14 lose up to 2^-36 each, which is little beside the values of other keys only if no
/// key's are much larger than these.
struct TileLosses {
  float v_scale;  // the largest
  float v_least;  // the least of the rows' largest values
  bool v_loses;   // whether some value is stored with fewer bits
  bool is_beyond;

  TESSERA_DEVICE void clear() {
    v_scale = 0.0f;
    v_least = infinity();
    v_loses = is_beyond = false;
  }
  /// scale: from products to units of log2.
  TESSERA_DEVICE void add_scale(float scale) { is_beyond = is_beyond || !(fabsf(scale) < kMostScale); }
  TESSERA_DEVICE void add_values(const SplitTile& note) {
    v_scale = fmaxf(v_scale, note.scale);
    v_least = fminf(v_least, note.least);
    v_loses = v_loses || note.loses != 0;
  }
  /// How much of a row's sum of weights times values may be lost.
  TESSERA_DEVICE float of_sum(float weights, int num_keys) const {
    constexpr float kLost = 0x1p-36f;
    constexpr float kUneven = 1 << 8;
    const float largest = v_scale * (2 << kSplitTop);  // as large as no value
    const float of_values = v_loses ? weights * v_scale : 0.0f;
    const float of_weights = v_least * kUneven < largest ? static_cast<float>(num_keys) * largest : 0.0f;
    return kLost * (of_values + of_weights);
  }
  TESSERA_DEVICE bool may_lose() const { return of_sum(1.0f, 1) > 0.0f; }
};

/// NaN for rows some of whose results may be off by more than a few units in the last place.
TESSERA_DEVICE void spoil_lossy_rows(const AttentionParams& p, const TileLosses& losses, int num_keys,
                                     const Rows& rows, const float (&o)[kHeadDimV / 2], float (&factors)[2]) {
  constexpr float kFaithful = 1 << 23;  // a result beside its loss
  if (!losses.is_beyond && !losses.may_lose()) return;
  const int first_column = thread_x() % 4 * 2;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    float least = infinity();
    TESSERA_UNROLL
    for (int i = 0; i < kHeadDimV / 8; ++i) {
      TESSERA_UNROLL
      for (int e = 0; e < 2; ++e) {
        if (8 * i + e + first_column < p.head_dim_v) least = fminf(least, fabsf(o[4 * i + 2 * r + e]));
      }
    }
    float sum = rows.sum[r];
    TESSERA_UNROLL
    for (int mask = 1; mask < 4; mask *= 2) {
      least = fminf(least, __shfl_xor_sync(0xffffffffu, least, mask));
      sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    }
    const bool has_keys = rows.base[r] != kLowestBase;
    if (has_keys && (losses.is_beyond || !(least >= kFaithful * losses.of_sum(sum, num_keys))))
      factors[r] = float_of_bits(0x7fffffffu);
  }
}

/// Writes a tile's rows, times factors. Whether some value is NaN or infinite, in this thread's.
TESSERA_DEVICE bool write_rows(const AttentionParams& p, const TileSlot& slot, const float (&factors)[2],
                               const float (&o)[kHeadDimV / 2]) {
  const QueryTile& t = slot.tile;
  const int lane = thread_x() % 32;
  const int column = lane % 4 * 2;
  float probe = 0.0f;  // NaN once one of them is infinite or NaN
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = t.row + consumer_warp() * 16 + lane / 4 + 8 * r;
    if (row >= t.sequence.len_q) continue;
    float* out = static_cast<float*>(p.o.data) + query_offset(p, p.o, t.sequence, t.b, t.head, row) + column;
    TESSERA_UNROLL
    for (int i = 0; i < kHeadDimV / 8; ++i) {
      const float first = o[4 * i + 2 * r] * factors[r], second = o[4 * i + 2 * r + 1] * factors[r];
      probe = fmaf(first, 0.0f, fmaf(second, 0.0f, probe));
      if constexpr (kOPiece >= 8) {
        if (8 * i + column < p.head_dim_v)
          *reinterpret_cast<float2*>(out + 8 * i) = make_float2(first, second);
      } else {
        if (8 * i + column < p.head_dim_v) out[8 * i] = first;
        if (8 * i + column + 1 < p.head_dim_v) out[8 * i + 1] = second;
      }
    }
  }
  return probe != 0.0f;
}

/// Writes the finished rows of a tile. Whether some of this thread's have to be done again.
TESSERA_DEVICE bool store_rows(const AttentionParams& p, const TileSlot& slot, const Rows& rows,
                               const TileLosses& losses, const float (&o)[kHeadDimV / 2]) {
  float factors[2];
  finish_softmax(p, slot, rows, factors);
  spoil_lossy_rows(p, losses, slot.tile.sequence.len_kv, rows, o, factors);
  return write_rows(p, slot, factors, o);
}

}  // namespace tessera::kernels
