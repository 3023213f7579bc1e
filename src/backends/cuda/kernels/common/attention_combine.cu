// Merges the splits of a row: lse = log(sum exp(lse_s)), o = sum exp(lse_s - lse) o_s, with the sink's logit
// in the denominator if there is one.  Flash-Decoding (Dao et al., 2023).  Also merge_states of two results.
//
// Grid: (rows, heads, batch); one block a row, threads along head_dim.

#include "common/score_terms.cuh"

using namespace tessera::kernels;

constexpr int kCombineThreads = 128;

namespace tessera::kernels {

constexpr int kMaxSplits = 128;

template <class T>
TESSERA_DEVICE void attention_combine(const AttentionParams& p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_SHARED(weights, float[kMaxSplits]);
  TESSERA_SHARED(shared_lse, float);
  const int i = block_x();
  const int h = block_y();
  const int b = p.batch_begin + block_z();
  const Sequence s = load_sequence(p, b);
  if (i >= s.len_q) return;
  const int64 rows = static_cast<int64>(p.batch) * p.num_heads * p.seq_len_q;
  const int64 row = partial_row(p, b, h, i);
  if (thread_x() < kWarpSize) {
    // The first warp turns each split's lse into its share of the whole.
    float top = -infinity();
    for (int split = thread_x(); split < p.num_splits; split += kWarpSize) {
      top = maximum(top, p.lse_partial[split * rows + row]);
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) top = maximum(top, shuffle_xor(top, mask));
    const bool has_keys = top != -infinity();
    if (has_keys && p.sinks != nullptr) top = maximum(top, p.sinks[h]);
    float sum = 0.0f;
    for (int split = thread_x(); split < p.num_splits; split += kWarpSize) {
      const float lse = p.lse_partial[split * rows + row];
      const float weight = lse == -infinity() ? 0.0f : expf(lse - top);  // a split without keys wrote zeros
      weights[split] = weight;
      sum += weight;
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (has_keys && p.sinks != nullptr) sum += expf(p.sinks[h] - top);
    sync_warp();
    for (int split = thread_x(); split < p.num_splits; split += kWarpSize)
      weights[split] = has_keys ? weights[split] / sum : 0.0f;
    if (thread_x() == 0) shared_lse = has_keys ? top + logf(sum) : -infinity();
  }
  sync_threads();
  T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, s, b, h, i);
  const float* partial = p.o_partial + row * p.head_dim_v;
  const int64 stride = rows * p.head_dim_v;
  for (int d = thread_x(); d < p.head_dim_v; d += block_size()) {
    float value = 0.0f;
    TESSERA_UNROLL_BY(8)
    for (int split = 0; split < p.num_splits; ++split) value += weights[split] * partial[split * stride + d];
    out[d] = from_float<T>(value);
  }
  if (thread_x() == 0 && p.lse != nullptr) p.lse[lse_offset(p, s, b, h, i)] = shared_lse;
}

}  // namespace tessera::kernels

TESSERA_KERNEL(attention_combine_f32, kCombineThreads)(const AttentionParams p) {
  attention_combine<float>(p);
}
TESSERA_KERNEL(attention_combine_f16, kCombineThreads)(const AttentionParams p) { attention_combine<f16>(p); }
TESSERA_KERNEL(attention_combine_bf16, kCombineThreads)(const AttentionParams p) {
  attention_combine<bf16>(p);
}
