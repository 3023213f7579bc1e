// out = x w^T (+ bias) (+ out) for any sizes and types, tile by tile in shared memory, fp32 multiply-adds:
// what runs where the vendor's library is absent or does not take the types.
//
// Grid: (tiles of n, tiles of m); a block computes 64 x 64 outputs, a thread 4 x 4.

#include "common/product_tiles.cuh"

using namespace tessera::kernels;

TESSERA_KERNEL(gemm_tiled, kTiledThreads)(const GemmParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_SHARED(x_tile, float[kTileDepth][kTileStride]);
  TESSERA_SHARED(w_tile, float[kTileDepth][kTileStride]);
  const int64 first_n = static_cast<int64>(block_x()) * kTile;
  const int64 first_m = static_cast<int64>(block_y()) * kTile;
  const int thread_n = thread_x() % (kTile / kPerThread);
  const int thread_m = thread_x() / (kTile / kPerThread);
  float sum[kPerThread][kPerThread] = {};
  for (int64 k = 0; k < p.k; k += kTileDepth) {
    load_tile(p.x, 0, p.m, p.k, first_m, k, x_tile);
    load_weight_tile(p.weight, p.n, p.k, first_n, k, w_tile);
    sync_threads();
    multiply_tiles(x_tile, w_tile, thread_m, thread_n, sum);
    sync_threads();
  }
  for (int i = 0; i < kPerThread; ++i) {
    for (int j = 0; j < kPerThread; ++j) {
      const int64 m = first_m + thread_m * kPerThread + i;
      const int64 n = first_n + thread_n + j * (kTile / kPerThread);
      if (m >= p.m || n >= p.n) continue;
      float value = sum[i][j];
      if (p.bias.data != nullptr) value += load_scalar(p.bias, n);
      const int64 offset = m * p.out.row_stride + n;
      if (p.accumulate) value += load_scalar(p.out, offset);
      store_scalar(p.out, offset, value);
    }
  }
}
