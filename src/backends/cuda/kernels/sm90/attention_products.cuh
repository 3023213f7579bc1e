#pragma once

#include "sm90/attention_operands.cuh"

// A warpgroup's products of attention_wgmma.cu.

namespace tessera::kernels {

/// Starts scores = q k^T.
TESSERA_DEVICE void start_q_k(unsigned q, unsigned k, float (&scores)[kBlockN / 2]) {
  pin_registers(scores);
  wgmma_fence();
  TESSERA_UNROLL
  for (int step = 0; step < kHeadDimQk / 16; ++step) {
    Wgmma<T, kBlockN>::rows_rows(scores, rows_at(q, step / 4 * kQPanelBytes + step % 4 * 32),
                                 rows_at(k, step / 4 * kKvPanelBytes + step % 4 * 32), step > 0);
  }
  wgmma_commit_group();
}

/// One step of o += weights v: columns [kFirst, kEnd), if there are any. keys: the step's, in bytes.
template <int kFirst, int kEnd>
TESSERA_DEVICE void add_w_v(const unsigned* weights, unsigned v, int keys, bool accumulate,
                            float (&o)[kHeadDimV / 2]) {
  if constexpr (kFirst < kEnd) {
    auto& columns = *reinterpret_cast<float(*)[(kEnd - kFirst) / 2]>(o + kFirst / 2);
    Wgmma<T, kEnd - kFirst>::registers_columns(columns, weights,
                                               columns_at(v, kFirst / 64 * kKvPanelBytes + keys), accumulate);
  }
}

/// Starts o += weights v, or o = weights v.
TESSERA_DEVICE void start_w_v(unsigned (&weights)[kBlockN / 4], unsigned v, bool accumulate,
                              float (&o)[kHeadDimV / 2]) {
  // Threads of four warpgroups start with fewer registers than a product of 256 columns takes.
  constexpr int kMiddle = kWidens && kHeadDimV > 192 ? 128 : kHeadDimV;
  pin_registers(o);
  pin_registers(weights);
  wgmma_fence();
  TESSERA_UNROLL
  for (int step = 0; step < kBlockN / 16; ++step) {
    add_w_v<0, kMiddle>(weights + 4 * step, v, step * 2048, accumulate || step > 0, o);
    add_w_v<kMiddle, kHeadDimV>(weights + 4 * step, v, step * 2048, accumulate || step > 0, o);
  }
  wgmma_commit_group();
}

}  // namespace tessera::kernels
