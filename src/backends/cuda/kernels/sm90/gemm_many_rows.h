#pragma once

#include "sm90/gemm_few_rows.h"

// gemm_many_rows.cu's arguments, the same bytes on host and device, and what it takes of shared memory.

namespace tessera::kernels {

constexpr int kManyRowsStep = 64;       // columns of a step: a panel
constexpr int kManyRowsWarpgroups = 2;  // that multiply, each a tile of w as gemm_few_rows has it
constexpr int kManyRowsThreads = (kManyRowsWarpgroups + 1) * 128;
constexpr int kManyRowsBlocks = 2;  // of a cluster, which share rows of x
constexpr int kTilesOfCluster = kManyRowsBlocks * kManyRowsWarpgroups;
/// Rows of results that a warpgroup brings to shared memory at once, in one of its buffers.
constexpr int kStoredRows = 64;
constexpr int kStoredBuffers = 2;

// `columns`: rows of x in a tile, wgmma's n: 128 or 256.

TESSERA_TRAIT int many_rows_stages(int columns) { return columns <= 128 ? 6 : 4; }
TESSERA_TRAIT int many_rows_stage_bytes(int columns) {
  return (kManyRowsWarpgroups * kFewRowsTile + columns) * kManyRowsStep * 2;
}
/// The ring and the buffers of results, at a multiple of 1024 bytes, and the ring's barriers.
TESSERA_TRAIT int many_rows_shared_bytes(int columns) {
  return 1024 + many_rows_stages(columns) * (many_rows_stage_bytes(columns) + 16) +
         kManyRowsWarpgroups * kStoredBuffers * kStoredRows * kFewRowsTile * 2;
}
/// Of a warpgroup: the sums of a tile.
TESSERA_TRAIT int many_rows_partial_bytes(int columns) { return kFewRowsTile * columns * 4; }

struct ManyRowsParams {
  TensorMap weight;  // as FewRowsParams has it
  TensorMap x;       // 64 columns by half of the rows that the kernel is made for
  TensorMap out;     // 64 columns, of gated results 32, by kStoredRows; if stores_boxes
  StreamParams product;
  // How gemm_few_rows cuts k, so that sums are the same; without split tiles none is cut.
  FewRowsShares shares;
  float*
      partials;  // (blocks, kManyRowsWarpgroups, 64, columns): sums of the tile's parts until now; null: none
  int x_tiles,
      w_groups;      // tiles of x, and groups of w's that a cluster takes at once; their product is an int
  int stores_boxes;  // whether out is of T, aligned, and not added to
};

}  // namespace tessera::kernels
