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

/// Rows of x that are packed and multiplied at once.
inline constexpr std::int64_t kMostTileRows = 512;

/// bf16 parts that hold any number of a dtype: bf16 1, f16 2, f32 3; 0 for others.
int bf16_parts(DType dtype);

/// Where pack_x_tiles leaves sums of x, for weights with offsets.
struct GroupSums {
  float* sums = nullptr;   ///< [step][group][row]; null: nowhere
  int groups_of_step = 1;  ///< 1 or 2
};

/// How x lies in tiles.
enum class XTileOrder {
  kPairs,   ///< a part a tile, (pair of k, row), for products w x^T
  kRows,    ///< a part a tile, (row, k), for products x w^T
  kHalves,  ///< two parts of 16 elements of k side by side (zeros for a part that there isn't): those of the
            ///< step's first 16, of its last 16; (row, k)
};

/// Tiles of a step of x.
constexpr int x_tiles_of_step(XTileOrder order, int parts) {
  return order == XTileOrder::kHalves ? (parts + 1) / 2 * 2 : parts;
}

/// Rows [first, first + 16) of x as tiles [step][x_tiles_of_step()]; zeros past the last row and past k.
/// False if a number is not finite: where x or w has several parts, infinity times another's 0 would be NaN.
/// exponents: by how many powers of two each row was multiplied, because all of it was tiny; (16).
bool pack_x_tiles(const Matrix& x, std::int64_t first, XTileOrder order, std::byte* tiles, int* exponents,
                  const GroupSums& sums);

/// bf16 parts that pack_weight_tiles makes of a number: bf16 1, f16 2.
int weight_parts(DType dtype);

/// Rows [first, first + 16) of w, of bf16 or f16, elements [begin, begin + depth) of k, as tiles [step][part]
/// of (row, k); zeros past the last row and the last element.
void pack_weight_tiles(const Weight& w, std::int64_t first, std::int64_t begin, std::int64_t depth,
                       std::byte* tiles);

/// c += w x^T for kTilesOfWeight tiles of w's rows and x_tiles of x's.
struct TileProduct {
  const std::byte* w[kTilesOfWeight] = {};  ///< the first step's first part
  std::int64_t w_step_bytes = 0;         ///< from one step, of all parts, to the next; parts are packed tiles
  std::int64_t w_row_bytes = 0;          ///< 64 in packed tiles
  int w_parts = 1;                       ///< 1 or 2
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

/// out[row of x][row of w] of a tile of sums: (row of w, row of x) where x's tiles had pairs, else the other
/// way.
void copy_tile(const float* tile, XTileOrder order, float* out, std::int64_t out_stride);

}  // namespace tessera::cpu
