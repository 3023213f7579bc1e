#pragma once

#include "sm90/attention_row_results.cuh"

// From a warpgroup's accumulators to o of 16 bits.

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
                               const float (&o)[kOwnColumns / 2]) {
  const QueryTile& t = slot.tile;
  const int lane = thread_x() % 32;
  constexpr bool kByPairs = kOPiece < 8;  // as the lanes have them
  const int column = first_own_column() + lane % 4 * (kByPairs ? 2 : 8);
  unsigned probe = 0;  // stays zeros of either sign
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const TileRow row = row_of_thread(p, t, r);
    T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, t.sequence, t.b, row.h, row.i) + column;
    TESSERA_UNROLL
    for (int group = 0; group < kOwnColumns; group += 32) {
      unsigned words[4];
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = (group / 8 + i) * 4 + 2 * r;
        words[i] = group + 8 * i < kOwnColumns ? cvt_x2<T>(o[at] * factors[r], o[at + 1] * factors[r]) : 0;
        probe = fma_x2<T>(words[i], 0, probe);
      }
      if constexpr (kByPairs) {
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int d = group + 8 * i;
          if (row.exists && d + column < p.head_dim_v)
            store_pair(out + d, words[i], d + column + 1 < p.head_dim_v);
        }
      } else {
        transpose_between_four_lanes(words);
        if (row.exists) store_eight(out + group, words, group + column, p.head_dim_v);
      }
    }
  }
  return (probe & 0x7fff7fffu) != 0;
}

/// The same of a split's partial results, which are fp32.
TESSERA_DEVICE bool write_partial_rows(const AttentionParams& p, const TileSlot& slot,
                                       const float (&factors)[2], const float (&o)[kOwnColumns / 2]) {
  float probe = 0.0f;  // stays 0
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const TileRow row = row_of_thread(p, slot.tile, r);
    float* const out = p.o_partial + partial_of_row(p, slot.tile, row) * p.head_dim_v;
    TESSERA_UNROLL
    for (int i = 0; i < kOwnColumns / 8; ++i) {
      const int d = first_own_column() + 8 * i + thread_x() % 4 * 2;
      const float2 pair = {o[4 * i + 2 * r] * factors[r], o[4 * i + 2 * r + 1] * factors[r]};
      probe = fmaf(pair.y, 0.0f, fmaf(pair.x, 0.0f, probe));
      if (!row.exists || d >= p.head_dim_v) continue;
      if (p.head_dim_v % 2 == 0) {
        *reinterpret_cast<float2*>(out + d) = pair;
      } else {
        out[d] = pair.x;
        if (d + 1 < p.head_dim_v) out[d + 1] = pair.y;
      }
    }
  }
  return !(probe == 0.0f);
}

/// Writes the finished rows of a tile. Whether some value is NaN or infinite, in this thread's.
TESSERA_DEVICE bool store_rows(const AttentionParams& p, const TileSlot& slot, const Rows& rows,
                               const float (&o)[kOwnColumns / 2]) {
  float factors[2];
  finish_softmax(p, slot, rows, factors);
  if (kPacks && p.num_splits > 1) return write_partial_rows(p, slot, factors, o);
  return write_rows(p, slot, factors, o);
}

}  // namespace tessera::kernels
