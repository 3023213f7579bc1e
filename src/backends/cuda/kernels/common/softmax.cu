// Row softmax: out = exp(x - max) / sum; a row of -inf gives zeros, a row with a NaN gives NaN.
//
// Grid: (rows); one block a row, threads along groups of 8 columns. The first groups of a thread stay in
// registers; those of longer rows are read again.

#include "common/rows.cuh"

using namespace tessera::kernels;

constexpr int kSoftmaxThreads = 512;

namespace tessera::kernels {

constexpr int kSoftmaxCachedGroups = 4;

/// exp(x - max); 0 in a row where all is hidden.
TESSERA_DEVICE float softmax_weight(float x, float max) {
  return max == -infinity() && x == x ? 0.0f : expf(x - max);
}

template <int kType>
TESSERA_DEVICE void softmax(const SoftmaxParams& p) {
  TESSERA_SHARED(scratch, float[kMaxWarps]);
  const int64 x_row = block_x() * p.x.row_stride;
  const int64 out_row = block_x() * p.out.row_stride;
  const int64 groups = (p.columns + kGroupSize - 1) / kGroupSize;
  const int64 first_uncached = thread_x() + static_cast<int64>(kSoftmaxCachedGroups) * block_size();

  float cached[kSoftmaxCachedGroups][kGroupSize];
  float max = -infinity();
  TESSERA_UNROLL
  for (int n = 0; n < kSoftmaxCachedGroups; ++n) {
    const int64 group = thread_x() + static_cast<int64>(n) * block_size();
    const int count = group < groups ? group_count(p.columns, group) : 0;
    if (count > 0) load_group<kType>(p.x, x_row + group * kGroupSize, count, cached[n]);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (i < count) max = Largest()(max, cached[n][i]);
    }
  }
  for (int64 group = first_uncached; group < groups; group += block_size()) {
    const int count = group_count(p.columns, group);
    float v[kGroupSize];
    load_group<kType>(p.x, x_row + group * kGroupSize, count, v);
    for (int i = 0; i < count; ++i) max = Largest()(max, v[i]);
  }
  max = block_reduce(max, -infinity(), scratch, Largest());

  float sum = 0.0f;
  TESSERA_UNROLL
  for (int n = 0; n < kSoftmaxCachedGroups; ++n) {
    const int64 group = thread_x() + static_cast<int64>(n) * block_size();
    const int count = group < groups ? group_count(p.columns, group) : 0;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (i < count) sum += cached[n][i] = softmax_weight(cached[n][i], max);
    }
  }
  for (int64 group = first_uncached; group < groups; group += block_size()) {
    const int count = group_count(p.columns, group);
    float v[kGroupSize];
    load_group<kType>(p.x, x_row + group * kGroupSize, count, v);
    for (int i = 0; i < count; ++i) sum += softmax_weight(v[i], max);
  }
  sum = block_reduce(sum, 0.0f, scratch, Add());
  const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;

  TESSERA_UNROLL
  for (int n = 0; n < kSoftmaxCachedGroups; ++n) {
    const int64 group = thread_x() + static_cast<int64>(n) * block_size();
    if (group >= groups) continue;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) cached[n][i] *= scale;
    store_group<kType>(p.out, out_row + group * kGroupSize, group_count(p.columns, group), cached[n]);
  }
  for (int64 group = first_uncached; group < groups; group += block_size()) {
    const int count = group_count(p.columns, group);
    float v[kGroupSize];
    load_group<kType>(p.x, x_row + group * kGroupSize, count, v);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) v[i] = softmax_weight(v[i], max) * scale;
    store_group<kType>(p.out, out_row + group * kGroupSize, count, v);
  }
}

}  // namespace tessera::kernels

TESSERA_KERNEL(softmax_f32, kSoftmaxThreads)(const SoftmaxParams p) { softmax<kElementF32>(p); }
TESSERA_KERNEL(softmax_f16, kSoftmaxThreads)(const SoftmaxParams p) { softmax<kElementF16>(p); }
TESSERA_KERNEL(softmax_bf16, kSoftmaxThreads)(const SoftmaxParams p) { softmax<kElementBF16>(p); }
TESSERA_KERNEL(softmax_any, kSoftmaxThreads)(const SoftmaxParams p) { softmax<kAnyType>(p); }
