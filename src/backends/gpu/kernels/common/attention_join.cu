// Joins the segments of a batch-invariant problem's rows that several blocks computed
// (common/attention_segments.cuh). A row that is marked as spoilt, or whose joined result isn't finite, is
// done by the plain loop instead.
//
// Grid: (groups of rows, 1, batch); a warp a row, which is a query of a head; lanes have four columns each.

#include "common/attention_segments.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

constexpr int kColumns = 4;          // of a lane
constexpr int kSegmentsAtOnce = 16;  // whose values are on their way together

/// Four neighbouring columns of a row.
struct Columns {
  float x[kColumns];
};

/// From column d on, without a branch, so that many are on their way together. Wide: there are four, aligned
/// to 16 bytes; else the last column stands for those that the row doesn't have.
template <bool kWide>
TESSERA_DEVICE Columns load_columns(const float* row, int d, int head_dim) {
  Columns c;
  if constexpr (kWide) {  // element by element: clang would copy a struct through scratch memory
    const auto* from = static_cast<const float*>(__builtin_assume_aligned(row + d, 16));
    TESSERA_UNROLL
    for (int e = 0; e < kColumns; ++e) c.x[e] = from[e];
  } else {
    TESSERA_UNROLL
    for (int e = 0; e < kColumns; ++e) c.x[e] = row[minimum(d + e, head_dim - 1)];
  }
  return c;
}

/// Columns from d on of row `row` of the segments, joined. A lane looks at a segment's logsumexp, for all.
/// False: the row is spoilt. Numbers of columns that the row doesn't have mean nothing.
template <bool kWide>
TESSERA_DEVICE bool join_columns(const AttentionParams& p, const SegmentRange& segments, int64 row, int d,
                                 Columns& sums, JoinedRow& joined_row) {
  const int lane = thread_x() % kWarpSize;
  const int first_column = minimum(d, (p.head_dim_v - 1) / kColumns * kColumns);
  const int64 rows = partial_of_segment(p, 1, 0);
  const float* lse_of = p.lse_partial + segments.begin * rows + row;
  const float* values_of = p.o_partial + (segments.begin * rows + row) * p.head_dim_v;
  const int64 stride = rows * p.head_dim_v;
  const int count = segments.end - segments.begin;
  joined_row = {-infinity(), 0.0f};
  sums = {};
  for (int first = 0; first < count; first += kWarpSize) {
    const float lse = first + lane < count ? lse_of[(first + lane) * rows] : -infinity();
    // The largest up to here of each lane's segment: what the sequence of single joins comes to.
    float top = lse;
    for (int step = 1; step < kWarpSize; step *= 2) {
      const float before = shuffle(top, maximum(lane - step, 0));
      if (lane >= step) top = maximum_or_nan(top, before);
    }
    top = maximum_or_nan(top, joined_row.top);
    if (warp_any(top != top)) return false;
    const float top_before = shuffle(top, maximum(lane - 1, 0));
    const JoinFactors own = join_factors(lane == 0 ? joined_row.top : top_before, lse);
    for (int part = 0; part < kWarpSize && first + part < count; part += kSegmentsAtOnce) {
      Columns values[kSegmentsAtOnce];
      TESSERA_UNROLL
      for (int n = 0; n < kSegmentsAtOnce; ++n) {  // after the last segment that one again, which counts 0
        const float* row_values = values_of + minimum(first + part + n, count - 1) * stride;
        values[n] = load_columns<kWide>(row_values, first_column, p.head_dim_v);
      }
      TESSERA_UNROLL
      for (int n = 0; n < kSegmentsAtOnce; ++n) {
        const JoinFactors f = {shuffle(own.keep, part + n), shuffle(own.add, part + n)};
        joined_row.sum = joined_sum(f, joined_row.sum);
        TESSERA_UNROLL
        for (int e = 0; e < kColumns; ++e) sums.x[e] = joined(f, sums.x[e], values[n].x[e]);
      }
    }
    joined_row.top = shuffle(top, kWarpSize - 1);
  }
  return true;
}

template <class T, class Kv>
TESSERA_DEVICE void attention_join(const AttentionParams& p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  const int index = block_x() * (block_size() / kWarpSize) + thread_x() / kWarpSize;
  const int i = index / p.num_heads;
  const int h = index - i * p.num_heads;
  const int b = p.batch_begin + block_z();
  const Sequence s = load_sequence(p, b);
  if (i >= s.len_q) return;
  const KeyRange keys = keys_of_query(p, s, i);
  const SegmentRange segments = segments_of(p, keys);
  const int64 row = partial_row(p, b, h, i);
  const float* sink = p.sinks != nullptr ? p.sinks + h : nullptr;
  T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, s, b, h, i);
  const bool is_wide = p.head_dim_v % kColumns == 0;
  for (int first = 0; first < p.head_dim_v; first += kWarpSize * kColumns) {
    const int d = first + thread_x() % kWarpSize * kColumns;
    Columns sums;
    JoinedRow joined_row;
    bool is_spoilt = is_wide ? !join_columns<true>(p, segments, row, d, sums, joined_row)
                             : !join_columns<false>(p, segments, row, d, sums, joined_row);
    const RowNorm norm = joined_norm(joined_row, sink);
    TESSERA_UNROLL
    for (int e = 0; e < kColumns; ++e) is_spoilt = is_spoilt || !is_finite_as<T>(sums.x[e] * norm.factor);
    if (warp_any(is_spoilt)) {
      RowState state;
      attend_row<T, Kv>(p, s, b, h, i, keys.begin, keys.end, state);
      store_row_at<T>(p, s, b, h, i, -1, sink, state);
      return;
    }
    TESSERA_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      if (d + e < p.head_dim_v) out[d + e] = from_float<T>(sums.x[e] * norm.factor);
    }
    if (d == 0 && p.lse.data != nullptr) p.lse.data[lse_offset(p, s, b, h, i)] = norm.lse;
  }
}

}  // namespace tessera::kernels

TESSERA_KERNEL(attention_join_f32, kJoinThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_join<float, float>(p);
}
TESSERA_KERNEL(attention_join_f16, kJoinThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_join<f16, f16>(p);
}
TESSERA_KERNEL(attention_join_bf16, kJoinThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_join<bf16, bf16>(p);
}
TESSERA_KERNEL(attention_join_f32_f8e4m3, kJoinThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_join<float, f8e4m3>(p);
}
TESSERA_KERNEL(attention_join_f16_f8e4m3, kJoinThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_join<f16, f8e4m3>(p);
}
TESSERA_KERNEL(attention_join_bf16_f8e4m3, kJoinThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_join<bf16, f8e4m3>(p);
}
