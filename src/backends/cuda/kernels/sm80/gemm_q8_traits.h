#pragma once

#include "common/traits.h"
#include "core/formats/q8_0.h"

// The tiles of the products with Q8_0 weights (gemm_q8.cu, gemm_q8_tiled.cu, widen_q8.cu), and what they take
// of shared memory.

namespace tessera::kernels {

using formats::Q8_0;

// Rows of w come in pieces, the least that 16 bytes divide.
constexpr int kQ8PieceBlocks = 8;
constexpr int kQ8PieceColumns = kQ8PieceBlocks * Q8_0::kElements;
constexpr int kQ8PieceBytes = kQ8PieceBlocks * Q8_0::kBytes;

constexpr int kTileRows = 16;  // rows of w that one instruction multiplies
constexpr int kTileM = 8;      // rows of x

// gemm_q8.cu
constexpr int kQ8Stages = 2;
constexpr int kQ8UnitBytes = kTileRows * kQ8PieceBytes;  // a piece of a group's rows

/// groups_at_once: whose sums meet at once, fp32 of two rows of w and two of x together.
TESSERA_TRAIT long long q8_shared_bytes(long long warps, long long groups_at_once, long long x_rows) {
  const long long sums = groups_at_once * (kTileRows / 2) * ((x_rows + 1) / 2) * 16;
  return warps * (kQ8Stages * kQ8UnitBytes + sums);
}

// gemm_q8_tiled.cu
constexpr int kQ8TiledMostWarps = 8;
constexpr int kQ8TiledWarpRows = 32;  // of w
constexpr int kQ8TiledTiles = 8;      // of x
constexpr int kQ8TiledPieces = 2;     // of w, in shared memory
constexpr int kQ8TiledXStages = 4;
constexpr int kQ8TiledXRowBytes = 128;
// fp32 x is cut into parts.
constexpr int kQ8SplitStages = 2;
constexpr int kQ8SplitParts = 3;
constexpr int kQ8SplitRowBytes = 64;  // 32 columns of a part

TESSERA_TRAIT int q8_tiled_shared_bytes(int warps, bool is_f32) {
  const int split_bytes = is_f32 ? kQ8SplitStages * kQ8SplitParts * kQ8SplitRowBytes : 0;
  return kQ8TiledPieces * warps * kQ8TiledWarpRows * kQ8PieceBytes +
         kQ8TiledTiles * kTileM * (kQ8TiledXStages * kQ8TiledXRowBytes + split_bytes);
}

constexpr int kWidenThreads = 256;

}  // namespace tessera::kernels
