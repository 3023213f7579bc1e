#pragma once

#include "common/attention_row.cuh"
#include "sm90/attention_softmax.cuh"

// What follows a row's softmax, whatever o's type is, and rows that are done again.

namespace tessera::kernels {

/// What o's rows have to be multiplied by: NaN, so that they are done again, where the softmax has lost bits.
/// Writes lse.
TESSERA_DEVICE void finish_softmax(const AttentionParams& p, const TileSlot& slot, const Rows& rows,
                                   float (&factors)[2]) {
  const QueryTile& t = slot.tile;
  const int lane = thread_x() % 32;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const TileRow row = row_of_thread(p, t, r);
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const float max = rows.base[r] * kLn2;
    float factor = row_norm(max, sum, nullptr).factor;
    const bool writes_lse = p.lse.data != nullptr || (kPacks && p.num_splits > 1);
    if (writes_lse || p.sinks != nullptr) {
      const RowNorm norm = row_norm(max, sum, sink_of_head(p, row.h));
      factor = norm.factor;
      if (writes_lse && row.exists && lane % 4 == 0 && first_own_column() == 0) {
        const int64 partial = partial_of_row(p, t, row);
        float* const lse = partial >= 0 ? p.lse_partial + partial
                                        : p.lse.data + lse_offset(p, t.sequence, t.b, row.h, row.i);
        *lse = norm.lse;
      }
    }
    // Bases above 2^24 are off by rounding so much that even the largest score's weight, else 1, may be
    // small: NaN, so that the row is done again.
    if (sum < 0.5f && rows.base[r] != kLowestBase) factor = float_of_bits(0x7fffffffu);
    // Those above 2^23 may let weights be more than e4m3 has.
    if (kIsE4M3 && !(fabsf(rows.base[r]) <= 0x1p23f) && rows.base[r] != kLowestBase)
      factor = float_of_bits(0x7fffffffu);
    if (kIsNarrow) factor *= slot.value_scale;
    factors[r] = factor;
  }
}

/// Does this warp's rows of the tile again whose results are NaN or infinite, by the plain loop, which never
/// reads a hidden key's value: that may be NaN, and 0 NaN is NaN.
TESSERA_DEVICE void redo_rows(const AttentionParams& p, const QueryTile& t) {
  TESSERA_UNROLL_BY(1)
  for (int local = 0; local < 16; ++local) {
    const TileRow row = row_of_tile<kBlockM>(p, t, row_warp() * 16 + local);
    if (!row.exists) break;
    const int64 partial = partial_of_row(p, t, row);
    const T* o = static_cast<const T*>(p.o.data) + query_offset(p, p.o, t.sequence, t.b, row.h, row.i);
    bool spoilt = false;
    TESSERA_UNROLL_BY(1)
    for (int d = thread_x() % 32; d < p.head_dim_v; d += 32) {
      const float value = partial >= 0 ? p.o_partial[partial * p.head_dim_v + d] : to_float(o[d]);
      spoilt = spoilt || !(value - value == 0.0f);
    }
    if (!warp_any(spoilt)) continue;
    const KeyRange keys = keys_of_tile_query(p, t, row.i);
    RowStateOf<kHeadDimV> state;
    attend_row_inlined<Q, Kv, kTerms>(p, t.sequence, t.b, row.h, row.i, keys.begin, keys.end, state);
    store_row_at<T>(p, t.sequence, t.b, row.h, row.i, partial, sink_of_head(p, row.h), state);
  }
}

}  // namespace tessera::kernels
