#pragma once

#include "common/tiled_block.cuh"

// From attention_tiled.cu's sums to o and lse, or to the partial results of a split.

namespace tessera::kernels {

/// Adds up what groups of threads have of the same sums, if there are such; the first has them then.
TESSERA_DEVICE void join_sums(const ThreadPlace& t, SharedStorage& shared, Sums& o) {
  if constexpr (kKeyGroups > 1) {
    float* const place = shared.floats + kLayout.keys_begin + t.sum_row * kHeadDimV + t.column;
    TESSERA_UNROLL_BY(1)
    for (int group = 1; group < kKeyGroups; ++group) {
      sync_threads();
      if (t.key_group == group) {
        for_sums(t, o, [&](float(&sums)[4], int i, int column) {
          store_floats(place + i * kHeadDimV + column, {sums[0], sums[1], sums[2], sums[3]});
        });
      }
      sync_threads();
      if (t.key_group == 0) {
        for_sums(t, o, [&](float(&sums)[4], int i, int column) {
          const Floats4 others = load_floats(place + i * kHeadDimV + column);
          TESSERA_UNROLL
          for (int e = 0; e < 4; ++e) sums[e] += others.element[e];
        });
      }
    }
  }
}

/// Where a split's results of a row are.
TESSERA_DEVICE int64 partial_of(const AttentionParams& p, const BlockWork& w, const RowIndex& index) {
  return static_cast<int64>(w.split) * p.batch * p.num_heads * p.seq_len_q +
         partial_row(p, w.b, index.h, index.i);
}

/// Leaves what the row's sums are multiplied by in shared memory, and writes its lse.
TESSERA_DEVICE void norm_row(const AttentionParams& p, const BlockWork& w, const SoftmaxState& row,
                             SharedStorage& shared) {
  if (!has_row()) return;
  float sum = row.sum;
  TESSERA_UNROLL
  for (int mask = 1; mask < kRowThreads; mask *= 2) sum += shuffle_xor(sum, mask);
  if (thread_x() % kRowThreads != 0) return;
  const int local = softmax_row();
  const RowIndex index = shared.rows[local].index;
  const RowNorm norm = row_norm(row.base, sum, sink_of_head(p, index.h));
  shared.factors[local] = norm.factor;
  shared.is_spoilt[local] = 0;
  if (w.row_begin + local >= w.num_rows) return;
  if (p.num_splits > 1) {
    p.lse_partial[partial_of(p, w, index)] = norm.lse;
  } else if (p.lse.data != nullptr) {
    p.lse.data[lse_offset(p, w.sequence, w.b, index.h, index.i)] = norm.lse;
  }
}

/// Writes 4 elements of a row from `column` on, as far as there are dims.
template <bool kIsAligned, class Element>
TESSERA_DEVICE void store_columns(Element* row, int column, int head_dim, const float (&values)[4]) {
  if constexpr (kIsAligned) {
    const Vector<Element, 4> all = {{from_float<Element>(values[0]), from_float<Element>(values[1]),
                                     from_float<Element>(values[2]), from_float<Element>(values[3])}};
    if (column < head_dim) *reinterpret_cast<Vector<Element, 4>*>(row + column) = all;
  } else {
    TESSERA_UNROLL
    for (int e = 0; e < 4; ++e) {
      if (column + e < head_dim) row[column + e] = from_float<Element>(values[e]);
    }
  }
}

/// Writes the rows, and marks those that came out as NaN or infinite, although their own keys may be finite:
/// a hidden key's value was not.
TESSERA_DEVICE void store_sums(const AttentionParams& p, const BlockWork& w, const ThreadPlace& t,
                               SharedStorage& shared, Sums& o) {
  if (t.key_group != 0) return;
  TESSERA_UNROLL
  for (int i = 0; i < kThreadRows; ++i) {
    const int local = t.sum_row + i;
    if (w.row_begin + local >= w.num_rows) break;
    const RowIndex index = shared.rows[local].index;
    const float factor = shared.factors[local];
    const bool is_partial = p.num_splits > 1;
    float* const partial = is_partial ? p.o_partial + partial_of(p, w, index) * p.head_dim_v : nullptr;
    T* const out = static_cast<T*>(p.o.data) + query_offset(p, p.o, w.sequence, w.b, index.h, index.i);
    float probe = 0.0f;  // stays 0
    TESSERA_UNROLL
    for (int c = 0; c < kColumnSteps; ++c) {
      if (!has_column(t, c)) break;
      float(&values)[4] = o[i][c];
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) {
        values[e] *= factor;
        probe = fmaf(values[e], 0.0f, probe);
      }
      const int column = t.column + c * kStepColumns;
      if (is_partial) {
        store_columns<kVector>(partial, column, p.head_dim_v, values);
      } else {
        store_columns<kVector>(out, column, p.head_dim_v, values);
      }
    }
    if (probe != 0.0f) shared.is_spoilt[local] = 1;
  }
}

/// Does the spoilt rows again by the plain loop, which never reads a hidden key's value.
TESSERA_DEVICE void redo_spoilt_rows(const AttentionParams& p, const BlockWork& w,
                                     const SharedStorage& shared) {
  TESSERA_UNROLL_BY(1)
  for (int local = thread_x() / kWarpSize; local < kBlockM; local += kTiledAttentionThreads / kWarpSize) {
    if (shared.is_spoilt[local] == 0) continue;
    const TileRow& row = shared.rows[local];
    redo_row<T, Kv>(p, w.sequence, w.b, row.index.h, row.index.i, row.keys.begin, row.keys.end, w.split);
  }
}

}  // namespace tessera::kernels
