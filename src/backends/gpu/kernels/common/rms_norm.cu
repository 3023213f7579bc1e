// y = x / sqrt(mean(x^2) + eps) * weight, after residual += x if there is one.  Zhang & Sennrich (2019).
//
// Grid: (rows * heads); one block a row. Where all rows stand at multiples of 16 bytes, a thread keeps up to
// 4 groups of 8 columns in registers between the sum and the result; rms_norm_any takes everything else, one
// element at a time. Rows of at most 256 columns without a residual, as a prompt's thousands of heads are,
// share warps (rms_norm_short): a group a lane, whole rows in as many lanes as the next power of two.

#include "common/rows.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

struct NoResidual {};

/// The type of what is normed: x's, or the residual's after the sum.
template <class In, class Residual>
struct NormedType {
  using Type = Residual;
};
template <class In>
struct NormedType<In, NoResidual> {
  using Type = In;
};

template <class In, class Residual, class Out, class W>
TESSERA_DEVICE void rms_norm(const RmsNormParams& p) {
  constexpr bool kHasResidual = !is_same<Residual, NoResidual>;
  using Normed = typename NormedType<In, Residual>::Type;
  TESSERA_SHARED(scratch, float[kMaxWarps]);
  allow_next_kernel();
  const int64 row = block_x() / p.heads;
  const int64 head = block_x() % p.heads;
  const int64 x_row = row * p.x.row_stride + head * p.head_stride;
  const int64 out_row = row * p.out.row_stride + head * p.head_stride;
  const int groups = static_cast<int>(p.columns) / kGroupSize;

  if (block_x() == 0 && thread_x() == 0)
    prefetch_to_l2(p.weight.data, static_cast<unsigned>(p.columns * static_cast<int64>(sizeof(W))));
  wait_for_prior_kernels();
  PackedGroup<Normed> v[kNormGroups];
  const In* x = static_cast<const In*>(p.x.data) + x_row;
  float sum = 0.0f;
  if constexpr (kHasResidual) {
    Residual* residual = static_cast<Residual*>(p.residual.data) + row * p.residual.row_stride;
    PackedGroup<In> delta[kNormGroups];
    TESSERA_UNROLL
    for (int n = 0; n < kNormGroups; ++n) {
      const int group = thread_x() + n * block_size();
      if (group >= groups) continue;
      delta[n].load(x, group);
      v[n].load(residual, group);
    }
    TESSERA_UNROLL
    for (int n = 0; n < kNormGroups; ++n) {
      const int group = thread_x() + n * block_size();
      if (group >= groups) continue;
      float a[kGroupSize], b[kGroupSize];
      v[n].get(a);
      delta[n].get(b);
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) a[i] += b[i];
      v[n].set(a);  // what is normed is the sum as the residual's type has it
      v[n].store(residual, group);
    }
  } else {
    TESSERA_UNROLL
    for (int n = 0; n < kNormGroups; ++n) {
      const int group = thread_x() + n * block_size();
      if (group < groups) v[n].load(x, group);
    }
  }
  TESSERA_UNROLL
  for (int n = 0; n < kNormGroups; ++n) {
    if (thread_x() + n * block_size() >= groups) continue;
    float a[kGroupSize];
    v[n].get(a);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) sum += a[i] * a[i];
  }

  sum = block_reduce(sum, 0.0f, scratch, Add());
  float shrink = 1.0f;
  if (sum == infinity()) {
    shrink = kNormShrink;
    sum = 0.0f;
    TESSERA_UNROLL
    for (int n = 0; n < kNormGroups; ++n) {
      if (thread_x() + n * block_size() >= groups) continue;
      float a[kGroupSize];
      v[n].get(a);
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) sum += a[i] * shrink * (a[i] * shrink);
    }
    sum = block_reduce(sum, 0.0f, scratch, Add());
  }
  const float norm = 1.0f / sqrtf(sum / static_cast<float>(p.columns) + p.eps * shrink * shrink);

  TESSERA_UNROLL
  for (int n = 0; n < kNormGroups; ++n) {
    const int group = thread_x() + n * block_size();
    if (group >= groups) continue;
    float a[kGroupSize], w[kGroupSize];
    v[n].get(a);
    load_typed<W>(p.weight.data, group * kGroupSize, kGroupSize, true, w);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) a[i] = a[i] * shrink * norm * w[i];
    store_typed<Out>(p.out.data, out_row + group * kGroupSize, kGroupSize, true, a);
  }
}

template <class In, class Out, class W>
TESSERA_DEVICE void rms_norm_short(const RmsNormParams& p) {
  allow_next_kernel();
  const int groups = static_cast<int>(p.columns) / kGroupSize;
  int lanes = 1;
  while (lanes < groups) lanes *= 2;
  const int group = thread_x() % lanes;
  const int64 index = static_cast<int64>(block_x()) * (block_size() / lanes) + thread_x() / lanes;
  const bool exists = index < p.rows * p.heads && group < groups;
  const int64 row = index / p.heads;
  const int64 head = index - row * p.heads;
  wait_for_prior_kernels();
  float a[kGroupSize] = {};
  if (exists) {
    PackedGroup<In> v;
    v.load(static_cast<const In*>(p.x.data) + row * p.x.row_stride + head * p.head_stride, group);
    v.get(a);
  }
  const auto sum_of_squares = [&](float shrink) {
    float sum = 0.0f;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) sum += a[i] * shrink * (a[i] * shrink);
    for (int mask = 1; mask < lanes; mask *= 2) sum += shuffle_xor(sum, mask);
    return sum;
  };
  float sum = sum_of_squares(1.0f);
  float shrink = 1.0f;
  if (warp_any(sum == infinity())) {
    const float smaller = sum_of_squares(kNormShrink);
    if (sum == infinity()) {
      shrink = kNormShrink;
      sum = smaller;
    }
  }
  if (!exists) return;
  const float norm = 1.0f / sqrtf(sum / static_cast<float>(p.columns) + p.eps * shrink * shrink);
  float w[kGroupSize];
  load_typed<W>(p.weight.data, group * kGroupSize, kGroupSize, true, w);
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) a[i] = a[i] * shrink * norm * w[i];
  store_typed<Out>(p.out.data, row * p.out.row_stride + head * p.head_stride + group * kGroupSize, kGroupSize,
                   true, a);
}

/// A value to be normed; the residual must already hold the sum.
TESSERA_DEVICE float norm_input(const RmsNormParams& p, int64 x_row, int64 residual_row, int64 column) {
  return p.residual.data != nullptr ? load_scalar(p.residual, residual_row + column)
                                    : load_scalar(p.x, x_row + column);
}

}  // namespace tessera::kernels

// Each element type of the output has kernels for weights of the same type and of fp32, and a residual of
// none, the same type, or fp32.
#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
#define TESSERA_SHORT_NORMS_F32(X) X(f32_none_f32_f32, float, NoResidual, float, float)
#define TESSERA_NORMS_F32(X) TESSERA_SHORT_NORMS_F32(X) X(f32_f32_f32_f32, float, float, float, float)
#else
#define TESSERA_SHORT_NORMS_F32(X)
#define TESSERA_NORMS_F32(X)
#endif
#define TESSERA_SHORT_NORMS_16BIT(X, name, T)          \
  X(name##_none_##name##_##name, T, NoResidual, T, T)  \
  X(name##_none_##name##_f32, T, NoResidual, T, float) \
  X(f32_none_##name##_##name, float, NoResidual, T, T) \
  X(f32_none_##name##_f32, float, NoResidual, T, float)
#define TESSERA_NORMS_16BIT(X, name, T)          \
  TESSERA_SHORT_NORMS_16BIT(X, name, T)          \
  X(name##_##name##_##name##_##name, T, T, T, T) \
  X(name##_f32_##name##_##name, T, float, T, T)  \
  X(name##_f32_##name##_f32, T, float, T, float)
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
#define TESSERA_SHORT_NORMS_F16(X) TESSERA_SHORT_NORMS_16BIT(X, f16, f16)
#define TESSERA_NORMS_F16(X) TESSERA_NORMS_16BIT(X, f16, f16)
#else
#define TESSERA_SHORT_NORMS_F16(X)
#define TESSERA_NORMS_F16(X)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 3
#define TESSERA_SHORT_NORMS_BF16(X) TESSERA_SHORT_NORMS_16BIT(X, bf16, bf16)
#define TESSERA_NORMS_BF16(X) TESSERA_NORMS_16BIT(X, bf16, bf16)
#else
#define TESSERA_SHORT_NORMS_BF16(X)
#define TESSERA_NORMS_BF16(X)
#endif
#define TESSERA_SHORT_NORMS(X) \
  TESSERA_SHORT_NORMS_F32(X) TESSERA_SHORT_NORMS_F16(X) TESSERA_SHORT_NORMS_BF16(X)
#define TESSERA_NORMS(X) TESSERA_NORMS_F32(X) TESSERA_NORMS_F16(X) TESSERA_NORMS_BF16(X)

#define TESSERA_NORM_KERNEL(name, In, Residual, Out, W) \
  TESSERA_KERNEL(rms_norm_##name, kNormThreads)(const RmsNormParams p) { rms_norm<In, Residual, Out, W>(p); }
TESSERA_NORMS(TESSERA_NORM_KERNEL)
#define TESSERA_SHORT_NORM_KERNEL(name, In, Residual, Out, W)                       \
  TESSERA_KERNEL(rms_norm_short_##name, kShortNormThreads)(const RmsNormParams p) { \
    rms_norm_short<In, Out, W>(p);                                                  \
  }
TESSERA_SHORT_NORMS(TESSERA_SHORT_NORM_KERNEL)

TESSERA_KERNEL(rms_norm_any, kNormThreads)(const RmsNormParams p) {
  TESSERA_SHARED(scratch, float[kMaxWarps]);
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 row = block_x() / p.heads;
  const int64 head = block_x() % p.heads;
  const int64 x_row = row * p.x.row_stride + head * p.head_stride;
  const int64 out_row = row * p.out.row_stride + head * p.head_stride;
  const int64 residual_row = row * p.residual.row_stride;

  // What a thread wrote only it reads again.
  float sum = 0.0f;
  for (int64 column = thread_x(); column < p.columns; column += block_size()) {
    float x = load_scalar(p.x, x_row + column);
    if (p.residual.data != nullptr) {
      x = rounded_as(p.residual, load_scalar(p.residual, residual_row + column) + x);
      store_scalar(p.residual, residual_row + column, x);
    }
    sum += x * x;
  }
  sum = block_reduce(sum, 0.0f, scratch, Add());
  float shrink = 1.0f;
  if (sum == infinity()) {
    shrink = kNormShrink;
    sum = 0.0f;
    for (int64 column = thread_x(); column < p.columns; column += block_size()) {
      const float x = norm_input(p, x_row, residual_row, column) * shrink;
      sum += x * x;
    }
    sum = block_reduce(sum, 0.0f, scratch, Add());
  }
  const float norm = 1.0f / sqrtf(sum / static_cast<float>(p.columns) + p.eps * shrink * shrink);
  for (int64 column = thread_x(); column < p.columns; column += block_size()) {
    const float x = norm_input(p, x_row, residual_row, column);
    store_scalar(p.out, out_row + column, x * shrink * norm * load_scalar(p.weight, column));
  }
}
