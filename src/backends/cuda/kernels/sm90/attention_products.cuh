#pragma once

#include "sm90/attention_traits.cuh"
#include "sm90/wgmma.cuh"

// A warpgroup's products of attention_wgmma.cu.

namespace tessera::kernels {

// With softcap, whose softmax is long, products that follow one another sooner made the whole 5 % slower:
// descriptors are made anew for each there.
constexpr bool kMovesDescriptors = (TESSERA_TERMS & kTermSoftcap) == 0;

/// The operand `bytes` behind `rows`; of columns likewise.
TESSERA_DEVICE unsigned long long rows_at(unsigned rows, int bytes) {
  return kMovesDescriptors ? further(descriptor_of_rows(rows), bytes) : descriptor_of_rows(rows + bytes);
}
TESSERA_DEVICE unsigned long long columns_at(unsigned columns, int bytes) {
  return kMovesDescriptors ? further(descriptor_of_columns(columns, kKvPanelBytes), bytes)
                           : descriptor_of_columns(columns + bytes, kKvPanelBytes);
}

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
