#pragma once

#include "common/attention_segments.cuh"
#include "matrix/prefill_block.hip.h"

// From the accumulators of attention_prefill.hip to o and lse, or to the partial results of a split.

namespace tessera::kernels {

/// Where a split's results of a row are.
TESSERA_DEVICE int64 partial_of(const AttentionParams& p, const BlockWork& w, const RowIndex& index) {
  return static_cast<int64>(w.split) * p.batch * p.num_heads * p.seq_len_q +
         partial_row(p, w.b, index.h, index.i);
}

/// Writes dims [16 step, 16 step + 16) of a row of o, as far as they are below head_dim_v. values: the lane's
/// part, a tile's rows from 16 * half on.
TESSERA_DEVICE void store_dims(const AttentionParams& p, T* row, int step, const Tile& values, int half) {
#if defined(__GFX11__)
  // All 16 are in both groups after the exchange, which needs both: each writes half of them, or none.
  const Fragment all = operand_of<T, kTile>(values);
  const int first = lane_group<kTile>() * 8;
  constexpr int kRun = 8;
  constexpr int kRuns = 1;
  Word4 words[1];
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) words[0][i] = opaque(first == 0 ? all.words[i] : all.words[4 + i]);
#else
  // Elements that stand side by side in the row: 4 on CDNA, 8 on RDNA4.
  const Fragment own = operand_of<T, kTile>(values, half);
  constexpr int kRun = TESSERA_MFMA ? 4 : 8;
  constexpr int kRuns = Fragment::kElements / kRun;
  const int first = lane_group<kTile>() * kRun;
  Words<kRun* int{sizeof(T)} / 4> words[kRuns];
  TESSERA_UNROLL
  for (int i = 0; i < Fragment::kWords; ++i)
    words[i * kRuns / Fragment::kWords][i % (Fragment::kWords / kRuns)] = own.words[i];
#endif
  TESSERA_UNROLL
  for (int run = 0; run < kRuns; ++run) {
    const int dim = step * kOperandK + run * 8 + first;
    if (dim >= p.head_dim_v) continue;
    if constexpr (kVector) {
      *reinterpret_cast<decltype(&words[0])>(row + dim) = words[run];
    } else {
      TESSERA_UNROLL
      for (int e = 0; e < kRun; ++e) {
        if (dim + e >= p.head_dim_v) continue;
        row[dim + e] = element_of<T, kRun* int{sizeof(T)} / 4>(words[run], e);
      }
    }
  }
}

/// Writes a row of o.
TESSERA_DEVICE void store_all_dims(const AttentionParams& p, T* row, const Tile (&o)[kDimTiles]) {
  TESSERA_UNROLL
  for (int d = 0; d < kDimTiles; ++d) {
    TESSERA_UNROLL
    for (int half = 0; half < kStepsOfTile; ++half) store_dims(p, row, d * kStepsOfTile + half, o[d], half);
  }
}

/// What a row's products with values are multiplied by besides, where these were widened.
TESSERA_DEVICE float value_unit(const AttentionParams& p, const BlockWork& w) {
  return kWidenedUnit<Kv> * scale_of_head(p, p.kv_scales.v, w.b, w.kv_head);
}

/// Whether a row's base is above 2^24, off by rounding so much that even the largest score's weight, else 1,
/// is small.
TESSERA_DEVICE bool is_off_base(float base, float sum) { return sum < 0.5f && base != kLowestBase; }

/// Writes the normalised rows, or the partial results if the keys are split. Bit n of the result: row n of
/// the lane came out as NaN, infinite or without weights although its own keys may be finite (a hidden key's
/// value was not, or its scores are huge).
TESSERA_DEVICE unsigned store_rows(const AttentionParams& p, const BlockWork& w, int first_row,
                                   RowSums& rows) {
  const bool is_partial = p.num_splits > 1;
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    const float sum = sum_over_groups<kTile>(rows.sum[n]);
    const int row = first_row + n * kTile + operand_row<kTile>();
    const RowIndex index = row_index(w, minimum(row, w.num_rows - 1));
    const RowNorm norm = row_norm(rows.base[n] * kLn2, sum, sink_of_head(p, index.h));
    float factor = norm.factor;
    if constexpr (kIsNarrow) factor *= value_unit(p, w);
    float probe = 0.0f;  // stays 0
    TESSERA_UNROLL
    for (int d = 0; d < kDimTiles; ++d) {
      rows.o[n][d] *= factor;
      TESSERA_UNROLL
      for (int i = 0; i < kScores; ++i) {
        const float value = rows.o[n][d][i];
        const bool is_dim =
            !kPadded && kHeadDimV % kTile == 0 || d * kTile + accumulator_row<kTile>(i) < p.head_dim_v;
        probe = is_dim ? __builtin_fmaf(value, 0.0f, probe) : probe;
      }
    }
    if (row >= w.num_rows) continue;
    if (probe != 0.0f || is_off_base(rows.base[n], sum)) spoilt |= 1u << n;
    if (is_partial) {
      const int64 partial = partial_of(p, w, index);
      float* out = p.o_partial + partial * p.head_dim_v;
      if (lane_group<kTile>() == 0) p.lse_partial[partial] = norm.lse;
      TESSERA_UNROLL
      for (int d = 0; d < kDimTiles; ++d) {
        TESSERA_UNROLL
        for (int i = 0; i < kScores; ++i) {
          const int dim = d * kTile + accumulator_row<kTile>(i);
          if (dim < p.head_dim_v) out[dim] = rows.o[n][d][i];
        }
      }
    } else {
      T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, w.sequence, w.b, index.h, index.i);
      if (p.lse.data != nullptr && lane_group<kTile>() == 0)
        p.lse.data[lse_offset(p, w.sequence, w.b, index.h, index.i)] = norm.lse;
      store_all_dims(p, out, rows.o[n]);
    }
  }
  return spoilt;
}

/// Bits of rows that any of the lanes with a part of them has set.
TESSERA_DEVICE unsigned join_found(unsigned found) {
  for (int mask = kTile; mask < kWarpSize; mask *= 2) found |= shuffle_xor(found, mask);
  return found;
}

/// Marks a row, one of whose keys in the split is `key`.
TESSERA_DEVICE void mark_row(const AttentionParams& p, const BlockWork& w, const RowIndex& index, int key) {
  const int64 partial =
      partial_of_segment(p, key / p.keys_per_segment, partial_row(p, w.b, index.h, index.i));
  if (thread_x() % kWarpSize == 0) p.lse_partial[partial] = lse_of_spoilt_row();
}

/// Does the wave's spoilt rows again by the plain loop, which never reads a hidden key's value. `looks`: and
/// those of the others that see an infinity or NaN. Batch-invariant rows of a split
/// are marked, for attention_join.cu to do so.
TESSERA_DEVICE void redo_rows(const AttentionParams& p, const BlockWork& w, int first_row, unsigned spoilt,
                              bool looks, const KeyRange& share) {
  spoilt = join_found(spoilt);
  if (!looks && !warp_any(spoilt != 0)) return;
  __builtin_amdgcn_fence(__ATOMIC_RELEASE,
                         "workgroup");  // what other lanes have written of these rows comes first
  for (int r = 0; r < kWaveRows && first_row + r < w.num_rows; ++r) {
    const bool is_spoilt = (shuffle(spoilt, r % kTile) >> (r / kTile) & 1u) != 0;
    if (!warp_any(is_spoilt || looks)) continue;
    const RowIndex index = row_index(w, first_row + r);
    const KeyRange all = keys_of_query(p, w.sequence, index.i);
    const KeyRange keys = {maximum(all.begin, share.begin), minimum(all.end, share.end)};
    if (!warp_any(is_spoilt) &&
        !adds_spoilt_value<T, Kv>(p, w.sequence, w.b, index.h, index.i, keys.begin, keys.end))
      continue;
    if (kInvariant && p.num_splits > 1) {
      mark_row(p, w, index, keys.begin);
    } else {
      redo_row<T, Kv>(p, w.sequence, w.b, index.h, index.i, keys.begin, keys.end, w.split);
    }
  }
}

}  // namespace tessera::kernels
