// Products of slots of a mixture of experts, for any sizes and types, tile by tile in shared memory, fp32
// multiply-adds: tiles of slots of one expert share what is read of its weight. A slot's sums don't depend
// on which others are in its tile.
//
// Grid: (tiles of n, as many tiles of slots as there can be); a block computes 64 x 64 outputs, a thread 4 x
// 4.

#include "common/expert_tiles.cuh"
#include "common/product_tiles.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

/// Columns [column, column + 16) of the rows of x that a tile's slots have into tile[column][slot].
TESSERA_DEVICE void load_slots_tile(const ExpertGemmParams& p, const int* slots, int count, int64 column,
                                    float (&tile)[kTileDepth][kTileStride]) {
  for (int i = thread_x(); i < kTile * kTileDepth; i += kTiledThreads) {
    const int r = i / kTileDepth;
    const int64 c = column + i % kTileDepth;
    tile[i % kTileDepth][r] = r < count && c < p.gemm.k
                                  ? load_scalar(p.gemm.x, slots[r] / p.slots_of_row * p.gemm.x.row_stride + c)
                                  : 0.0f;
  }
}

}  // namespace tessera::kernels

TESSERA_KERNEL(expert_gemm_tiled, kTiledThreads)(const ExpertGemmParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_SHARED(x_tile, float[kTileDepth][kTileStride]);
  TESSERA_SHARED(w_tile, float[kTileDepth][kTileStride]);
  const ExpertTile tile = find_expert_tile(p.routing, block_y(), kTile);
  if (tile.count == 0) return;
  const GemmParams g = product_of_expert(p, tile.expert);
  const int* const slots = p.routing.order + tile.begin;
  const int64 first_n = static_cast<int64>(block_x()) * kTile;
  const int thread_n = thread_x() % (kTile / kPerThread);
  const int thread_m = thread_x() / (kTile / kPerThread);
  float sum[kPerThread][kPerThread] = {};
  for (int64 k = 0; k < g.k; k += kTileDepth) {
    load_slots_tile(p, slots, tile.count, k, x_tile);
    load_weight_tile(g.weight, g.n, g.k, first_n, k, w_tile);
    sync_threads();
    multiply_tiles(x_tile, w_tile, thread_m, thread_n, sum);
    sync_threads();
  }
  for (int i = 0; i < kPerThread; ++i) {
    const int m = thread_m * kPerThread + i;
    if (m >= tile.count) continue;
    for (int j = 0; j < kPerThread; ++j) {
      const int64 n = first_n + thread_n + j * (kTile / kPerThread);
      if (n >= g.n) continue;
      const float value = g.bias.data != nullptr ? sum[i][j] + load_scalar(g.bias, n) : sum[i][j];
      store_scalar(g.out, slots[m] * g.out.row_stride + n, value);
    }
  }
}
