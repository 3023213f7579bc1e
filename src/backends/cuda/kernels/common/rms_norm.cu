// y = x / sqrt(mean(x^2) + eps) * weight, after residual += x if there is one.  Zhang & Sennrich (2019).
//
// Grid: (rows * heads); one block a row, threads along groups of 8 columns. The first groups of a thread stay
// in registers between the sum and the result; those of longer rows are read again.

#include "common/rows.cuh"

using namespace tessera::kernels;

constexpr int kNormThreads = 512;

namespace tessera::kernels {

constexpr int kNormCachedGroups = 4;

/// The values to be normed of one group, after the residual was added (and written back).
template <int kType>
TESSERA_DEVICE void load_norm_group(const RmsNormParams& p, int64 x_offset, int64 residual_offset, int count,
                                    float (&v)[kGroupSize]) {
  load_group<kType>(p.x, x_offset, count, v);
  if (p.residual.data == nullptr) return;
  float sum[kGroupSize];
  load_group<kAnyType>(p.residual, residual_offset, count, sum);
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) v[i] = rounded_as(p.residual, sum[i] + v[i]);
  store_group<kAnyType>(p.residual, residual_offset, count, v);
}

/// The same values again, once the residual was written.
template <int kType>
TESSERA_DEVICE void read_norm_group(const RmsNormParams& p, int64 x_offset, int64 residual_offset, int count,
                                    float (&v)[kGroupSize]) {
  if (p.residual.data != nullptr) {
    load_group<kAnyType>(p.residual, residual_offset, count, v);
  } else {
    load_group<kType>(p.x, x_offset, count, v);
  }
}

template <int kType>
TESSERA_DEVICE void store_norm_group(const RmsNormParams& p, int64 out_offset, int64 column, int count,
                                     float shrink, float norm, const float (&v)[kGroupSize]) {
  float weight[kGroupSize];
  float y[kGroupSize];
  load_group<kAnyType>(p.weight, column, count, weight);
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) y[i] = v[i] * shrink * norm * weight[i];
  store_group<kType>(p.out, out_offset, count, y);
}

template <int kType>
TESSERA_DEVICE void rms_norm(const RmsNormParams& p) {
  TESSERA_SHARED(scratch, float[kMaxWarps]);
  const int64 row = block_x() / p.heads;
  const int64 head = block_x() % p.heads;
  const int64 x_row = row * p.x.row_stride + head * p.head_stride;
  const int64 out_row = row * p.out.row_stride + head * p.head_stride;
  const int64 residual_row = row * p.residual.row_stride;
  const int64 groups = (p.columns + kGroupSize - 1) / kGroupSize;

  float cached[kNormCachedGroups][kGroupSize];
  float sum = 0.0f;
  TESSERA_UNROLL
  for (int n = 0; n < kNormCachedGroups; ++n) {
    const int64 group = thread_x() + static_cast<int64>(n) * block_size();
    if (group >= groups) continue;
    const int64 column = group * kGroupSize;
    load_norm_group<kType>(p, x_row + column, residual_row + column, group_count(p.columns, group),
                           cached[n]);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) sum += cached[n][i] * cached[n][i];
  }
  const int64 first_uncached = thread_x() + static_cast<int64>(kNormCachedGroups) * block_size();
  for (int64 group = first_uncached; group < groups; group += block_size()) {
    const int64 column = group * kGroupSize;
    float v[kGroupSize];
    load_norm_group<kType>(p, x_row + column, residual_row + column, group_count(p.columns, group), v);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) sum += v[i] * v[i];
  }
  sum = block_reduce(sum, 0.0f, scratch, Add());
  // Squares that overflow are taken again of numbers made smaller; the division undoes it.
  float shrink = 1.0f;
  if (sum == infinity()) {
    shrink = 0x1p-70f;
    sum = 0.0f;
    for (int64 group = thread_x(); group < groups; group += block_size()) {
      float v[kGroupSize];
      read_norm_group<kType>(p, x_row + group * kGroupSize, residual_row + group * kGroupSize,
                             group_count(p.columns, group), v);
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) sum += v[i] * shrink * (v[i] * shrink);
    }
    sum = block_reduce(sum, 0.0f, scratch, Add());
  }
  const float norm = 1.0f / sqrtf(sum / static_cast<float>(p.columns) + p.eps * shrink * shrink);

  TESSERA_UNROLL
  for (int n = 0; n < kNormCachedGroups; ++n) {
    const int64 group = thread_x() + static_cast<int64>(n) * block_size();
    if (group >= groups) continue;
    const int64 column = group * kGroupSize;
    store_norm_group<kType>(p, out_row + column, column, group_count(p.columns, group), shrink, norm,
                            cached[n]);
  }
  for (int64 group = first_uncached; group < groups; group += block_size()) {
    const int64 column = group * kGroupSize;
    const int count = group_count(p.columns, group);
    float v[kGroupSize];
    read_norm_group<kType>(p, x_row + column, residual_row + column, count, v);
    store_norm_group<kType>(p, out_row + column, column, count, shrink, norm, v);
  }
}

}  // namespace tessera::kernels

// x and out of one type, and any types.
TESSERA_KERNEL(rms_norm_f32, kNormThreads)(const RmsNormParams p) { rms_norm<kElementF32>(p); }
TESSERA_KERNEL(rms_norm_f16, kNormThreads)(const RmsNormParams p) { rms_norm<kElementF16>(p); }
TESSERA_KERNEL(rms_norm_bf16, kNormThreads)(const RmsNormParams p) { rms_norm<kElementBF16>(p); }
TESSERA_KERNEL(rms_norm_any, kNormThreads)(const RmsNormParams p) { rms_norm<kAnyType>(p); }
