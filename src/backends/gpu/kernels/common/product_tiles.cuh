#pragma once

#include "common/rows.cuh"

// Products tile by tile in shared memory, fp32 multiply-adds: a block computes 64 x 64 outputs, a thread
// 4 x 4.

namespace tessera::kernels {

constexpr int kTile = kProductTile;
constexpr int kTileDepth = 16;  // of k
constexpr int kPerThread = 4;
constexpr int kTileStride = kTile + 1;  // keeps the transposing stores off one bank

/// Elements [row, row + 64) x [column, column + 16) of the matrix that begins at element `base` of x into
/// tile[column][row]; zeros outside.
TESSERA_DEVICE void load_tile(const RowsArgument& x, int64 base, int64 rows, int64 columns, int64 row,
                              int64 column, float (&tile)[kTileDepth][kTileStride]) {
  for (int i = thread_x(); i < kTile * kTileDepth; i += kTiledThreads) {
    const int64 r = row + i / kTileDepth;
    const int64 c = column + i % kTileDepth;
    tile[i % kTileDepth][i / kTileDepth] =
        r < rows && c < columns ? load_scalar(x, base + r * x.row_stride + c) : 0.0f;
  }
}

/// The same of a matrix of weights. Of blocks a thread takes four columns of a row, whose step it then reads
/// once.
TESSERA_DEVICE void load_weight_tile(const RowsArgument& w, int64 rows, int64 columns, int64 row,
                                     int64 column, float (&tile)[kTileDepth][kTileStride]) {
  if (!is_blocks(w)) return load_tile(w, 0, rows, columns, row, column, tile);
  constexpr int kCount = kTile * kTileDepth / kTiledThreads;
  static_assert(kTileDepth % kCount == 0);
  const int r = thread_x() / (kTileDepth / kCount);
  const int c = thread_x() % (kTileDepth / kCount) * kCount;
  float v[kCount] = {};
  if (row + r < rows && column + c < columns) decode_blocks(w, (row + r) * columns + column + c, v);
  TESSERA_UNROLL
  for (int i = 0; i < kCount; ++i) tile[c + i][r] = v[i];
}

/// Adds the products of this part of k to the sums of the thread at (thread_m, thread_n) of 16 x 16.
TESSERA_DEVICE void multiply_tiles(const float (&x_tile)[kTileDepth][kTileStride],
                                   const float (&w_tile)[kTileDepth][kTileStride], int thread_m, int thread_n,
                                   float (&sum)[kPerThread][kPerThread]) {
  for (int d = 0; d < kTileDepth; ++d) {
    float a[kPerThread], b[kPerThread];
    TESSERA_UNROLL
    for (int i = 0; i < kPerThread; ++i) a[i] = x_tile[d][thread_m * kPerThread + i];
    TESSERA_UNROLL
    for (int j = 0; j < kPerThread; ++j) b[j] = w_tile[d][thread_n + j * (kTile / kPerThread)];
    TESSERA_UNROLL
    for (int i = 0; i < kPerThread; ++i) {
      TESSERA_UNROLL
      for (int j = 0; j < kPerThread; ++j) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
  }
}

}  // namespace tessera::kernels
