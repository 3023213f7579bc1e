#pragma once

#include "common/attention_row.cuh"

// Batch-invariant problems: a row's keys are taken in segments of p.keys_per_segment, counted from key 0,
// each by a softmax of its own, and a row's segments are joined in their order by what is here. So its bits
// are the same whether one block has all its segments or many blocks have one each. A row whose keys lie in
// one segment has that segment's result.
//
// The plain loop does a row with all its keys at once in three cases. They are a matter of the row alone, and
// every kernel has to ask for just these, since that loop's bits are others:
//
// - The row sees a value that is infinite or NaN: that of a key whose score, as the plain loop computes it,
//   isn't -inf (adds_spoilt_value). Tiles can't tell: they multiply such a value by the weight 0 as well,
//   which gives NaN in rows that don't see it.
// - A segment comes out infinite or NaN, or with a base that is off by rounding, with 0 in place of such
//   values: its scores are, or sums leave fp32's range. Tiled kernels take it a second time for that, where
//   it came out so at first.
// - The joined result isn't finite: the sum of means of one sign near the largest number may be infinite
//   although their mean is not. Who joins segments looks at the numbers that it would store (is_finite_as).

namespace tessera::kernels {

/// A row's segments so far.
struct JoinedRow {
  float top;  // the largest logsumexp of a segment, in units of log2; -inf before the first key
  float sum;  // of 2^(logsumexp - top)
};

/// What joins a segment to those before it.
struct JoinFactors {
  float keep;  // of what there is; 0: nothing of it
  float add;   // of the segment; 0: nothing of it
};

/// lse: the segment's logsumexp, in units of log2; -inf if it hides all its keys from the row.
TESSERA_DEVICE JoinFactors join_factors(float top_before, float lse) {
  const float top = maximum(top_before, lse);
  return {top_before == -infinity() ? 0.0f : exp2f(top_before - top),
          lse == -infinity() ? 0.0f : exp2f(lse - top)};
}

/// A sum over segments with one more. A segment without keys changes no bit, and the first is taken as it is.
TESSERA_DEVICE float joined(JoinFactors f, float before, float segment) {
  const float sum = fmaf(f.add, segment, f.keep * before);
  const float counted = f.keep == 0.0f ? segment : sum;  // chosen, not branched to: there are many
  return f.add == 0.0f ? before : counted;
}

/// joined() of sums, to which a segment adds 1: by one fmaf, since compilers make fmaf(add, 1, keep * before)
/// of another, or don't.
TESSERA_DEVICE float joined_sum(JoinFactors f, float before) {
  const float counted = f.keep == 0.0f ? 1.0f : fmaf(f.keep, before, f.add);
  return f.add == 0.0f ? before : counted;
}

/// Joins a segment to a row's earlier ones; what its o is to be joined by.
TESSERA_DEVICE JoinFactors join_row(float lse, JoinedRow& row) {
  const JoinFactors f = join_factors(row.top, lse);
  row.top = maximum_or_nan(row.top, lse);
  row.sum = joined_sum(f, row.sum);
  return f;
}

/// What a row's joined sum is multiplied by, and its logsumexp in natural units. sink: null if there is none.
TESSERA_DEVICE RowNorm joined_norm(const JoinedRow& row, const float* sink) {
  if (row.top == -infinity()) return {0.0f, -infinity()};
  if (sink == nullptr) return {1.0f / row.sum, (row.top + log2f(row.sum)) * kLn2};
  // By fmaf, so that no compiler makes one of the product and a difference that follows.
  const float sink_log2 = fmaf(*sink, kLog2E, 0.0f);
  const float top = maximum(row.top, sink_log2);
  const float share = exp2f(row.top - top);
  const float sum = fmaf(row.sum, share, exp2f(sink_log2 - top));
  return {share / sum, (top + log2f(sum)) * kLn2};
}

/// Whether a number is finite as it is stored.
template <class T>
TESSERA_DEVICE bool is_finite_as(float value) {
  return to_float(from_float<T>(value)) * 0.0f == 0.0f;
}

/// Whether the plain loop adds a value that is infinite or NaN to a row, of keys [begin, end). All lanes of
/// the warp take part. kIsRolled: as in plain_score().
template <class T, class Kv, int kTerms, bool kIsRolled>
TESSERA_DEVICE bool adds_spoilt_value_inlined(const AttentionParams& p, const Sequence& s, int b, int h,
                                              int i, int begin, int end) {
  const int kv_head = h / (p.num_heads / p.num_kv_heads);
  const T* q = static_cast<const T*>(p.q.data) + query_offset(p, p.q, s, b, h, i);
  const float q_unit = HasKvScales<Kv>::kValue ? q_scale(p, b, kv_head) : 1.0f;
  for (int j = begin; j < end; ++j) {
    const Kv* v = kv_row<Kv>(p, p.v, s, b, kv_head, j);
    bool is_spoilt = false;
    for (int d = thread_x() % kWarpSize; d < p.head_dim_v; d += kWarpSize)
      is_spoilt = is_spoilt || to_float(v[d]) * 0.0f != 0.0f;
    if (!warp_any(is_spoilt)) continue;
    if (plain_score<T, Kv, kTerms, kIsRolled>(p, s, b, h, i, kv_head, q, q_unit, j) != -infinity())
      return true;
  }
  return false;
}

/// The same with all terms, not inlined.
template <class T, class Kv>
TESSERA_DEVICE_NOINLINE bool adds_spoilt_value(const AttentionParams& p, const Sequence& s, int b, int h,
                                               int i, int begin, int end) {
  return adds_spoilt_value_inlined<T, Kv, kAllTerms, false>(p, s, b, h, i, begin, end);
}

/// Stands for the logsumexp of a segment in which a row sees values that only the plain loop adds up as they
/// should be: it then takes all of the row's keys at once.
TESSERA_DEVICE float lse_of_spoilt_row() { return float_of_bits(0x7fffffffu); }

/// Segments [begin, end) that have keys.
struct SegmentRange {
  int begin;
  int end;
};

TESSERA_DEVICE SegmentRange segments_of(const AttentionParams& p, const KeyRange& keys) {
  const int begin = keys.begin / p.keys_per_segment;
  return {begin, keys.begin < keys.end ? (keys.end - 1) / p.keys_per_segment + 1 : begin};
}

/// A row of o_partial and lse_partial, for a segment.
TESSERA_DEVICE int64 partial_of_segment(const AttentionParams& p, int segment, int64 row) {
  return static_cast<int64>(segment) * p.batch * p.num_heads * p.seq_len_q + row;
}

/// A row by the plain loop, segment by segment. All lanes of the warp take part.
template <class T, class Kv>
TESSERA_DEVICE void attend_row_in_segments(const AttentionParams& p, const Sequence& s, int b, int h, int i,
                                           int split) {
  constexpr int kValues = kMaxHeadDim / kWarpSize;  // of a lane
  const int lane = thread_x() % kWarpSize;
  const KeyRange all = keys_of_query(p, s, i);
  const KeyRange share = keys_of_split(p, s, split);
  const KeyRange keys = {maximum(all.begin, share.begin), minimum(all.end, share.end)};
  const SegmentRange segments = segments_of(p, keys);
  const float* sink = sink_of_head(p, h);
  JoinedRow row = {-infinity(), 0.0f};
  float o[kValues] = {};
  RowState state;
  for (int segment = segments.begin; segment < segments.end; ++segment) {
    const int begin = maximum(keys.begin, segment * p.keys_per_segment);
    const int end = minimum(keys.end, (segment + 1) * p.keys_per_segment);
    attend_row<T, Kv>(p, s, b, h, i, begin, end, state);
    const bool has_keys = state.max != -infinity() && state.sum != 0.0f;
    float lse = has_keys ? fmaf(state.max, kLog2E, log2f(state.sum)) : -infinity();
    if (has_overflown(state)) lse = lse_of_spoilt_row();
    const float factor = has_keys ? 1.0f / state.sum : 0.0f;
    const JoinFactors f = join_row(lse, row);
    const int64 partial = partial_of_segment(p, segment, partial_row(p, b, h, i));
    if (p.num_splits > 1 && lane == 0) p.lse_partial[partial] = lse;
    TESSERA_UNROLL
    for (int n = 0; n < kValues; ++n) {
      const int d = lane + n * kWarpSize;
      if (d >= p.head_dim_v) break;
      const float value = has_keys ? state.o[n] * factor * (1.0f / state.v_scale) : 0.0f;
      if (p.num_splits > 1) {
        p.o_partial[partial * p.head_dim_v + d] = value;
      } else {
        o[n] = joined(f, o[n], value);
      }
    }
  }
  if (p.num_splits > 1) return;
  const RowNorm norm = joined_norm(row, sink);
  bool is_spoilt = row.top != row.top;
  TESSERA_UNROLL
  for (int n = 0; n < kValues; ++n) is_spoilt = is_spoilt || !is_finite_as<T>(o[n] * norm.factor);
  if (warp_any(is_spoilt)) {  // as attention_join.cu does
    attend_row<T, Kv>(p, s, b, h, i, keys.begin, keys.end, state);
    store_row_at<T>(p, s, b, h, i, -1, sink, state);
    return;
  }
  T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, s, b, h, i);
  TESSERA_UNROLL
  for (int n = 0; n < kValues; ++n) {
    const int d = lane + n * kWarpSize;
    if (d < p.head_dim_v) out[d] = from_float<T>(o[n] * norm.factor);
  }
  if (lane == 0 && p.lse.data != nullptr) p.lse.data[lse_offset(p, s, b, h, i)] = norm.lse;
}

}  // namespace tessera::kernels
