// Kernels whose outputs depend on single elements: the gated activations (Shazeer, "GLU Variants Improve
// Transformer", 2020), scale, softcap, causal mask, embedding.
//
// Grid: (rows * blocks_per_row), one block a part of a row; the embedding has one block a token.

#include "common/rows.cuh"
#include "common/score_terms.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

/// Group n of this thread in its block's part of a row.
TESSERA_DEVICE int64 elementwise_group(int blocks_per_row, int n) {
  const int64 part = block_x() % blocks_per_row;
  return (part * kElementwiseGroups + n) * kElementwiseThreads + thread_x();
}

template <class T>
TESSERA_DEVICE void gated_activation(const GatedActivationParams& p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 row = block_x() / p.blocks_per_row;
  float gate[kElementwiseGroups][kGroupSize];
  float up[kElementwiseGroups][kGroupSize];
  TESSERA_UNROLL
  for (int n = 0; n < kElementwiseGroups; ++n) {
    const int64 column = elementwise_group(p.blocks_per_row, n) * kGroupSize;
    if (column >= p.columns) continue;
    load_typed<T>(p.gate.data, row * p.gate.row_stride + column, kGroupSize, true, gate[n]);
    if (p.up.data != nullptr) {
      load_typed<T>(p.up.data, row * p.up.row_stride + column, kGroupSize, true, up[n]);
    } else {
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) up[n][i] = 1.0f;
    }
  }
  TESSERA_UNROLL
  for (int n = 0; n < kElementwiseGroups; ++n) {
    const int64 column = elementwise_group(p.blocks_per_row, n) * kGroupSize;
    if (column >= p.columns) continue;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) gate[n][i] = gated(p.activation, gate[n][i], up[n][i]);
    store_typed<T>(p.out.data, row * p.out.row_stride + column, kGroupSize, true, gate[n]);
  }
}

struct Scale {
  static TESSERA_DEVICE float apply(float x, float factor) { return x * factor; }
};

struct Softcap {
  static TESSERA_DEVICE float apply(float x, float cap) {
    return x == -infinity() ? x : cap * tanh_without_branches(x / cap);
  }
};

template <class Function, class T>
TESSERA_DEVICE void transform(const TransformParams& p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  T* row = static_cast<T*>(p.x.data) + block_x() / p.blocks_per_row * p.x.row_stride;
  PackedGroup<T> group[kElementwiseGroups];
  TESSERA_UNROLL
  for (int n = 0; n < kElementwiseGroups; ++n) {
    const int64 index = elementwise_group(p.blocks_per_row, n);
    if (index * kGroupSize < p.columns) group[n].load(row, index);
  }
  TESSERA_UNROLL
  for (int n = 0; n < kElementwiseGroups; ++n) {
    const int64 index = elementwise_group(p.blocks_per_row, n);
    if (index * kGroupSize >= p.columns) continue;
    float v[kGroupSize];
    group[n].get(v);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) v[i] = Function::apply(v[i], p.number);
    group[n].set(v);
    group[n].store(row, index);
  }
}

template <class Function>
TESSERA_DEVICE void transform_any(const TransformParams& p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 row = block_x() / p.blocks_per_row;
  constexpr int kElements = kElementwiseThreads * kElementwiseGroups * kGroupSize;
  const int64 begin = block_x() % p.blocks_per_row * static_cast<int64>(kElements);
  const int64 end = minimum(begin + kElements, p.columns);
  for (int64 column = begin + thread_x(); column < end; column += kElementwiseThreads) {
    const int64 offset = row * p.x.row_stride + column;
    store_scalar(p.x, offset, Function::apply(load_scalar(p.x, offset), p.number));
  }
}

}  // namespace tessera::kernels

// gate, up and out of one type at multiples of 16 bytes, and any.
TESSERA_KERNEL(gated_activation_f32, kElementwiseThreads)(const GatedActivationParams p) {
  gated_activation<float>(p);
}
TESSERA_KERNEL(gated_activation_f16, kElementwiseThreads)(const GatedActivationParams p) {
  gated_activation<f16>(p);
}
TESSERA_KERNEL(gated_activation_bf16, kElementwiseThreads)(const GatedActivationParams p) {
  gated_activation<bf16>(p);
}
TESSERA_KERNEL(gated_activation_any, kElementwiseThreads)(const GatedActivationParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 row = block_x() / p.blocks_per_row;
  constexpr int kElements = kElementwiseThreads * kElementwiseGroups * kGroupSize;
  const int64 begin = block_x() % p.blocks_per_row * static_cast<int64>(kElements);
  const int64 end = minimum(begin + kElements, p.columns);
  for (int64 column = begin + thread_x(); column < end; column += kElementwiseThreads) {
    const float gate = load_scalar(p.gate, row * p.gate.row_stride + column);
    const float up = p.up.data != nullptr ? load_scalar(p.up, row * p.up.row_stride + column) : 1.0f;
    store_scalar(p.out, row * p.out.row_stride + column, gated(p.activation, gate, up));
  }
}

// x at multiples of 16 bytes in whole groups, and any.
TESSERA_KERNEL(scale_f32, kElementwiseThreads)(const TransformParams p) { transform<Scale, float>(p); }
TESSERA_KERNEL(scale_f16, kElementwiseThreads)(const TransformParams p) { transform<Scale, f16>(p); }
TESSERA_KERNEL(scale_bf16, kElementwiseThreads)(const TransformParams p) { transform<Scale, bf16>(p); }
TESSERA_KERNEL(scale_any, kElementwiseThreads)(const TransformParams p) { transform_any<Scale>(p); }
TESSERA_KERNEL(softcap_f32, kElementwiseThreads)(const TransformParams p) { transform<Softcap, float>(p); }
TESSERA_KERNEL(softcap_f16, kElementwiseThreads)(const TransformParams p) { transform<Softcap, f16>(p); }
TESSERA_KERNEL(softcap_bf16, kElementwiseThreads)(const TransformParams p) { transform<Softcap, bf16>(p); }
TESSERA_KERNEL(softcap_any, kElementwiseThreads)(const TransformParams p) { transform_any<Softcap>(p); }

TESSERA_KERNEL(causal_mask_any, kElementwiseThreads)(const CausalMaskParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 row = block_x() / p.blocks_per_row;
  for (int n = 0; n < kElementwiseGroups; ++n) {
    const int64 group = elementwise_group(p.blocks_per_row, n);
    const int count = group_count(p.columns, group);
    const int64 column = group * kGroupSize;
    // Differences of indices, since shift may be any number.
    if (count <= 0 || column + count - 1 - row <= p.shift) continue;
    const int64 offset = row * p.x.row_stride + column;
    if (column - row > p.shift) {
      const float hidden[kGroupSize] = {-infinity(), -infinity(), -infinity(), -infinity(),
                                        -infinity(), -infinity(), -infinity(), -infinity()};
      store_group<kAnyType>(p.x, offset, count, hidden);
      continue;
    }
    for (int i = 0; i < count; ++i) {
      if (column + i - row > p.shift) store_scalar(p.x, offset + i, -infinity());
    }
  }
}

TESSERA_KERNEL(embedding_any, kElementwiseThreads)(const EmbeddingParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 row = block_x();
  const int64 token = p.tokens[row];
  const bool is_known = token >= 0 && token < p.vocab_size;
  for (int64 group = thread_x(); group * kGroupSize < p.columns; group += kElementwiseThreads) {
    const int count = group_count(p.columns, group);
    const int64 column = group * kGroupSize;
    float v[kGroupSize] = {};
    if (is_known) load_weight_group(p.table, token * p.columns + column, count, v);
    store_group<kAnyType>(p.out, row * p.out.row_stride + column, count, v);
  }
}
