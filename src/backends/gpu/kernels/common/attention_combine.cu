// Merges the splits of a row: lse = log(sum exp(lse_s)), o = sum exp(lse_s - lse) o_s, with the sink's logit
// in the denominator if there is one.  Flash-Decoding (Dao et al., 2023).  Also merge_states of two results.
//
// attention_combine: grid (rows, heads, batch); one block a row. Threads are along head_dim, and where there
// are more, in groups that share the splits out.
// attention_combine_rows, for many rows of few splits: grid (groups of rows, 1, batch); a warp a row, which
// is a query of a head; lanes have four columns each.

#include "common/score_terms.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

constexpr int kEarlySplits = 8;  // of each group of threads, or of a warp
constexpr int kColumns = 4;      // of a lane

/// What a row's splits count, and its logsumexp. A lane has those of splits lane, lane + warp, …
template <int kSplitsOfLane>
struct SplitWeights {
  float of_lane[kSplitsOfLane];
  float lse;

  /// All lanes of a warp take part. lse_of: of the row in split 0.
  TESSERA_DEVICE SplitWeights(const AttentionParams& p, int h, int num_splits, const float* lse_of,
                              int64 rows) {
    float top = -infinity();
    TESSERA_UNROLL
    for (int n = 0; n < kSplitsOfLane; ++n) {
      const int split = thread_x() % kWarpSize + n * kWarpSize;
      of_lane[n] = split < num_splits ? lse_of[split * rows] : -infinity();
    }
    TESSERA_UNROLL
    for (int n = 0; n < kSplitsOfLane; ++n) top = maximum_or_nan(top, of_lane[n]);
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) top = maximum_or_nan(top, shuffle_xor(top, mask));
    const bool has_keys = top != -infinity();
    if (has_keys && p.sinks != nullptr) top = maximum(top, p.sinks[h]);
    float sum = 0.0f;
    TESSERA_UNROLL
    for (int n = 0; n < kSplitsOfLane; ++n) {
      // A split without keys wrote zeros.
      of_lane[n] = of_lane[n] == -infinity() ? 0.0f : expf(of_lane[n] - top);
      sum += of_lane[n];
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (has_keys && p.sinks != nullptr) sum += expf(p.sinks[h] - top);
    TESSERA_UNROLL
    for (int n = 0; n < kSplitsOfLane; ++n) of_lane[n] = has_keys ? of_lane[n] / sum : 0.0f;
    lse = has_keys ? top + logf(sum) : -infinity();
  }
};

template <class T>
TESSERA_DEVICE void attention_combine(const AttentionParams& p) {
  allow_next_kernel();
  TESSERA_SHARED(weights, float[kMaxSplits]);
  TESSERA_SHARED(shared_lse, float);
  TESSERA_SHARED(sums, float[kMostCombineThreads]);
  const int i = block_x();
  const int h = block_y();
  const int b = p.batch_begin + block_z();
  const int64 rows = static_cast<int64>(p.batch) * p.num_heads * p.seq_len_q;
  const int64 row = partial_row(p, b, h, i);
  const float* partial = p.o_partial + row * p.head_dim_v;
  const int64 stride = rows * p.head_dim_v;
  const int width = minimum((p.head_dim_v + kWarpSize - 1) / kWarpSize * kWarpSize, block_size());
  const int num_groups = block_size() / width;
  const int group = thread_x() / width;
  const int column = thread_x() % width;
  wait_for_prior_kernels();
  const Sequence s = load_sequence(p, b);
  if (i >= s.len_q) return;
  const int num_splits = splits_of(p, s);
  // The first values are on their way while the first warp turns each split's lse into its share of the
  // whole.
  float early[kEarlySplits];
  TESSERA_UNROLL
  for (int n = 0; n < kEarlySplits; ++n) {
    const int split = group + n * num_groups;
    const bool is_there = group < num_groups && split < num_splits && column < p.head_dim_v;
    early[n] = is_there ? partial[split * stride + column] : 0.0f;
  }
  if (thread_x() < kWarpSize) {
    constexpr int kSplitsOfLane = kMaxSplits / kWarpSize;
    const SplitWeights<kSplitsOfLane> all(p, h, num_splits, p.lse_partial + row, rows);
    TESSERA_UNROLL
    for (int n = 0; n < kSplitsOfLane; ++n) weights[thread_x() + n * kWarpSize] = all.of_lane[n];
    if (thread_x() == 0) shared_lse = all.lse;
  }
  sync_threads();
  T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, s, b, h, i);
  for (int first = 0; first < p.head_dim_v; first += width) {
    const int d = first + column;
    float value = 0.0f;
    if (group < num_groups && d < p.head_dim_v) {
      int begin = group;
      if (first == 0) {
        TESSERA_UNROLL
        for (int n = 0; n < kEarlySplits; ++n) {
          if (begin < num_splits) value += weights[begin] * early[n];
          begin += num_groups;
        }
      }
      TESSERA_UNROLL_BY(8)
      for (int split = begin; split < num_splits; split += num_groups)
        value += weights[split] * partial[split * stride + d];
    }
    if (num_groups > 1) {
      sums[thread_x()] = value;
      sync_threads();
      if (group == 0) {
        for (int n = 1; n < num_groups; ++n) value += sums[n * width + column];
      }
      sync_threads();
    }
    if (group == 0 && d < p.head_dim_v) out[d] = from_float<T>(value);
  }
  if (thread_x() == 0 && p.lse.data != nullptr) p.lse.data[lse_offset(p, s, b, h, i)] = shared_lse;
}

/// Columns [d, d + kColumns) of a row, those behind its end 0. kAligned: there are all, at multiples of 16
/// bytes.
template <bool kAligned>
TESSERA_DEVICE void load_columns(const float* row, int d, int head_dim, float (&x)[kColumns]) {
  if constexpr (kAligned) {  // element by element: clang would copy a struct through scratch memory
    const auto* from = static_cast<const float*>(__builtin_assume_aligned(row + d, 16));
    TESSERA_UNROLL
    for (int e = 0; e < kColumns; ++e) x[e] = from[e];
  } else {
    TESSERA_UNROLL
    for (int e = 0; e < kColumns; ++e) x[e] = d + e < head_dim ? row[d + e] : 0.0f;
  }
}

/// A row's columns from those of the lane on. A split's weight is that of its lane.
template <class T, bool kAligned>
TESSERA_DEVICE void combine_columns(const AttentionParams& p, int num_splits, const float* partial,
                                    int64 stride, float weight, T* out) {
  for (int first = 0; first < p.head_dim_v; first += kColumns * kWarpSize) {
    const int d = first + thread_x() % kWarpSize * kColumns;
    float sums[kColumns] = {};
    for (int begin = 0; begin < num_splits; begin += kEarlySplits) {
      float x[kEarlySplits][kColumns];
      TESSERA_UNROLL
      for (int n = 0; n < kEarlySplits; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < kColumns; ++e) x[n][e] = 0.0f;
        if (begin + n < num_splits && d < p.head_dim_v)
          load_columns<kAligned>(partial + (begin + n) * stride, d, p.head_dim_v, x[n]);
      }
      TESSERA_UNROLL
      for (int n = 0; n < kEarlySplits; ++n) {
        const float share = shuffle(weight, minimum(begin + n, num_splits - 1));
        TESSERA_UNROLL
        for (int e = 0; e < kColumns; ++e) sums[e] += share * x[n][e];
      }
    }
    TESSERA_UNROLL
    for (int e = 0; e < kColumns; ++e) {
      if (d + e < p.head_dim_v) out[d + e] = from_float<T>(sums[e]);
    }
  }
}

template <class T>
TESSERA_DEVICE void attention_combine_rows(const AttentionParams& p) {
  allow_next_kernel();
  const int index = block_x() * (block_size() / kWarpSize) + thread_x() / kWarpSize;
  const int h = index / p.seq_len_q;
  const int i = index - h * p.seq_len_q;
  const int b = p.batch_begin + block_z();
  wait_for_prior_kernels();
  if (h >= p.num_heads) return;
  const Sequence s = load_sequence(p, b);
  if (i >= s.len_q) return;
  const int64 rows = static_cast<int64>(p.batch) * p.num_heads * p.seq_len_q;
  const int64 row = partial_row(p, b, h, i);
  const int num_splits = splits_of(p, s);
  const SplitWeights<1> weights(p, h, num_splits, p.lse_partial + row, rows);
  const float* const partial = p.o_partial + row * p.head_dim_v;
  T* const out = static_cast<T*>(p.o.data) + query_offset(p, p.o, s, b, h, i);
  if (p.head_dim_v % kColumns == 0) {
    combine_columns<T, true>(p, num_splits, partial, rows * p.head_dim_v, weights.of_lane[0], out);
  } else {
    combine_columns<T, false>(p, num_splits, partial, rows * p.head_dim_v, weights.of_lane[0], out);
  }
  if (thread_x() % kWarpSize == 0 && p.lse.data != nullptr)
    p.lse.data[lse_offset(p, s, b, h, i)] = weights.lse;
}

}  // namespace tessera::kernels

TESSERA_KERNEL(attention_combine_f32, kMostCombineThreads)(const AttentionParams p) {
  attention_combine<float>(p);
}
TESSERA_KERNEL(attention_combine_f16, kMostCombineThreads)(const AttentionParams p) {
  attention_combine<f16>(p);
}
TESSERA_KERNEL(attention_combine_bf16, kMostCombineThreads)(const AttentionParams p) {
  attention_combine<bf16>(p);
}

TESSERA_KERNEL(attention_combine_rows_f32, kCombineRowsThreads)(const AttentionParams p) {
  attention_combine_rows<float>(p);
}
TESSERA_KERNEL(attention_combine_rows_f16, kCombineRowsThreads)(const AttentionParams p) {
  attention_combine_rows<f16>(p);
}
TESSERA_KERNEL(attention_combine_rows_bf16, kCombineRowsThreads)(const AttentionParams p) {
  attention_combine_rows<bf16>(p);
}
