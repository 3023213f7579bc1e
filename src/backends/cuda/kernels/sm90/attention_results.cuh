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
    const int row = t.row + row_warp() * 16 + lane / 4 + 8 * r;
    const bool exists = row < t.sequence.len_q;
    T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, t.sequence, t.b, t.head, row) + column;
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
                               const float (&o)[kOwnColumns / 2]) {
  float factors[2];
  finish_softmax(p, slot, rows, factors);
  return write_rows(p, slot, factors, o);
}

}  // namespace tessera::kernels
