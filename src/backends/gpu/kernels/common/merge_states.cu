// lse = log(exp(lse_a) + exp(lse_b)), o = exp(lse_a - lse) o_a + exp(lse_b - lse) o_b.  Flash-Decoding (Dao
// et al., 2023).
//
// Grid: (seq_len_q, heads, batch); one block a row, threads along head_dim.

#include "common/merge_states.h"
#include "common/types.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

template <class Rows>
TESSERA_DEVICE int64 row_offset(const Rows& x) {
  return block_z() * x.batch_stride + block_x() * x.seq_stride + block_y() * x.head_stride;
}

template <class T>
TESSERA_DEVICE void merge_states(const MergeStatesParams& p) {
  const float a = p.lse_a.data[row_offset(p.lse_a)];
  const float b = p.lse_b.data[row_offset(p.lse_b)];
  const float top = maximum_or_nan(a, b);
  const bool has_keys = top != -infinity();
  const float weight_a = has_keys && a != -infinity() ? expf(a - top) : 0.0f;
  const float weight_b = has_keys && b != -infinity() ? expf(b - top) : 0.0f;
  const float sum = weight_a + weight_b;
  const T* o_a = static_cast<const T*>(p.o_a.data) + row_offset(p.o_a);
  const T* o_b = static_cast<const T*>(p.o_b.data) + row_offset(p.o_b);
  T* o = static_cast<T*>(p.o.data) + row_offset(p.o);
  sync_threads();  // lse may be lse_a or lse_b: everyone has read them
  for (int d = thread_x(); d < p.head_dim; d += block_size()) {
    // A side without keys does not count, whatever its o holds.
    const float part_a = weight_a == 0.0f ? 0.0f : weight_a * to_float(o_a[d]);
    const float part_b = weight_b == 0.0f ? 0.0f : weight_b * to_float(o_b[d]);
    o[d] = from_float<T>(has_keys ? (part_a + part_b) / sum : 0.0f);
  }
  if (thread_x() == 0 && p.lse.data != nullptr)
    p.lse.data[row_offset(p.lse)] = has_keys ? top + logf(sum) : -infinity();
}

}  // namespace tessera::kernels

TESSERA_KERNEL(merge_states_f32, kMergeThreads)(const MergeStatesParams p) { merge_states<float>(p); }
TESSERA_KERNEL(merge_states_f16, kMergeThreads)(const MergeStatesParams p) { merge_states<f16>(p); }
TESSERA_KERNEL(merge_states_bf16, kMergeThreads)(const MergeStatesParams p) { merge_states<bf16>(p); }
