#pragma once

#include "common/attention_segments.cuh"
#include "matrix/prefill_results.hip.h"

// What attention_prefill.hip does with the segments of a batch-invariant problem's keys
// (common/attention_segments.cuh).

namespace tessera::kernels {

/// A lane's rows of all segments so far, in scratch memory, as the registers are the tile loop's.
struct JoinedRows {
  JoinedRow rows[kColumnTiles];
  Floats<4> o[kColumnTiles][kDimTiles][kScores / 4];  // times the rows' sums
};

template <class Place>
using InScratch = __attribute__((address_space(5))) Place;

/// The same address, of which the compiler doesn't know what is there: it would else keep that in registers.
template <class Place>
TESSERA_DEVICE InScratch<Place>* in_scratch(Place* place) {
  return opaque((InScratch<Place>*)place);
}

/// What a workgroup computes at the end of each segment from what it knows all along: the compiler would
/// otherwise compute it before the tiles, and keep it in registers that are theirs.
struct SegmentEnd {
  int first_row;  // of the wave
  int lane_dim;   // of head_dim_v: the lane's first in a tile
  int dims;       // of head_dim_v, from that one on

  TESSERA_DEVICE SegmentEnd(const AttentionParams& p, int first_row_)
      : first_row(uniform(opaque(first_row_))),
        lane_dim(opaque(accumulator_row<kTile>(0))),
        dims(p.head_dim_v - lane_dim) {}

  /// Whether element i of tile d is a dim of the tensor's.
  TESSERA_DEVICE bool is_dim(int d, int i) const {
    return (!kPadded && kHeadDimV % kTile == 0) || d * kTile + accumulator_step<kTile>(i) < dims;
  }
};

/// From a segment's accumulators to its results: o is normalised, lse in units of log2. The result is that of
/// store_rows, and does not depend on rows beside one's own.
TESSERA_DEVICE unsigned close_segment(const AttentionParams& p, const BlockWork& w, const SegmentEnd& here,
                                      RowSums& rows, float (&lse)[kColumnTiles]) {
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    const float sum = sum_over_groups<kTile>(rows.sum[n]);
    lse[n] = sum == 0.0f ? -infinity() : rows.base[n] + log2f(sum);
    float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    if constexpr (kIsNarrow) factor *= value_unit(p, w);
    float probe = 0.0f;  // stays 0
    TESSERA_UNROLL
    for (int d = 0; d < kDimTiles; ++d) {
      rows.o[n][d] *= factor;
      TESSERA_UNROLL
      for (int i = 0; i < kScores; ++i)
        probe = here.is_dim(d, i) ? __builtin_fmaf(rows.o[n][d][i], 0.0f, probe) : probe;
    }
    if (probe != 0.0f || is_off_base(rows.base[n], sum)) spoilt |= 1u << n;
  }
  return opaque(join_found(spoilt));
}

/// Writes a segment's results, for attention_join.cu.
TESSERA_DEVICE void store_segment(const AttentionParams& p, const BlockWork& w, const SegmentEnd& here,
                                  int segment, unsigned spoilt, const float (&lse)[kColumnTiles],
                                  const RowSums& rows) {
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    const int row = here.first_row + n * kTile + operand_row<kTile>();
    if (row >= w.num_rows) continue;
    const RowIndex index = row_index(w, row);
    const int64 partial = partial_of_segment(p, segment, partial_row(p, w.b, index.h, index.i));
    if (lane_group<kTile>() == 0)
      p.lse_partial[partial] = (spoilt >> n & 1u) != 0 ? lse_of_spoilt_row() : lse[n];
    float* out = p.o_partial + partial * p.head_dim_v + here.lane_dim;
    TESSERA_UNROLL
    for (int d = 0; d < kDimTiles; ++d) {
      TESSERA_UNROLL
      for (int i = 0; i < kScores; ++i) {
        if (here.is_dim(d, i)) out[d * kTile + accumulator_step<kTile>(i)] = rows.o[n][d][i];
      }
    }
  }
}

/// Joins a segment to the workgroup's earlier ones.
TESSERA_DEVICE void join_segment(bool is_first, const float (&lse)[kColumnTiles], const RowSums& rows,
                                 JoinedRows& joined_rows) {
  InScratch<JoinedRows>* all = in_scratch(&joined_rows);
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    JoinedRow row = {-infinity(), 0.0f};
    if (!is_first) row = {all->rows[n].top, all->rows[n].sum};
    const JoinFactors factors = join_row(lse[n], row);
    all->rows[n].top = row.top;
    all->rows[n].sum = row.sum;
    const auto part_of = [&](int d, int i) {
      const Tile& o = rows.o[n][d];
      return Floats<4>{o[i], o[i + 1], o[i + 2], o[i + 3]};
    };
    if (is_first) {
      TESSERA_UNROLL
      for (int d = 0; d < kDimTiles; ++d) {
        TESSERA_UNROLL
        for (int i = 0; i < kScores; i += 4) all->o[n][d][i / 4] = part_of(d, i);
      }
      continue;
    }
    TESSERA_UNROLL
    for (int d = 0; d < kDimTiles; ++d) {
      TESSERA_UNROLL
      for (int i = 0; i < kScores; i += 4) {
        InScratch<Floats<4>>& place = all->o[n][d][i / 4];
        const Floats<4> segment = part_of(d, i);
        Floats<4> o = place;
        TESSERA_UNROLL
        for (int e = 0; e < 4; ++e) o[e] = joined(factors, o[e], segment[e]);
        place = o;
      }
      keep_order();  // of all tiles at once there would not be registers enough
    }
  }
}

/// Writes the rows when all their segments are joined. The result is that of store_rows: rows that came out
/// as NaN or infinite, as sums of finite segments may.
TESSERA_DEVICE unsigned store_joined_rows(const AttentionParams& p, const BlockWork& w,
                                          const SegmentEnd& here, JoinedRows& joined_rows) {
  const InScratch<JoinedRows>* all = in_scratch(&joined_rows);
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    const int row = here.first_row + n * kTile + operand_row<kTile>();
    const RowIndex index = row_index(w, minimum(row, w.num_rows - 1));
    const RowNorm norm = joined_norm({all->rows[n].top, all->rows[n].sum}, sink_of_head(p, index.h));
    Tile o[kDimTiles];
    float probe = 0.0f;  // stays 0
    TESSERA_UNROLL
    for (int d = 0; d < kDimTiles; ++d) {
      TESSERA_UNROLL
      for (int i = 0; i < kScores; ++i) {
        // Rounded as attention_join.cu does: words of operands have other bf16 where two are equally near.
        o[d][i] = to_float(from_float<T>(all->o[n][d][i / 4][i % 4] * norm.factor));
        probe = here.is_dim(d, i) ? __builtin_fmaf(o[d][i], 0.0f, probe) : probe;
      }
    }
    if (row >= w.num_rows) continue;
    if (probe != 0.0f) spoilt |= 1u << n;
    if (p.lse.data != nullptr && lane_group<kTile>() == 0)
      p.lse.data[lse_offset(p, w.sequence, w.b, index.h, index.i)] = norm.lse;
    T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, w.sequence, w.b, index.h, index.i);
    store_all_dims(p, out, o);
  }
  return spoilt;
}

/// Whether `value` holds in any thread of the workgroup. `word`: of LDS that nobody uses any more.
TESSERA_DEVICE bool block_any(bool value, unsigned& word) {
  sync_threads();
  if (thread_x() == 0) word = 0;
  sync_threads();
  if (warp_any(value)) word = 1;
  sync_threads();
  return word != 0;
}

}  // namespace tessera::kernels
