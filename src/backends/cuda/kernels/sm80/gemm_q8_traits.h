#pragma once

#include "sm80/gemm_blocks_traits.h"

// The tiles of the products of many rows with Q8_0 weights (gemm_q8_tiled.cu), and what they take of shared
// memory.

namespace tessera::kernels {

using formats::Q8_0;

// Rows of w come in pieces, the least that 16 bytes divide.
constexpr int kQ8PieceBlocks = 8;
constexpr int kQ8PieceColumns = kQ8PieceBlocks * Q8_0::kElements;
constexpr int kQ8PieceBytes = kQ8PieceBlocks * Q8_0::kBytes;

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

}  // namespace tessera::kernels
