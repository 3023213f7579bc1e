// Row softmax: out = exp(x - max) / sum; a row of -inf gives zeros, a row with a NaN gives NaN.
//
// Grid: (rows); one block a row. Where all rows stand at multiples of 16 bytes, a thread keeps up to 4 groups
// of 8 columns in registers; softmax_any takes everything else, one element at a time.

#include "common/rows.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

/// What to subtract: in a row where all is hidden, nothing, so that exp gives zeros and a NaN stays one.
TESSERA_DEVICE float softmax_shift(float max) { return max == -infinity() ? 0.0f : max; }
TESSERA_DEVICE float softmax_scale(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

/// exp(x), as exactly as results of type T need.
TESSERA_DEVICE float softmax_exp(float x, float) { return expf(x); }
template <class T>
TESSERA_DEVICE float softmax_exp(float x, T) {
  return exp_approximately(x);
}

template <class T>
TESSERA_DEVICE void softmax(const SoftmaxParams& p) {
  TESSERA_SHARED(scratch, float[kMaxWarps]);
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 x_row = block_x() * p.x.row_stride;
  const int64 out_row = block_x() * p.out.row_stride;
  const int groups = static_cast<int>(p.columns) / kGroupSize;

  PackedGroup<T> x[kSoftmaxGroups];
  TESSERA_UNROLL
  for (int n = 0; n < kSoftmaxGroups; ++n) {
    const int group = thread_x() + n * block_size();
    if (group < groups) x[n].load(static_cast<const T*>(p.x.data) + x_row, group);
  }
  float max = -infinity();
  TESSERA_UNROLL
  for (int n = 0; n < kSoftmaxGroups; ++n) {
    if (thread_x() + n * block_size() >= groups) continue;
    float v[kGroupSize];
    x[n].get(v);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) max = fmaxf(max, v[i]);
  }
  const float shift = softmax_shift(block_reduce(max, -infinity(), scratch, Largest()));

  float sum = 0.0f;
  TESSERA_UNROLL
  for (int n = 0; n < kSoftmaxGroups; ++n) {
    if (thread_x() + n * block_size() >= groups) continue;
    float v[kGroupSize];
    x[n].get(v);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) sum += v[i] = softmax_exp(v[i] - shift, T());
    if constexpr (sizeof(T) == sizeof(float)) x[n].set(v);
  }
  const float scale = softmax_scale(block_reduce(sum, 0.0f, scratch, Add()));

  TESSERA_UNROLL
  for (int n = 0; n < kSoftmaxGroups; ++n) {
    const int group = thread_x() + n * block_size();
    if (group >= groups) continue;
    float v[kGroupSize];
    x[n].get(v);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      // Of 16-bit elements, taking the exponential again costs less than the registers that keep it.
      if constexpr (sizeof(T) != sizeof(float)) v[i] = softmax_exp(v[i] - shift, T());
      v[i] *= scale;
    }
    store_typed<T>(p.out.data, out_row + group * kGroupSize, kGroupSize, true, v);
  }
}

}  // namespace tessera::kernels

TESSERA_KERNEL(softmax_f32, kSoftmaxThreads)(const SoftmaxParams p) { softmax<float>(p); }
TESSERA_KERNEL(softmax_f16, kSoftmaxThreads)(const SoftmaxParams p) { softmax<f16>(p); }
TESSERA_KERNEL(softmax_bf16, kSoftmaxThreads)(const SoftmaxParams p) { softmax<bf16>(p); }

TESSERA_KERNEL(softmax_any, kSoftmaxThreads)(const SoftmaxParams p) {
  TESSERA_SHARED(scratch, float[kMaxWarps]);
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 x_row = block_x() * p.x.row_stride;
  const int64 out_row = block_x() * p.out.row_stride;
  float max = -infinity();
  for (int64 column = thread_x(); column < p.columns; column += block_size())
    max = Largest()(max, load_scalar(p.x, x_row + column));
  const float shift = softmax_shift(block_reduce(max, -infinity(), scratch, Largest()));
  float sum = 0.0f;
  for (int64 column = thread_x(); column < p.columns; column += block_size())
    sum += expf(load_scalar(p.x, x_row + column) - shift);
  const float scale = softmax_scale(block_reduce(sum, 0.0f, scratch, Add()));
  // In place, each element is read before it is written, by the same thread.
  for (int64 column = thread_x(); column < p.columns; column += block_size())
    store_scalar(p.out, out_row + column, expf(load_scalar(p.x, x_row + column) - shift) * scale);
}
