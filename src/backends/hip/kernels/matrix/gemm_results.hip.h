#pragma once

#include "common/rows.cuh"
#include "matrix/matrix.hip.h"

// What a product's waves sum up, and how that becomes its result.

namespace tessera::kernels {

/// A wave's sums, of tiles of 16 x 16 outputs.
template <int kTilesM, int kTilesN>
using TileSums = Accumulator<16>[kTilesM][kTilesN];

/// Writes a wave's results, from output (first_m, first_n) on.
template <class Out, int kTilesM, int kTilesN>
TESSERA_DEVICE void store_sums(const GemmParams& p, int64 first_m, int64 first_n,
                               const TileSums<kTilesM, kTilesN>& sums) {
  TESSERA_UNROLL
  for (int tile_n = 0; tile_n < kTilesN; ++tile_n) {
    const int64 n = first_n + tile_n * 16 + operand_row<16>();
    if (n >= p.n) continue;
    const float bias = p.bias.data != nullptr ? load_scalar(p.bias, n) : 0.0f;
    TESSERA_UNROLL
    for (int tile_m = 0; tile_m < kTilesM; ++tile_m) {
      TESSERA_UNROLL
      for (int i = 0; i < 256 / kWarpSize; ++i) {
        const int64 m = first_m + tile_m * 16 + accumulator_row<16>(i);
        if (m >= p.m) continue;
        Out* const out = static_cast<Out*>(p.out.data) + (m * p.out.row_stride + n);
        const float value = sums[tile_m][tile_n][i] + bias;
        *out = from_float<Out>(p.accumulate != 0 ? value + to_float(*out) : value);
      }
    }
  }
}

}  // namespace tessera::kernels
