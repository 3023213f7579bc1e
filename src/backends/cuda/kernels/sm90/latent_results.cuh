#pragma once

#include "common/attention_row.cuh"
#include "sm90/latent_traits.cuh"
#include "sm90/passed_weights.cuh"

// From the accumulators of a block's two warpgroups to o and lse, or to partial results.

namespace tessera::kernels {

/// A thread's two rows of a piece, 8 apart, of the 16 of its warp.
struct Rows {
  RowIndex index[2];
  bool exists[2];
  int packed[2];  // among the sequence's packed rows
  int keys_begin[2];
  int keys_end[2];
};

/// What a warpgroup has of its rows: o = 2^-base sum 2^s v over all tiles so far, sum = 2^-base sum 2^s over
/// the tiles that it multiplied with the queries itself (this thread's share).
struct RowSums {
  float base[2];
  float sum[2];
};

/// Writes the warpgroup's half of a piece's rows; whose results are NaN or infinite is noted for redo_rows.
TESSERA_DEVICE void store_rows(const AttentionParams& p, const Piece& piece, const Rows& rows,
                               SharedStorage& smem, const RowSums& state, int64 first_partial,
                               const float (&o)[kHalfV / 2]) {
  const int lane = thread_x() % 32;
  const int warp = warp_of_block() % 4;
  const int half = warp_of_block() / 4;
  float sums[2];
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (lane % 4 == 0) smem.sum[half][warp * 16 + lane / 4 + 8 * r] = sum;
  }
  meet_other_warpgroup();
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r)
    sums[r] = smem.sum[0][warp * 16 + lane / 4 + 8 * r] + smem.sum[1][warp * 16 + lane / 4 + 8 * r];
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const RowIndex index = rows.index[r];
    const float sum = sums[r];
    const float* sink = p.sinks != nullptr && piece.is_whole ? p.sinks + index.h : nullptr;
    const RowNorm norm = row_norm(state.base[r] * kLn2, sum, sink);
    const bool has_keys = state.base[r] != -infinity();
    const int64 partial = first_partial + rows.packed[r];
    const int column = half * kHalfV + lane % 4 * 2;
    float* out_partial = p.o_partial + partial * kHeadDimV + column;
    T* out =
        static_cast<T*>(p.o.data) + query_offset(p, p.o, piece.sequence, piece.b, index.h, index.i) + column;
    // A base above 2^24 is off by rounding so much that even its own score's weight, else 1, may be small.
    float probe = has_keys && sum < 0.5f ? infinity() * 0.0f : sum * 0.0f;
    TESSERA_UNROLL
    for (int i = 0; i < kHalfV / 8; ++i) {
      const float x = has_keys ? o[4 * i + 2 * r] * norm.factor : 0.0f;
      const float y = has_keys ? o[4 * i + 2 * r + 1] * norm.factor : 0.0f;
      probe += x * 0.0f + y * 0.0f;
      if (!rows.exists[r]) continue;
      if (piece.is_whole) {
        *reinterpret_cast<unsigned*>(out + 8 * i) = cvt_x2<T>(x, y);
      } else {
        *reinterpret_cast<float2*>(out_partial + 8 * i) = make_float2(x, y);
      }
    }
    if (rows.exists[r] && half == 0 && lane % 4 == 0) {
      if (!piece.is_whole) {
        p.lse_partial[partial] = norm.lse;
      } else if (p.lse.data != nullptr) {
        p.lse.data[lse_offset(p, piece.sequence, piece.b, index.h, index.i)] = norm.lse;
      }
    }
    probe += __shfl_xor_sync(0xffffffffu, probe, 1);
    probe += __shfl_xor_sync(0xffffffffu, probe, 2);
    if (lane % 4 == 0)
      smem.spoilt[half][warp * 16 + lane / 4 + 8 * r] = rows.exists[r] && probe != 0.0f ? 1 : 0;
  }
  meet_other_warpgroup();
}

/// Does rows of a piece again whose results are NaN or infinite, by the plain loop, which never reads a
/// hidden key's value: that may be NaN, and 0 NaN is NaN. A warp a row.
TESSERA_DEVICE void redo_rows(const AttentionParams& p, const Piece& piece, const RowGroup& group,
                              int tile_end, SharedStorage& smem, int64 first_partial) {
  const int pack = p.num_heads / p.num_kv_heads;
  for (int local = warp_of_block(); local < group.count; local += 8) {
    if ((smem.spoilt[0][local] | smem.spoilt[1][local]) == 0) continue;
    const int row = group.begin + local;
    const RowIndex index = packed_row_index(row, pack, piece.kv_head * pack);
    const KeyRange keys = keys_of_query(p, piece.sequence, index.i);
    const int begin = maximum(keys.begin, piece.tile_begin * kBlockN);
    const int end = minimum(keys.end, tile_end * kBlockN);
    RowStateOf<kHeadDimV> state;
    attend_row_inlined<T, T, TESSERA_TERMS>(p, piece.sequence, piece.b, index.h, index.i, begin, end, state);
    const float* sink = p.sinks != nullptr && piece.is_whole ? p.sinks + index.h : nullptr;
    store_row_at<T>(p, piece.sequence, piece.b, index.h, index.i, piece.is_whole ? -1 : first_partial + row,
                    sink, state);
  }
}

}  // namespace tessera::kernels
