#pragma once

#include "common/visible_tiles.cuh"

// One query row by one warp: the plainest form of the algorithm, for any head_dim and any strides.
// It is the generic kernel's inner loop, and what the tiled kernels call for a row that a NaN in a hidden
// value has spoilt. Online softmax: Milakov & Gimelshein (2018).

namespace tessera::kernels {

/// A row's running softmax: o = v_scale sum exp(s - max) v, sum = sum exp(s - max). Lane l holds dims l, l +
/// warp, …, of at most kMostDims.
template <int kMostDims>
struct RowStateOf {
  static constexpr int kDimsOfLane = (kMostDims + kWarpSize - 1) / kWarpSize;
  float max;
  float sum;
  float v_scale;  // a power of two
  float o[kDimsOfLane];
};
using RowState = RowStateOf<kMaxHeadDim>;

constexpr int kPlainTileKeys = 32;  // that are left out at once, where a modifier's mask hides them

/// What turns a row's sum of exp(s - max) v into its output, and the row's logsumexp.
struct RowNorm {
  float factor;  // 0 for a row without keys
  float lse;     // -inf for a row without keys
};

/// max: in natural units, -inf for a row without keys. sink: null if there is none or if the keys are split
/// (attention_combine.cu adds it then).
TESSERA_DEVICE RowNorm row_norm(float max, float sum, const float* sink) {
  if (max == -infinity() || sum == 0.0f) return {0.0f, -infinity()};
  float top = max;
  float own = 1.0f;
  if (sink != nullptr) {  // it joins the denominator; the larger of the two is factored out
    top = maximum(max, *sink);
    own = expf(max - top);
    sum = sum * own + expf(*sink - top);
  }
  return {own / sum, top + logf(sum)};
}

/// The sink that a block has to add to head h's rows itself, or null.
TESSERA_DEVICE const float* sink_of_head(const AttentionParams& p, int h) {
  return p.sinks != nullptr && p.num_splits == 1 ? p.sinks + h : nullptr;
}

/// The score of key j, in natural units. q: the row's query; q_unit: what it is multiplied by beside keys
/// with scales. All lanes of the warp take part. kIsRolled: loops stay as short as they are here.
template <class T, class Kv, int kTerms, bool kIsRolled>
TESSERA_DEVICE float plain_score(const AttentionParams& p, const Sequence& s, int b, int h, int i,
                                 int kv_head, const T* q, float q_unit, int j) {
  const int lane = thread_x() % kWarpSize;
  const Kv* k = kv_row<Kv>(p, p.k, s, b, kv_head, j);
  float product = 0.0f;
  if constexpr (kIsRolled) {
    TESSERA_UNROLL_BY(1)
    for (int d = lane; d < p.head_dim_qk; d += kWarpSize) product += to_float(q[d]) * to_float(k[d]);
  } else {
    for (int d = lane; d < p.head_dim_qk; d += kWarpSize) product += to_float(q[d]) * to_float(k[d]);
  }
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) product += shuffle_xor(product, mask);
  if constexpr (HasKvScales<Kv>::kValue) product *= kv_scale(p, p.kv_scales.k, b, kv_head, j) * q_unit;
  return modified_score<kTerms, -1>(p, s, product, b, h, i, j);
}

/// Folds keys [begin, end) into `row`, with v times v_scale. All lanes of the warp take part. A hidden key's
/// value is never read. Kv: of k and v as stored. kIsRolled: as above.
template <class T, class Kv, int kTerms, bool kIsRolled, int kMostDims>
TESSERA_DEVICE void fold_keys(const AttentionParams& p, const Sequence& s, int b, int h, int i, int begin,
                              int end, float v_scale, RowStateOf<kMostDims>& row) {
  const int lane = thread_x() % kWarpSize;
  const int kv_head = h / (p.num_heads / p.num_kv_heads);
  const T* q = static_cast<const T*>(p.q.data) + query_offset(p, p.q, s, b, h, i);
  row.max = -infinity();
  row.sum = 0.0f;
  TESSERA_UNROLL
  for (int d = 0; d < row.kDimsOfLane; ++d) row.o[d] = 0.0f;
  const float q_unit = HasKvScales<Kv>::kValue ? q_scale(p, b, kv_head) : 1.0f;
  VisibleTiles visible(p, {s, b, i, i, h, h}, kPlainTileKeys);
  for (int j = begin; j < end; ++j) {
    if (kHidesTiles && (j == begin || j % kPlainTileKeys == 0)) {
      const int tile = j / kPlainTileKeys;
      const int seen = visible.next(tile, (end + kPlainTileKeys - 1) / kPlainTileKeys);
      if (seen > tile) j = seen * kPlainTileKeys;
      if (j >= end) break;
    }
    const float score = plain_score<T, Kv, kTerms, kIsRolled>(p, s, b, h, i, kv_head, q, q_unit, j);
    if (score == -infinity()) continue;
    const float new_max = maximum(row.max, score);
    const float scale = row.max == -infinity() ? 0.0f : expf(row.max - new_max);
    const float weight = expf(score - new_max);
    float v_weight = weight * v_scale;
    if constexpr (HasKvScales<Kv>::kValue) v_weight *= kv_scale(p, p.kv_scales.v, b, kv_head, j);
    const Kv* v = kv_row<Kv>(p, p.v, s, b, kv_head, j);
    row.max = new_max;
    row.sum = row.sum * scale + weight;
    TESSERA_UNROLL
    for (int n = 0; n < row.kDimsOfLane; ++n) {
      const int d = lane + n * kWarpSize;
      if (d < p.head_dim_v) row.o[n] = row.o[n] * scale + v_weight * to_float(v[d]);
    }
  }
}

/// The same with all terms, not inlined.
template <class T, class Kv>
TESSERA_DEVICE_NOINLINE void attend_row_scaled(const AttentionParams& p, const Sequence& s, int b, int h,
                                               int i, int begin, int end, float v_scale, RowState& row) {
  fold_keys<T, Kv, kAllTerms, false>(p, s, b, h, i, begin, end, v_scale, row);
}

/// Whether some sum of values is infinite or NaN, in any lane.
template <int kMostDims>
TESSERA_DEVICE bool has_overflown(const RowStateOf<kMostDims>& row) {
  float probe = 0.0f;
  TESSERA_UNROLL
  for (int n = 0; n < row.kDimsOfLane; ++n) probe += row.o[n] * 0.0f;
  return warp_any(probe != 0.0f);  // NaN
}

/// What values are multiplied with the second time: the sum of values near the largest number may be infinite
/// where their mean is not.
constexpr float kSmallValues = 1.0f / (1 << 30);

/// Folds keys [begin, end) into `row`. All lanes of the warp take part.
template <class T, class Kv = T>
TESSERA_DEVICE void attend_row(const AttentionParams& p, const Sequence& s, int b, int h, int i, int begin,
                               int end, RowState& row) {
  row.v_scale = 1.0f;
  attend_row_scaled<T, Kv>(p, s, b, h, i, begin, end, 1.0f, row);
  if (!has_overflown(row)) return;
  row.v_scale = kSmallValues;
  attend_row_scaled<T, Kv>(p, s, b, h, i, begin, end, kSmallValues, row);
}

/// The same in the caller's own code, for kernels in which a call would make the tensor cores' products wait
/// for each other. Rolled up, since it is seldom run and always compiled.
template <class T, class Kv, int kTerms, int kMostDims>
TESSERA_DEVICE void attend_row_inlined(const AttentionParams& p, const Sequence& s, int b, int h, int i,
                                       int begin, int end, RowStateOf<kMostDims>& row) {
  TESSERA_UNROLL_BY(1)
  for (int attempt = 0; attempt < 2; ++attempt) {
    const float v_scale = attempt == 0 ? 1.0f : kSmallValues;
    row.v_scale = v_scale;
    fold_keys<T, Kv, kTerms, true>(p, s, b, h, i, begin, end, v_scale, row);
    if (!has_overflown(row)) break;
  }
}

/// Writes o and lse of a row with `sink` (or null), or, if `partial` is not below 0, that row of o_partial
/// and lse_partial.
template <class T, int kMostDims>
TESSERA_DEVICE void store_row_at(const AttentionParams& p, const Sequence& s, int b, int h, int i,
                                 int64 partial, const float* sink, const RowStateOf<kMostDims>& row) {
  const int lane = thread_x() % kWarpSize;
  const bool has_keys = row.max != -infinity();
  const RowNorm norm = row_norm(row.max, row.sum, sink);
  const float unscale = 1.0f / row.v_scale;  // exact
  TESSERA_UNROLL
  for (int n = 0; n < row.kDimsOfLane; ++n) {
    const int d = lane + n * kWarpSize;
    if (d >= p.head_dim_v) break;
    const float value = has_keys ? row.o[n] * norm.factor * unscale : 0.0f;
    if (partial >= 0) {
      p.o_partial[partial * p.head_dim_v + d] = value;
    } else {
      static_cast<T*>(p.o.data)[query_offset(p, p.o, s, b, h, i) + d] = from_float<T>(value);
    }
  }
  if (lane != 0) return;
  if (partial >= 0) {
    p.lse_partial[partial] = norm.lse;
  } else if (p.lse.data != nullptr) {
    p.lse.data[lse_offset(p, s, b, h, i)] = norm.lse;
  }
}

/// Writes o and lse of a row, or its partial results if the keys are split.
template <class T>
TESSERA_DEVICE void store_row(const AttentionParams& p, const Sequence& s, int b, int h, int i, int split,
                              const RowState& row) {
  const int64 partial = p.num_splits > 1 ? split_row(p, split, b, h, i) : -1;
  store_row_at<T>(p, s, b, h, i, partial, sink_of_head(p, h), row);
}

/// Both in one, not inlined: a kernel that seldom needs it keeps its registers.
template <class T, class Kv = T>
TESSERA_DEVICE_NOINLINE void redo_row(const AttentionParams& p, const Sequence& s, int b, int h, int i,
                                      int begin, int end, int split) {
  RowState row;
  attend_row<T, Kv>(p, s, b, h, i, begin, end, row);
  store_row<T>(p, s, b, h, i, split, row);
}

}  // namespace tessera::kernels
