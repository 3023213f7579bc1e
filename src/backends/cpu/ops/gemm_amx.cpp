#include "backends/cpu/ops/gemm_amx.h"

#include <algorithm>
#include <optional>

#include "backends/cpu/amx_tiles.h"
#include "backends/cpu/ops/gemm_blocks.h"
#include "backends/cpu/ops/gemm_columns.h"
#include "backends/cpu/ops/packed_x.h"
#include "backends/cpu/ops/scratch.h"
#include "backends/cpu/ops/tile_products.h"
#include "core/block_format.h"
#include "core/parallel.h"

namespace tessera::cpu {

#if defined(__x86_64__)

namespace {

constexpr std::int64_t kTilesOfFewRows = kMostXTiles;  // of x: each weight is then used at once, where it is

/// Fills in what concerns x and c for product.x_tiles tiles from x_tile on and those of w from w_tile on;
/// multiplies.
void multiply(TileProduct product, const PackedX& x, std::int64_t step, std::int64_t x_tile,
              std::int64_t w_tile, ColumnSums& sums) {
  product.x_parts = x.parts;
  product.x_tiles = static_cast<int>(std::min<std::int64_t>(product.x_tiles, x.num_tiles - x_tile));
  product.is_first = step == 0;
  for (int j = 0; j < product.x_tiles; ++j) {
    product.x[j] = x.tile(x_tile + j, step);
    for (int i = 0; i < kTilesOfWeight; ++i) product.c[i][j] = sums.tile(x_tile + j, w_tile + i);
  }
  multiply_tiles(product);
}

/// Weights of steps [step, step + steps) of rows from `row` on, in tiles.
class PackedWeights {
 public:
  PackedWeights(const Weight& w, std::int64_t num_tiles, std::int64_t most_steps)
      : w_(w),
        parts_(weight_parts(w.dtype)),
        tile_bytes_(most_steps * parts_ * kPackedTileBytes),
        tiles_(scratch_floats(num_tiles, tile_bytes_ / 4, "weights in tiles")) {}

  void pack(std::int64_t tile, std::int64_t row, std::int64_t step, std::int64_t steps) {
    pack_weight_tiles(w_, row, step * kTileDepth, steps * kTileDepth, tiles_of(tile));
  }
  /// What concerns w for packed tiles `tile` and the one after it.
  TileProduct product(std::int64_t tile, std::int64_t steps) {
    TileProduct p;
    p.w_step_bytes = parts_ * kPackedTileBytes;
    p.w_row_bytes = kPackedTileBytes / kTileRows;
    p.w_parts = parts_;
    p.x_tiles = kMostXTiles;
    p.steps = steps;
    for (int i = 0; i < kTilesOfWeight; ++i) p.w[i] = tiles_of(tile + i);
    return p;
  }

 private:
  std::byte* tiles_of(std::int64_t tile) {
    return static_cast<std::byte*>(tiles_.data()) + tile * tile_bytes_;
  }

  const Weight& w_;
  int parts_;
  std::int64_t tile_bytes_;
  Scratch tiles_;
};

/// Many rows of x: weights are packed a piece of k at a time, which stays in the second-level cache for all
/// of them.
void multiply_packed(const Weight& w, const PackedX& x, std::int64_t begin, ColumnSums& sums) {
  constexpr std::int64_t kMostSteps = 16;  // of two tiles of x, which stay in the first-level cache meanwhile
  PackedWeights weights(w, sums.num_tiles(), std::min(kMostSteps, x.steps));
  for (std::int64_t step = 0; step < x.steps; step += kMostSteps) {
    const std::int64_t steps = std::min(kMostSteps, x.steps - step);
    for (std::int64_t i = 0; i < sums.num_tiles(); ++i) weights.pack(i, begin + i * kTileRows, step, steps);
    for (std::int64_t j = 0; j < x.num_tiles; j += kMostXTiles) {
      for (std::int64_t i = 0; i < sums.num_tiles(); i += kTilesOfWeight)
        multiply(weights.product(i, steps), x, step, j, i, sums);
    }
  }
}

/// Few rows of x: weights of bf16 go from memory into the tiles. Last rows and the last part of a step are
/// packed, since nothing may be read behind them.
void multiply_in_place(const Weight& w, const PackedX& x, std::int64_t begin, ColumnSums& sums) {
  constexpr std::int64_t kRows = kTilesOfWeight * kTileRows;
  const std::int64_t row_bytes = w.columns * static_cast<std::int64_t>(sizeof(BFloat16));
  const std::int64_t whole_steps = w.columns / kTileDepth;
  for (std::int64_t i = 0; i < sums.num_tiles(); i += kTilesOfWeight) {
    const std::int64_t row = begin + i * kTileRows;
    const std::int64_t steps = row + kRows <= w.rows ? whole_steps : 0;
    if (steps > 0) {
      TileProduct p;
      p.x_tiles = kMostXTiles;
      p.steps = steps;
      p.w_step_bytes = kTileDepth * static_cast<std::int64_t>(sizeof(BFloat16));
      p.w_row_bytes = row_bytes;
      for (int t = 0; t < kTilesOfWeight; ++t) {
        p.w[t] = static_cast<const std::byte*>(w.data) + (row + t * kTileRows) * row_bytes;
      }
      p.w_next = p.w[0] + (row + 2 * kRows <= w.rows ? kRows * row_bytes : 0);
      multiply(p, x, 0, 0, i, sums);
    }
    if (steps == x.steps) continue;
    PackedWeights rest(w, kTilesOfWeight, x.steps - steps);
    for (int t = 0; t < kTilesOfWeight; ++t) rest.pack(t, row + t * kTileRows, steps, x.steps - steps);
    multiply(rest.product(0, x.steps - steps), x, steps, 0, i, sums);
  }
}

void multiply_columns(const GemmArguments& a, const PackedX& x, std::int64_t begin, std::int64_t end) {
  const std::int64_t pairs = divide_up(end - begin, kTilesOfWeight * kTileRows);
  ColumnSums sums(x, pairs * kTilesOfWeight);
  if (a.weight.dtype == DType::kBF16 && x.num_tiles <= kTilesOfFewRows) {
    multiply_in_place(a.weight, x, begin, sums);
  } else {
    multiply_packed(a.weight, x, begin, sums);
  }
  finish_tiles(a, x, XTileOrder::kPairs, begin, end, sums);
}

bool has_blocks(DType weight) { return block_format(weight).elements > 1; }

}  // namespace

bool amx_takes(DType x, DType weight) {
  return bf16_parts(x) != 0 && (weight == DType::kBF16 || weight == DType::kF16 || has_blocks(weight));
}

bool gemm_amx(const GemmArguments& a) {
  if (has_blocks(a.weight.dtype)) return gemm_blocks(a, BlockUnit::kAmx);
  const PackedX x = pack_x(a.x, std::nullopt);
  if ((x.parts > 1 || weight_parts(a.weight.dtype) > 1) && !x.is_finite) return false;
  const std::int64_t most_columns = a.weight.dtype == DType::kF16 ? 128 : 256;
  for_column_ranges(a.weight.rows, columns_of_task(a.weight, most_columns),
                    [&](std::int64_t begin, std::int64_t end) {
                      const amx::TilesInUse tiles;
                      multiply_columns(a, x, begin, end);
                    });
  return true;
}

#else

bool amx_takes(DType, DType) { return false; }
bool gemm_amx(const GemmArguments&) { return false; }

#endif

}  // namespace tessera::cpu
