// Attention as separate kernels over scores in memory, between two products that a library does:
//   gather q, k, v;  S = Q K^T;  scale and terms;  mask;  P = softmax(S);  O = P V;  store o.
// The baseline that fused attention is measured against. Everything after S happens in S's own memory.
//
// Grid: (rows or groups of rows, pairs of a sequence and a kv head).

#include "common/attention_unfused.h"
#include "common/rows.cuh"
#include "common/score_terms.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

constexpr int kVectorSize = kScoresAtOnce;
constexpr int kCachedVectors = 4;  // of a softmax row that stay in a thread's registers

/// Which (sequence, head, query) a row is.
struct RowPlace {
  int pair;  // in this part
  int row;   // in this part
  int b;
  int kv_head;
  int h;
  int i;
};

TESSERA_DEVICE RowPlace place_of(const UnfusedParams& p, int pair, int row) {
  const AttentionParams& a = p.attention;
  const int64 pair_of_all = p.first_pair + pair;
  const int64 row_of_pair = p.first_row + row;
  const int kv_head = static_cast<int>(pair_of_all % a.num_kv_heads);
  const int head_of_group = static_cast<int>(row_of_pair / a.seq_len_q);
  return {pair,
          row,
          static_cast<int>(pair_of_all / a.num_kv_heads),
          kv_head,
          kv_head * (a.num_heads / a.num_kv_heads) + head_of_group,
          static_cast<int>(row_of_pair % a.seq_len_q)};
}

TESSERA_DEVICE float* score_row(const UnfusedParams& p, const RowPlace& at) {
  return p.scores + (static_cast<int64>(at.pair) * p.rows + at.row) * p.key_stride;
}

/// The row that a warp of a gathering or storing block takes.
TESSERA_DEVICE int row_of_warp() { return block_x() * (block_size() / kWarpSize) + thread_x() / kWarpSize; }

/// Copies `elements` times `scale` and fills up with zeros to `stride`. source null: nothing but zeros.
template <class To, class From>
TESSERA_DEVICE void copy_row(To* destination, const From* source, float scale, int elements, int stride) {
  for (int d = thread_x() % kWarpSize; d < stride; d += kWarpSize) {
    const float value = source != nullptr && d < elements ? to_float(source[d]) : 0.0f;
    destination[d] = from_float<To>(value * scale);
  }
}

// T is the type of q and o, Kv that of k and v, Work that of the products' inputs, which holds both exactly.

template <class T, class Work>
TESSERA_DEVICE void gather_q(const UnfusedParams& p) {
  const int row = row_of_warp();
  if (row >= p.rows) return;
  const AttentionParams& a = p.attention;
  const RowPlace at = place_of(p, block_y(), row);
  const Sequence s = load_sequence(a, at.b);
  const T* source = nullptr;
  if (at.i < s.len_q) source = static_cast<const T*>(a.q.data) + query_offset(a, a.q, s, at.b, at.h, at.i);
  Work* destination = static_cast<Work*>(p.q) + (static_cast<int64>(at.pair) * p.rows + row) * p.qk_stride;
  const float scale = HasKvScales<T>::kValue ? q_scale(a, at.b, at.kv_head) : 1.0f;
  copy_row(destination, source, scale, a.head_dim_qk, p.qk_stride);
}

template <class Kv, class Work>
TESSERA_DEVICE void gather_kv(const UnfusedParams& p) {
  const int token = row_of_warp();
  if (token >= p.key_stride) return;
  const AttentionParams& a = p.attention;
  const RowPlace at = place_of(p, block_y(), 0);
  const Sequence s = load_sequence(a, at.b);
  const bool exists = token < s.len_kv;
  const int64 row = static_cast<int64>(at.pair) * p.key_stride + token;
  float k_scale = 1.0f;
  float v_scale = 1.0f;
  if constexpr (HasKvScales<Kv>::kValue) {
    if (exists) {
      k_scale = kv_scale(a, a.kv_scales.k, at.b, at.kv_head, token);
      v_scale = kv_scale(a, a.kv_scales.v, at.b, at.kv_head, token);
    }
  }
  const Kv* k = exists ? kv_row<Kv>(a, a.k, s, at.b, at.kv_head, token) : nullptr;
  copy_row(static_cast<Work*>(p.k) + row * p.qk_stride, k, k_scale, a.head_dim_qk, p.qk_stride);
  const Kv* v = exists ? kv_row<Kv>(a, a.v, s, at.b, at.kv_head, token) : nullptr;
  Work* v_out = static_cast<Work*>(p.v) + row * p.v_stride;
  copy_row(v_out, v, v_scale, a.head_dim_v, p.v_stride);
  // A product would spread a NaN or an infinity to rows that do not see it.
  for (int d = thread_x() % kWarpSize; d < a.head_dim_v; d += kWarpSize) {
    if (to_float(v_out[d]) * 0.0f == 0.0f) continue;
    v_out[d] = from_float<Work>(0.0f);
    p.v_has_holes[at.pair] = 1;  // whoever comes last writes the same
  }
}

/// exp(x - max); 0 where all of a row is hidden.
TESSERA_DEVICE float row_weight(float x, float max) {
  return max == -infinity() && x == x ? 0.0f : expf(x - max);
}

using ScoreVector = Vector<float, kVectorSize>;

TESSERA_DEVICE ScoreVector load_scores(const float* row, int column) {
  return *reinterpret_cast<const ScoreVector*>(row + column);
}

/// A row's weight as stored: that of a visible key that rounds to 0 becomes -0, so that +0 means hidden.
template <class T>
TESSERA_DEVICE T stored_weight(float weight, bool visible) {
  const T rounded = from_float<T>(weight);
  return visible && to_float(rounded) == 0.0f ? from_float<T>(-0.0f) : rounded;
}

/// The softmax of a row of scores as weights of type T from the row's start on: 16-bit ones take half of it.
template <class T>
TESSERA_DEVICE void softmax_in_place(const UnfusedParams& p) {
  TESSERA_SHARED(scratch, float[kMaxWarps]);
  const AttentionParams& a = p.attention;
  const RowPlace at = place_of(p, block_y(), block_x());
  const Sequence s = load_sequence(a, at.b);
  if (at.i >= s.len_q) return;
  const float* row = score_row(p, at);
  T* weights = reinterpret_cast<T*>(score_row(p, at));
  const int step = block_size() * kVectorSize;
  const int first_uncached = kCachedVectors * step;
  const int own = thread_x() * kVectorSize;

  ScoreVector cached[kCachedVectors];
  float max = -infinity();
  TESSERA_UNROLL
  for (int n = 0; n < kCachedVectors; ++n) {
    const int column = own + n * step;
    if (column >= p.key_stride) break;
    cached[n] = load_scores(row, column);
    TESSERA_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      if (column + i >= s.len_kv) cached[n].element[i] = -infinity();
      max = Largest()(max, cached[n].element[i]);
    }
  }
  for (int column = own + first_uncached; column < s.len_kv; column += step) {
    const ScoreVector x = load_scores(row, column);
    for (int i = 0; i < kVectorSize && column + i < s.len_kv; ++i) max = Largest()(max, x.element[i]);
  }
  max = block_reduce(max, -infinity(), scratch, Largest());
  // The sink joins the denominator of rows that see a key.
  const bool has_sink = a.sinks != nullptr && max != -infinity();
  if (has_sink) max = maximum(max, a.sinks[at.h]);

  float sum = 0.0f;
  TESSERA_UNROLL
  for (int n = 0; n < kCachedVectors; ++n) {
    if (own + n * step >= p.key_stride) break;
    TESSERA_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      const float weight = row_weight(cached[n].element[i], max);
      sum += weight;
      // -0: visible, but too small.
      cached[n].element[i] = weight == 0.0f && cached[n].element[i] != -infinity() ? -0.0f : weight;
    }
  }
  for (int column = own + first_uncached; column < s.len_kv; column += step) {
    const ScoreVector x = load_scores(row, column);
    for (int i = 0; i < kVectorSize && column + i < s.len_kv; ++i) sum += row_weight(x.element[i], max);
  }
  sum = block_reduce(sum, 0.0f, scratch, Add());
  if (has_sink) sum += expf(a.sinks[at.h] - max);
  const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
  if (thread_x() == 0 && a.lse.data != nullptr) {
    a.lse.data[lse_offset(a, s, at.b, at.h, at.i)] = sum == 0.0f ? -infinity() : max + logf(sum);
  }

  TESSERA_UNROLL
  for (int n = 0; n < kCachedVectors; ++n) {
    const int column = own + n * step;
    if (column >= p.key_stride) break;
    Vector<T, kVectorSize> out;
    TESSERA_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      const float weight = cached[n].element[i];
      out.element[i] = stored_weight<T>(weight * scale, bits_of_float(weight) != 0);
    }
    *reinterpret_cast<Vector<T, kVectorSize>*>(weights + column) = out;
  }
  // What a step writes lies below what later steps read, and what it overwrites of its own is read before the
  // barrier.
  for (int begin = first_uncached; begin < p.key_stride; begin += step) {
    const int column = begin + own;
    ScoreVector x = {};
    if (column < p.key_stride) x = load_scores(row, column);
    sync_threads();
    if (column >= p.key_stride) continue;
    Vector<T, kVectorSize> out;
    TESSERA_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      const bool visible = column + i < s.len_kv && x.element[i] != -infinity();
      out.element[i] = stored_weight<T>(visible ? row_weight(x.element[i], max) * scale : 0.0f, visible);
    }
    *reinterpret_cast<Vector<T, kVectorSize>*>(weights + column) = out;
  }
}

/// Writes o in the caller's type and place. Where v has holes the row is summed here, key by key, over the
/// visible keys only, whose weights are not +0.
template <class T, class Kv, class Work>
TESSERA_DEVICE void store_o(const UnfusedParams& p) {
  const int row = row_of_warp();
  if (row >= p.rows) return;
  const AttentionParams& a = p.attention;
  const RowPlace at = place_of(p, block_y(), row);
  const Sequence s = load_sequence(a, at.b);
  if (at.i >= s.len_q) return;
  const int lane = thread_x() % kWarpSize;
  T* out = static_cast<T*>(a.o.data) + query_offset(a, a.o, s, at.b, at.h, at.i);
  if (p.v_has_holes[at.pair] == 0) {
    const float* o = p.o + (static_cast<int64>(at.pair) * p.rows + row) * p.v_stride;
    for (int d = lane; d < a.head_dim_v; d += kWarpSize) out[d] = from_float<T>(o[d]);
    return;
  }
  const Work* weights = reinterpret_cast<const Work*>(score_row(p, at));
  for (int d = lane; d < a.head_dim_v; d += kWarpSize) {
    float sum = 0.0f;
    for (int j = 0; j < s.len_kv; ++j) {
      float weight = to_float(weights[j]);
      if (bits_of_float(weight) == 0) continue;
      if constexpr (HasKvScales<Kv>::kValue) weight *= kv_scale(a, a.kv_scales.v, at.b, at.kv_head, j);
      sum += weight * to_float(kv_row<Kv>(a, a.v, s, at.b, at.kv_head, j)[d]);
    }
    out[d] = from_float<T>(sum);
  }
}

}  // namespace tessera::kernels

/// Scores in natural units: scale, softcap, ALiBi, additive mask, and the modifier, which hides keys too. A
/// module with a modifier has this kernel alone.
TESSERA_KERNEL(unfused_scale, kScoreThreads)(const UnfusedParams p) {
  constexpr int kTerms = kTermScale | kTermSoftcap | kTermAlibi | kTermAdditiveMask;
  const AttentionParams& a = p.attention;
  const RowPlace at = place_of(p, block_y(), block_x());
  const Sequence s = load_sequence(a, at.b);
  if (at.i >= s.len_q) return;
  float* row = score_row(p, at);
  for (int column = thread_x() * kVectorSize; column < s.len_kv; column += block_size() * kVectorSize) {
    ScoreVector x = load_scores(row, column);
    TESSERA_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      const int j = column + i;
      if (j < s.len_kv) x.element[i] = modified_score<kTerms, -1>(a, s, x.element[i], at.b, at.h, at.i, j);
    }
    *reinterpret_cast<ScoreVector*>(row + column) = x;
  }
}

#ifndef TESSERA_MODIFIER
/// -inf where the diagonal or the boolean mask hides a key.
TESSERA_KERNEL(unfused_mask, kScoreThreads)(const UnfusedParams p) {
  const AttentionParams& a = p.attention;
  const RowPlace at = place_of(p, block_y(), block_x());
  const Sequence s = load_sequence(a, at.b);
  if (at.i >= s.len_q) return;
  const KeyRange keys = keys_of_query(a, s, at.i);
  const auto* visible = static_cast<const unsigned char*>(a.boolean_mask.data);
  float* row = score_row(p, at);
  for (int j = thread_x(); j < s.len_kv; j += block_size()) {
    const bool hidden =
        j < keys.begin || j >= keys.end ||
        (visible != nullptr && visible[mask_offset(a.boolean_mask, at.b, at.h, at.i, j)] == 0);
    if (hidden) row[j] = -infinity();
  }
}

TESSERA_KERNEL(unfused_gather_q_f32, kGatherThreads)(const UnfusedParams p) { gather_q<float, float>(p); }
TESSERA_KERNEL(unfused_gather_q_f16, kGatherThreads)(const UnfusedParams p) { gather_q<f16, f16>(p); }
TESSERA_KERNEL(unfused_gather_q_bf16, kGatherThreads)(const UnfusedParams p) { gather_q<bf16, bf16>(p); }

TESSERA_KERNEL(unfused_gather_kv_f32, kGatherThreads)(const UnfusedParams p) { gather_kv<float, float>(p); }
TESSERA_KERNEL(unfused_gather_kv_f16, kGatherThreads)(const UnfusedParams p) { gather_kv<f16, f16>(p); }
TESSERA_KERNEL(unfused_gather_kv_bf16, kGatherThreads)(const UnfusedParams p) { gather_kv<bf16, bf16>(p); }

TESSERA_KERNEL(unfused_softmax_f32, kScoreSoftmaxThreads)(const UnfusedParams p) {
  softmax_in_place<float>(p);
}
TESSERA_KERNEL(unfused_softmax_f16, kScoreSoftmaxThreads)(const UnfusedParams p) { softmax_in_place<f16>(p); }
TESSERA_KERNEL(unfused_softmax_bf16, kScoreSoftmaxThreads)(const UnfusedParams p) {
  softmax_in_place<bf16>(p);
}

TESSERA_KERNEL(unfused_store_f32, kGatherThreads)(const UnfusedParams p) { store_o<float, float, float>(p); }
TESSERA_KERNEL(unfused_store_f16, kGatherThreads)(const UnfusedParams p) { store_o<f16, f16, f16>(p); }
TESSERA_KERNEL(unfused_store_bf16, kGatherThreads)(const UnfusedParams p) { store_o<bf16, bf16, bf16>(p); }

// Queries, keys and values of 8 bits times their scales need fp32.
TESSERA_KERNEL(unfused_gather_q_f8e4m3, kGatherThreads)(const UnfusedParams p) { gather_q<f8e4m3, float>(p); }
#define TESSERA_WIDENED(q_type)                                                                \
  TESSERA_KERNEL(unfused_gather_q_##q_type##_f8e4m3, kGatherThreads)(const UnfusedParams p) {  \
    gather_q<q_type, float>(p);                                                                \
  }                                                                                            \
  TESSERA_KERNEL(unfused_gather_kv_##q_type##_f8e4m3, kGatherThreads)(const UnfusedParams p) { \
    gather_kv<f8e4m3, float>(p);                                                               \
  }                                                                                            \
  TESSERA_KERNEL(unfused_store_##q_type##_f8e4m3, kGatherThreads)(const UnfusedParams p) {     \
    store_o<q_type, f8e4m3, float>(p);                                                         \
  }
using f32 = float;
TESSERA_WIDENED(f32)
TESSERA_WIDENED(f16)
TESSERA_WIDENED(bf16)
#endif
