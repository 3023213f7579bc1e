#include "backends/cpu/ops/gemm_amx.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "backends/cpu/amx_tiles.h"
#include "backends/cpu/ops/gemm_columns.h"
#include "backends/cpu/ops/scratch.h"
#include "backends/cpu/ops/tile_products.h"
#include "core/parallel.h"

namespace tessera::cpu {

#if defined(__x86_64__)

namespace {

constexpr std::int64_t kPackedTileBytes = static_cast<std::int64_t>(kTileBytes);
constexpr std::int64_t kTilesOfFewRows = kMostXTiles;  // of x: each weight is then used at once, where it is

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// All rows of x in tiles.
struct PackedX {
  Scratch memory{0, ""};
  Scratch sums{0, ""};         // of groups, for weights with offsets
  std::vector<int> exponents;  // a row
  std::int64_t num_tiles = 0;
  std::int64_t steps = 0;
  int parts = 0;
  bool is_finite = true;

  const std::byte* tile(std::int64_t index, std::int64_t step) const {
    return static_cast<const std::byte*>(memory.data()) + (index * steps + step) * parts * kPackedTileBytes;
  }
  const float* sums_of(std::int64_t index, std::int64_t step, int groups_of_step) const {
    return sums.floats() + (index * steps + step) * groups_of_step * kTileRows;
  }
};

PackedX pack(const Matrix& x, const WeightTiles& weight) {
  PackedX packed;
  packed.num_tiles = divide_up(x.rows, kTileRows);
  packed.steps = divide_up(x.columns, kTileDepth);
  packed.parts = bf16_parts(x.dtype);
  packed.exponents.resize(static_cast<std::size_t>(packed.num_tiles * kTileRows));
  const std::int64_t tile_bytes = packed.steps * packed.parts * kPackedTileBytes;
  packed.memory = scratch_floats(packed.num_tiles, tile_bytes / 4, "gemm's x in tiles");
  const std::int64_t sums_of_tile = weight.has_offsets ? packed.steps * weight.parts * kTileRows : 0;
  packed.sums = scratch_floats(packed.num_tiles, sums_of_tile, "sums of gemm's x");
  std::atomic<bool> is_finite = true;
  parallel_for(static_cast<std::size_t>(packed.num_tiles), [&](std::size_t task) {
    const auto i = static_cast<std::int64_t>(task);
    auto* tiles = static_cast<std::byte*>(packed.memory.data()) + i * tile_bytes;
    const GroupSums sums = {weight.has_offsets ? packed.sums.floats() + i * sums_of_tile : nullptr,
                            weight.parts};
    if (!pack_x_tiles(x, i * kTileRows, tiles, &packed.exponents[task * kTileRows], sums)) is_finite = false;
  });
  packed.is_finite = is_finite;
  return packed;
}

/// Sums of columns [begin, begin + 16 num_tiles) in packed tiles, [tile of x][tile of w].
class ColumnSums {
 public:
  ColumnSums(const PackedX& x, std::int64_t num_tiles)
      : num_tiles_(num_tiles),
        memory_(scratch_floats(x.num_tiles, num_tiles * kPackedTileBytes / 4, "gemm's sums")) {}

  std::int64_t num_tiles() const { return num_tiles_; }
  float* tile(std::int64_t x_tile, std::int64_t w_tile) {
    return memory_.floats() + (x_tile * num_tiles_ + w_tile) * kPackedTileBytes / 4;
  }

 private:
  std::int64_t num_tiles_;
  Scratch memory_;
};

/// Fills in what concerns x and c for product.x_tiles tiles from x_tile on and those of w from w_tile on;
/// multiplies.
void multiply(TileProduct product, const PackedX& x, std::int64_t step, std::int64_t x_tile,
              std::int64_t w_tile, ColumnSums& sums) {
  product.x_parts = x.parts;
  product.x_tiles = static_cast<int>(std::min<std::int64_t>(product.x_tiles, x.num_tiles - x_tile));
  product.is_first = step == 0;
  for (int j = 0; j < product.x_tiles; ++j) {
    product.x[j] = x.tile(x_tile + j, step);
    if (product.offsets[0] != nullptr) product.x_sums[j] = x.sums_of(x_tile + j, step, product.w_parts);
    for (int i = 0; i < kTilesOfWeight; ++i) product.c[i][j] = sums.tile(x_tile + j, w_tile + i);
  }
  multiply_tiles(product);
}

/// Weights of steps [step, step + steps) of rows from `row` on, in tiles.
class PackedWeights {
 public:
  PackedWeights(const Weight& w, std::int64_t num_tiles, std::int64_t most_steps)
      : w_(w),
        layout_(w.dtype),
        most_parts_(most_steps * layout_.parts),
        tiles_(scratch_floats(num_tiles, most_parts_ * kPackedTileBytes / 4, "weights in tiles")),
        scales_(scratch_floats(num_tiles, layout_.is_scaled ? most_parts_ * kTileRows : 0, "scales")),
        offsets_(scratch_floats(num_tiles, layout_.has_offsets ? most_parts_ * kTileRows : 0, "offsets")) {}

  void pack(std::int64_t tile, std::int64_t row, std::int64_t step, std::int64_t steps) {
    pack_weight_tiles(w_, layout_, row, step * kTileDepth, steps * kTileDepth, tiles_of(tile),
                      scales_of(tile), offsets_of(tile));
  }
  /// What concerns w for packed tiles `tile` and the one after it.
  TileProduct product(std::int64_t tile, std::int64_t steps) {
    TileProduct p;
    p.w_step_bytes = layout_.parts * kPackedTileBytes;
    p.w_row_bytes = kPackedTileBytes / kTileRows;
    p.w_parts = layout_.parts;
    p.x_tiles = kMostXTiles;
    p.steps = steps;
    for (int i = 0; i < kTilesOfWeight; ++i) {
      p.w[i] = tiles_of(tile + i);
      p.scales[i] = scales_of(tile + i);
      p.offsets[i] = offsets_of(tile + i);
    }
    return p;
  }

 private:
  std::byte* tiles_of(std::int64_t tile) {
    return static_cast<std::byte*>(tiles_.data()) + tile * most_parts_ * kPackedTileBytes;
  }
  float* scales_of(std::int64_t tile) {
    return layout_.is_scaled ? scales_.floats() + tile * most_parts_ * kTileRows : nullptr;
  }
  float* offsets_of(std::int64_t tile) {
    return layout_.has_offsets ? offsets_.floats() + tile * most_parts_ * kTileRows : nullptr;
  }

  const Weight& w_;
  WeightTiles layout_;
  std::int64_t most_parts_;  // of steps
  Scratch tiles_;
  Scratch scales_;
  Scratch offsets_;
};

/// Many rows of x: weights are packed a piece of k at a time, which stays in the second-level cache for all
/// of them.
void multiply_packed(const Weight& w, const PackedX& x, std::int64_t begin, ColumnSums& sums) {
  // What all tiles of w meet in turn stays in the first-level cache: two tiles of x, or one of several parts.
  const bool is_scaled = WeightTiles(w.dtype).is_scaled;
  const std::int64_t most_steps = is_scaled ? 8 : 16;
  const int x_tiles = is_scaled ? 1 : kMostXTiles;
  PackedWeights weights(w, sums.num_tiles(), std::min(most_steps, x.steps));
  for (std::int64_t step = 0; step < x.steps; step += most_steps) {
    const std::int64_t steps = std::min(most_steps, x.steps - step);
    for (std::int64_t i = 0; i < sums.num_tiles(); ++i) weights.pack(i, begin + i * kTileRows, step, steps);
    for (std::int64_t j = 0; j < x.num_tiles; j += x_tiles) {
      for (std::int64_t i = 0; i < sums.num_tiles(); i += kTilesOfWeight) {
        TileProduct product = weights.product(i, steps);
        product.x_tiles = x_tiles;
        multiply(product, x, step, j, i, sums);
      }
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

/// Rounds and stores the sums of columns [begin, end).
void finish(const GemmArguments& a, const PackedX& x, std::int64_t begin, std::int64_t end,
            ColumnSums& sums) {
  const std::int64_t stride = sums.num_tiles() * kTileRows;
  const Scratch strip = scratch_floats(kTileRows, stride, "rows of gemm's sums");
  for (std::int64_t j = 0; j < x.num_tiles; ++j) {
    for (std::int64_t i = 0; i < sums.num_tiles(); ++i) {
      transpose_tile(sums.tile(j, i), strip.floats() + i * kTileRows, stride);
    }
    const std::int64_t first = j * kTileRows;
    const std::int64_t rows = std::min(kTileRows, a.x.rows - first);
    for (std::int64_t r = 0; r < rows; ++r) {
      const int exponent = x.exponents[static_cast<std::size_t>(first + r)];
      if (exponent == 0) continue;
      const float factor = exponent == 64 ? 0x1p-64f : 0x1p-120f;
      for (std::int64_t n = 0; n < stride; ++n) strip.floats()[r * stride + n] *= factor;
    }
    finish_columns(a, {first, rows, begin, end - begin}, strip.floats(), stride);
  }
}

/// Columns a task takes: its sums for all rows and a piece of its weights share the second-level cache.
std::int64_t columns_of_tiles(const Weight& w) {
  constexpr std::int64_t kMultiple = kTilesOfWeight * kTileRows;
  const std::int64_t most = w.dtype == DType::kF16 ? 128 : 256;
  const std::int64_t even = divide_up(w.rows, std::int64_t{2} * num_threads());
  return std::min(most, divide_up(even, kMultiple) * kMultiple);
}

}  // namespace

bool amx_takes(DType x, DType weight) {
  return bf16_parts(x) != 0 &&
         (weight == DType::kBF16 || weight == DType::kF16 || WeightTiles(weight).is_scaled);
}

bool gemm_amx(const GemmArguments& a) {
  const WeightTiles layout(a.weight.dtype);
  const PackedX x = pack(a.x, layout);
  const bool has_parts = x.parts > 1 || layout.parts > 1 || layout.has_offsets;
  if (has_parts && !x.is_finite) return false;
  const bool in_place = a.weight.dtype == DType::kBF16 && x.num_tiles <= kTilesOfFewRows;
  for_column_ranges(a.weight.rows, columns_of_tiles(a.weight), [&](std::int64_t begin, std::int64_t end) {
    const amx::TilesInUse tiles;
    const std::int64_t pairs = divide_up(end - begin, kTilesOfWeight * kTileRows);
    ColumnSums sums(x, pairs * kTilesOfWeight);
    if (in_place) {
      multiply_in_place(a.weight, x, begin, sums);
    } else {
      multiply_packed(a.weight, x, begin, sums);
    }
    finish(a, x, begin, end, sums);
  });
  return true;
}

#else

bool amx_takes(DType, DType) { return false; }
bool gemm_amx(const GemmArguments&) { return false; }

#endif

}  // namespace tessera::cpu
