// A batch of products out = x w^T or x w (+ out), tile by tile in shared memory, fp32 multiply-adds: unfused
// attention's where the vendor's library is absent.
//
// Grid: (tiles of n, tiles of m, products); a block computes 64 x 64 outputs, a thread 4 x 4.

#include "common/gemm_batched.h"
#include "common/product_tiles.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

/// Elements [column, column + 64) of rows [row, row + 16) of the (k, n) matrix that begins at element `base`
/// of w into tile[row][column]; zeros outside.
TESSERA_DEVICE void load_transposed_tile(const RowsArgument& w, int64 base, int64 rows, int64 columns,
                                         int64 row, int64 column, float (&tile)[kTileDepth][kTileStride]) {
  for (int i = thread_x(); i < kTile * kTileDepth; i += kTiledThreads) {
    const int64 r = row + i / kTile;
    const int64 c = column + i % kTile;
    tile[i / kTile][i % kTile] = r < rows && c < columns ? load_scalar(w, base + r * w.row_stride + c) : 0.0f;
  }
}

}  // namespace tessera::kernels

TESSERA_KERNEL(gemm_batched, kTiledThreads)(const BatchedGemmParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_SHARED(x_tile, float[kTileDepth][kTileStride]);
  TESSERA_SHARED(w_tile, float[kTileDepth][kTileStride]);
  const GemmParams& g = p.gemm;
  const int64 batch = block_z();
  const int64 first_n = static_cast<int64>(block_x()) * kTile;
  const int64 first_m = static_cast<int64>(block_y()) * kTile;
  const int thread_n = thread_x() % (kTile / kPerThread);
  const int thread_m = thread_x() / (kTile / kPerThread);
  const int64 x_base = batch * p.x_batch_stride;
  const int64 weight_base = batch * p.weight_batch_stride;
  float sum[kPerThread][kPerThread] = {};
  for (int64 k = 0; k < g.k; k += kTileDepth) {
    load_tile(g.x, x_base, g.m, g.k, first_m, k, x_tile);
    if (p.weight_is_transposed) {
      load_transposed_tile(g.weight, weight_base, g.k, g.n, k, first_n, w_tile);
    } else {
      load_tile(g.weight, weight_base, g.n, g.k, first_n, k, w_tile);
    }
    sync_threads();
    multiply_tiles(x_tile, w_tile, thread_m, thread_n, sum);
    sync_threads();
  }
  for (int i = 0; i < kPerThread; ++i) {
    for (int j = 0; j < kPerThread; ++j) {
      const int64 m = first_m + thread_m * kPerThread + i;
      const int64 n = first_n + thread_n + j * (kTile / kPerThread);
      if (m >= g.m || n >= g.n) continue;
      const int64 offset = batch * p.out_batch_stride + m * g.out.row_stride + n;
      float value = sum[i][j];
      if (g.accumulate) value += load_scalar(g.out, offset);
      store_scalar(g.out, offset, value);
    }
  }
}
