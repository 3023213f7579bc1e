#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/arguments.h"

namespace tessera::cpu {

/// Products of AMX's tiles: c^T = w x^T with 16 rows of w, 16 rows of x and 32 elements of k a tile, in fp32.
///
/// Numbers of more than bf16's 8 bits are sums of bf16 parts, of which every product is exact: fp16 has two,
/// fp32 three. An element of c adds up k in order, so its bits depend on its own rows only, not on how many
/// others there are or how k was cut. Numbers below 2^-126 count as zero, as in all dot products of bf16.
inline constexpr std::int64_t kTileRows = 16;    ///< of w and of x
inline constexpr std::int64_t kTileDepth = 32;   ///< elements of k
inline constexpr std::size_t kTileBytes = 1024;  ///< a packed tile, of bf16 or of fp32
inline constexpr int kMostXTiles = 2;            ///< tiles of rows of x in one call
inline constexpr int kTilesOfWeight = 2;         ///< and of w

/// bf16 parts that hold any number of a dtype: bf16 1, f16 2, f32 3; 0 for others.
int bf16_parts(DType dtype);

/// Where pack_x_tiles leaves sums of x, for weights with offsets.
struct GroupSums {
  float* sums = nullptr;   ///< [step][group][row]; null: nowhere
  int groups_of_step = 1;  ///< 1 or 2
};

/// Rows [first, first + 16) of x as tiles [step][part] of (pair of k, row); zeros past the last row and past
/// k. False if a number is not finite: where x or w has several parts, infinity times another's 0 would be
/// NaN. exponents: by how many powers of two each row was multiplied, because all of it was tiny; (16).
bool pack_x_tiles(const Matrix& x, std::int64_t first, std::byte* tiles, int* exponents,
                  const GroupSums& sums);

/// How rows of a weight lie in tiles.
struct WeightTiles {
  int parts = 1;           ///< tiles a step: of bf16 parts, which are added up, or of groups
  bool is_scaled = false;  ///< blocks: tiles hold integers
  bool has_offsets = false;
  explicit WeightTiles(DType dtype);
};

/// Rows [first, first + 16) of w, elements [begin, begin + depth) of k, as tiles [step][part] of (row, k);
/// zeros past the last row and the last element. Of blocks with groups of 16 elements the two tiles of a step
/// have one group each, and zeros in the other's place. scales and offsets of blocks: [step][part][row].
void pack_weight_tiles(const Weight& w, const WeightTiles& layout, std::int64_t first, std::int64_t begin,
                       std::int64_t depth, std::byte* tiles, float* scales, float* offsets);

/// c += w x^T for kTilesOfWeight tiles of w's rows and x_tiles of x's.
struct TileProduct {
  const std::byte* w[kTilesOfWeight] = {};  ///< the first step's first part
  std::int64_t w_step_bytes = 0;  ///< from one step, of all parts, to the next; parts are packed tiles
  std::int64_t w_row_bytes = 0;   ///< 64 in packed tiles
  int w_parts = 1;                ///< 1 or 2
  const float* scales[kTilesOfWeight] = {};   ///< of packed tiles' rows, 16 a part of a step; null: none
  const float* offsets[kTilesOfWeight] = {};  ///< likewise, which sums of x are multiplied by; null: none
  const float* x_sums[kMostXTiles] = {};      ///< 16 a part of a step, where there are offsets
  const std::byte* w_next = nullptr;     ///< where the rows go on that are read next; null: no fetching ahead
  const std::byte* x[kMostXTiles] = {};  ///< x_parts packed tiles a step
  int x_parts = 1;                       ///< 1 to 3
  int x_tiles = 1;                       ///< 1 or 2
  std::int64_t steps = 0;
  float* c[kTilesOfWeight][kMostXTiles] = {};  ///< packed tiles (row of w, row of x)
  bool is_first = false;                       ///< c = instead
};

/// On the calling thread, while amx::TilesInUse lives.
void multiply_tiles(const TileProduct& product);

/// out[row of x][row of w] of a packed tile (row of w, row of x).
void transpose_tile(const float* tile, float* out, std::int64_t out_stride);

}  // namespace tessera::cpu
