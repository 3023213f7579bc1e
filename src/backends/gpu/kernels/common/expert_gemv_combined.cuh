#pragma once

#include "common/expert_combined_rows.cuh"
#include "common/gemv.cuh"

// Weights of numbers: a thread takes groups of 8 columns of all of a row's experts.

namespace tessera::kernels {

template <class X, class W>
TESSERA_DEVICE void gemv_combined(const ExpertGemmParams& p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  const CombinedRow row(p);
  const int64 first_row = static_cast<int64>(block_x()) * kGemvRows;
  const auto groups = static_cast<int>(p.gemm.k / kGroupSize);
  float sum[kGemvRows] = {};
  add_biases(p, row, first_row, sum);
  int slot = 0, group = thread_x();
  for (;; group += kGemvThreads) {
    while (group >= groups) {
      group -= groups;
      ++slot;
    }
    if (slot >= p.routing.num_slots) break;
    PackedGroup<W> packed[kGemvRows];
    const unsigned char* const weight =
        static_cast<const unsigned char*>(p.gemm.weight.data) + row.experts[slot] * p.expert_bytes;
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r)
      packed[r].load(reinterpret_cast<const W*>(weight) + minimum(first_row + r, p.gemm.n - 1) * p.gemm.k,
                     group);
    float x[kGroupSize];
    load_typed<X>(row.x.data, slot * row.x.row_stride + group * kGroupSize, kGroupSize, true, x);
    const float factor = row.weights[slot];
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) {
      float w[kGroupSize];
      packed[r].get(w);
      float products = 0.0f;
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) products = fmaf(w[i], x[i], products);
      sum[r] = fmaf(factor, products, sum[r]);
    }
  }
  finish_combined(p, first_row, sum, kGemvWarps);
}

}  // namespace tessera::kernels
