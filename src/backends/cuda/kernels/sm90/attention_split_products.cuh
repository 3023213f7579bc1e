#pragma once

#include "common/split_rows.h"
#include "sm80/split_f32.cuh"
#include "sm90/attention_traits.cuh"
#include "sm90/wgmma.cuh"

// A warpgroup's products of attention_f32.cu: each by three of fp16,
//
//   x y = 2^-11 (low high + high low) + high high        low low, below 2^-24 |x y|, is left out
//
// whose first two have sums of their own. The tensor cores cut bits off when they add, so that sums leave
// them after each tile of keys.

namespace tessera::kernels {

static_assert(kLowScale == 1 << kSplitLowShift, "lows of weights and of what split_rows.cu wrote");
constexpr int kQLows = kPanelsQk / 2 * kQPanelBytes;  // behind the highs
constexpr int kKLows = kPanelsQk / 2 * kKvPanelBytes;
constexpr int kVLows = kPanelsV / 2 * kKvPanelBytes;

/// Starts sums + 2^-11 cross = q k^T.
TESSERA_DEVICE void start_q_k(unsigned q, unsigned k, float (&sums)[kBlockN / 2],
                              float (&cross)[kBlockN / 2]) {
  pin_registers(sums);
  pin_registers(cross);
  wgmma_fence();
  const unsigned long long rows = descriptor_of_rows(q), keys = descriptor_of_rows(k);
  TESSERA_UNROLL
  for (int step = 0; step < kHeadDimQk / 16; ++step) {
    const int of_q = step / 4 * kQPanelBytes + step % 4 * 32;
    const int of_k = step / 4 * kKvPanelBytes + step % 4 * 32;
    using Product = Wgmma<f16, kBlockN>;
    Product::rows_rows(cross, further(rows, of_q + kQLows), further(keys, of_k), step > 0);
    Product::rows_rows(sums, further(rows, of_q), further(keys, of_k), step > 0);
    Product::rows_rows(cross, further(rows, of_q), further(keys, of_k + kKLows), true);
  }
  wgmma_commit_group();
}

/// A tile's weights as operands.
struct SplitWeights {
  unsigned highs[kBlockN / 4];
  unsigned lows[kBlockN / 4];

  TESSERA_DEVICE explicit SplitWeights(const float (&weights)[kBlockN / 2]) {
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 4; ++i) split_pair(weights[2 * i], weights[2 * i + 1], highs[i], lows[i]);
  }
};

/// Starts sums + 2^-11 cross = weights v, of columns [kFirst, kFirst + kColumns).
template <int kFirst, int kColumns>
TESSERA_DEVICE void start_w_v(SplitWeights& weights, unsigned v, float (&sums)[kColumns / 2],
                              float (&cross)[kColumns / 2]) {
  pin_registers(sums);
  pin_registers(cross);
  pin_registers(weights.highs);
  pin_registers(weights.lows);
  wgmma_fence();
  const unsigned long long columns =
      descriptor_of_columns(v + kFirst / 64 * kKvPanelBytes + kFirst % 64 * 2, kKvPanelBytes);
  TESSERA_UNROLL
  for (int step = 0; step < kBlockN / 16; ++step) {
    const int keys = step * 2048;
    using Product = Wgmma<f16, kColumns>;
    Product::registers_columns(cross, weights.lows + 4 * step, further(columns, keys), step > 0);
    Product::registers_columns(sums, weights.highs + 4 * step, further(columns, keys), step > 0);
    Product::registers_columns(cross, weights.highs + 4 * step, further(columns, keys + kVLows), true);
  }
  wgmma_commit_group();
}

}  // namespace tessera::kernels
