#pragma once

#include "common/attention_row.cuh"
#include "sm90/attention_softmax.cuh"

// From a warpgroup's accumulators to o and lse.

namespace tessera::kernels {

/// A thread's words of four column tiles become its own tile's four words: lane q of four holds tile q's.
TESSERA_DEVICE void transpose_between_four_lanes(unsigned (&x)[4]) {
  const bool odd = (thread_x() & 1) != 0;
  const bool high = (thread_x() & 2) != 0;
  TESSERA_UNROLL
  for (int i = 0; i < 4; i += 2) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, odd ? x[i] : x[i + 1], 1);
    (odd ? x[i] : x[i + 1]) = other;
  }
  TESSERA_UNROLL
  for (int i = 0; i < 2; ++i) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, high ? x[i] : x[i + 2], 2);
    (high ? x[i] : x[i + 2]) = other;
  }
}

/// Writes two neighbours of a row of o, of which the second may be behind the row's end.
TESSERA_DEVICE void store_pair(T* to, unsigned pair, bool has_second) {
  if constexpr (kOPiece >= 4) {
    *reinterpret_cast<unsigned*>(to) = pair;
  } else {
    auto* const elements = reinterpret_cast<unsigned short*>(to);
    elements[0] = static_cast<unsigned short>(pair);
    if (has_second) elements[1] = static_cast<unsigned short>(pair >> 16);
  }
}

/// Writes eight, from `column` on, as far as there are so many.
TESSERA_DEVICE void store_eight(T* to, const unsigned (&words)[4], int column, int head_dim) {
  if constexpr (kOPiece == 16) {
    if (column < head_dim) *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    if (column < head_dim) *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    if (column + 4 < head_dim) *reinterpret_cast<uint2*>(to + 4) = make_uint2(words[2], words[3]);
  }
}

/// Writes a tile's rows, times factors. Whether some value is NaN or infinite, in this thread's.
TESSERA_DEVICE bool write_rows(const AttentionParams& p, const TileSlot& slot, const float (&factors)[2],
                               const float (&o)[kHeadDimV / 2]) {
  const QueryTile& t = slot.tile;
  const int lane = thread_x() % 32;
  constexpr bool kByPairs = kOPiece < 8;  // as the lanes have them
  const int column = lane % 4 * (kByPairs ? 2 : 8);
  unsigned probe = 0;  // stays zeros of either sign
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = t.row + consumer_warp() * 16 + lane / 4 + 8 * r;
    const bool exists = row < t.sequence.len_q;
    T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, t.sequence, t.b, t.head, row) + column;
    TESSERA_UNROLL
    for (int group = 0; group < kHeadDimV; group += 32) {
      unsigned words[4];
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = (group / 8 + i) * 4 + 2 * r;
        words[i] = group + 8 * i < kHeadDimV ? cvt_x2<T>(o[at] * factors[r], o[at + 1] * factors[r]) : 0;
        probe = fma_x2<T>(words[i], 0, probe);
      }
      if constexpr (kByPairs) {
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int d = group + 8 * i;
          if (exists && d + column < p.head_dim_v)
            store_pair(out + d, words[i], d + column + 1 < p.head_dim_v);
        }
      } else {
        transpose_between_four_lanes(words);
        if (exists) store_eight(out + group, words, group + column, p.head_dim_v);
      }
    }
  }
  return (probe & 0x7fff7fffu) != 0;
}

/// Writes the finished rows of a tile. Whether some value is NaN or infinite, in this thread's.
TESSERA_DEVICE bool store_rows(const AttentionParams& p, const TileSlot& slot, const Rows& rows,
                               const float (&o)[kHeadDimV / 2]) {
  const QueryTile& t = slot.tile;
  const int lane = thread_x() % 32;
  float factors[2];
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = t.row + consumer_warp() * 16 + lane / 4 + 8 * r;
    const bool exists = row < t.sequence.len_q;
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const float max = rows.base[r] * kLn2;
    float factor = row_norm(max, sum, nullptr).factor;
    if (p.lse.data != nullptr || p.sinks != nullptr) {
      const RowNorm norm = row_norm(max, sum, sink_of_head(p, t.head));
      factor = norm.factor;
      if (p.lse.data != nullptr && exists && lane % 4 == 0)
        p.lse.data[lse_offset(p, t.sequence, t.b, t.head, row)] = norm.lse;
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
  return write_rows(p, slot, factors, o);
}

/// Does this warp's rows of the tile again whose results are NaN or infinite, by the plain loop, which never
/// reads a hidden key's value: that may be NaN, and 0 NaN is NaN.
TESSERA_DEVICE void redo_rows(const AttentionParams& p, const QueryTile& t) {
  TESSERA_UNROLL_BY(1)
  for (int local = 0; local < 16; ++local) {
    const int row = t.row + consumer_warp() * 16 + local;
    if (row >= t.sequence.len_q) break;
    const T* o = static_cast<const T*>(p.o.data) + query_offset(p, p.o, t.sequence, t.b, t.head, row);
    bool spoilt = false;
    TESSERA_UNROLL_BY(1)
    for (int d = thread_x() % 32; d < p.head_dim_v; d += 32) {
      const float value = to_float(o[d]);
      spoilt = spoilt || !(value - value == 0.0f);
    }
    if (!warp_any(spoilt)) continue;
    const KeyRange keys = keys_of_query(p, t.sequence, row);
    RowStateOf<kHeadDimV> state;
    attend_row_inlined<Q, Kv, kTerms>(p, t.sequence, t.b, t.head, row, keys.begin, keys.end, state);
    store_row_at<T>(p, t.sequence, t.b, t.head, row, -1, sink_of_head(p, t.head), state);
  }
}

}  // namespace tessera::kernels
