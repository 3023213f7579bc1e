// y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight (+ bias), after residual += x if there is
// one. Ba, Kiros & Hinton (2016).
//
// Grid: (rows * heads); one block a row or head. Threads take groups of 8 columns; what they read again, for
// the variance and for the result, they have read or written themselves and find in caches.

#include "common/rows.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

struct Itself {
  static TESSERA_DEVICE float apply(float x) { return x; }
};

struct Square {
  static TESSERA_DEVICE float apply(float x) { return x * x; }
};

/// The mean over a row of Function(shrink x - center).
template <class Function>
TESSERA_DEVICE float row_mean(const RowsArgument& x, int64 offset, int64 columns, float shrink, float center,
                              float* scratch) {
  float sum = 0.0f;
  for (int64 group = thread_x(); group * kGroupSize < columns; group += block_size()) {
    const int count = group_count(columns, group);
    float v[kGroupSize];
    load_group<kAnyType>(x, offset + group * kGroupSize, count, v);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (i < count) sum += Function::apply(v[i] * shrink - center);
    }
  }
  return block_reduce(sum, 0.0f, scratch, Add()) / static_cast<float>(columns);
}

TESSERA_DEVICE void add_to_residual(const LayerNormParams& p, int64 row) {
  for (int64 group = thread_x(); group * kGroupSize < p.columns; group += block_size()) {
    const int count = group_count(p.columns, group);
    const int64 column = group * kGroupSize;
    float a[kGroupSize], b[kGroupSize];
    load_group<kAnyType>(p.x, row * p.x.row_stride + column, count, a);
    load_group<kAnyType>(p.residual, row * p.residual.row_stride + column, count, b);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) b[i] += a[i];
    store_group<kAnyType>(p.residual, row * p.residual.row_stride + column, count, b);
  }
}

}  // namespace tessera::kernels

TESSERA_KERNEL(layer_norm_any, kNormThreads)(const LayerNormParams p) {
  TESSERA_SHARED(scratch, float[kMaxWarps]);
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 row = block_x() / p.heads;
  const int64 head = block_x() % p.heads;
  const int64 first = head * p.columns;  // of weight and bias
  const bool has_residual = p.residual.data != nullptr;
  if (has_residual) add_to_residual(p, row);
  const RowsArgument& normed = has_residual ? p.residual : p.x;
  const int64 offset = row * normed.row_stride + head * p.head_stride;

  float shrink = 1.0f;
  float mean = row_mean<Itself>(normed, offset, p.columns, shrink, 0.0f, scratch);
  float variance = row_mean<Square>(normed, offset, p.columns, shrink, mean, scratch);
  if (variance == infinity()) {
    shrink = kNormShrink;
    mean = row_mean<Itself>(normed, offset, p.columns, shrink, 0.0f, scratch);
    variance = row_mean<Square>(normed, offset, p.columns, shrink, mean, scratch);
  }
  const float norm = 1.0f / sqrtf(variance + p.eps * shrink * shrink);

  for (int64 group = thread_x(); group * kGroupSize < p.columns; group += block_size()) {
    const int count = group_count(p.columns, group);
    const int64 column = group * kGroupSize;
    float v[kGroupSize], w[kGroupSize], bias[kGroupSize] = {};
    load_group<kAnyType>(normed, offset + column, count, v);
    load_group<kAnyType>(p.weight, first + column, count, w);
    if (p.bias.data != nullptr) load_group<kAnyType>(p.bias, first + column, count, bias);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) v[i] = (v[i] * shrink - mean) * norm * w[i] + bias[i];
    store_group<kAnyType>(p.out, row * p.out.row_stride + head * p.head_stride + column, count, v);
  }
}
