// Merges the splits of a row: lse = log(sum exp(lse_s)), o = sum exp(lse_s - lse) o_s, with the sink's logit
// in the denominator if there is one.  Flash-Decoding (Dao et al., 2023).  Also merge_states of two results.
//
// Grid: (rows, heads, batch); one block a row. Threads are along head_dim, and where there are more, in
// groups that share the splits out.

#include "common/score_terms.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

constexpr int kEarlySplits = 8;  // of each group of threads

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
  // The first values are on their way while the first warp turns each split's lse into its share of the
  // whole.
  float early[kEarlySplits];
  TESSERA_UNROLL
  for (int n = 0; n < kEarlySplits; ++n) {
    const int split = group + n * num_groups;
    const bool is_there = group < num_groups && split < p.num_splits && column < p.head_dim_v;
    early[n] = is_there ? partial[split * stride + column] : 0.0f;
  }
  if (thread_x() < kWarpSize) {
    constexpr int kSplitsOfLane = kMaxSplits / kWarpSize;
    float lse[kSplitsOfLane];
    float top = -infinity();
    TESSERA_UNROLL
    for (int n = 0; n < kSplitsOfLane; ++n) {
      const int split = thread_x() + n * kWarpSize;
      lse[n] = split < p.num_splits ? p.lse_partial[split * rows + row] : -infinity();
    }
    TESSERA_UNROLL
    for (int n = 0; n < kSplitsOfLane; ++n) top = maximum_or_nan(top, lse[n]);
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) top = maximum_or_nan(top, shuffle_xor(top, mask));
    const bool has_keys = top != -infinity();
    if (has_keys && p.sinks != nullptr) top = maximum(top, p.sinks[h]);
    float sum = 0.0f;
    TESSERA_UNROLL
    for (int n = 0; n < kSplitsOfLane; ++n) {
      lse[n] = lse[n] == -infinity() ? 0.0f : expf(lse[n] - top);  // a split without keys wrote zeros
      sum += lse[n];
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (has_keys && p.sinks != nullptr) sum += expf(p.sinks[h] - top);
    TESSERA_UNROLL
    for (int n = 0; n < kSplitsOfLane; ++n) {
      weights[thread_x() + n * kWarpSize] = has_keys ? lse[n] / sum : 0.0f;
    }
    if (thread_x() == 0) shared_lse = has_keys ? top + logf(sum) : -infinity();
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
          if (begin < p.num_splits) value += weights[begin] * early[n];
          begin += num_groups;
        }
      }
      TESSERA_UNROLL_BY(8)
      for (int split = begin; split < p.num_splits; split += num_groups)
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
