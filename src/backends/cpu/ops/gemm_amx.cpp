#include "backends/cpu/ops/gemm_amx.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "backends/cpu/amx_tiles.h"
#include "backends/cpu/ops/block_tiles.h"
#include "backends/cpu/ops/gemm_columns.h"
#include "backends/cpu/ops/scratch.h"
#include "backends/cpu/ops/tile_products.h"
#include "core/block_format.h"
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
  std::int64_t step_bytes = 0;
  bool is_finite = true;

  const std::byte* tile(std::int64_t index, std::int64_t step) const {
    return static_cast<const std::byte*>(memory.data()) + (index * steps + step) * step_bytes;
  }
  const float* sums_of(std::int64_t index, std::int64_t step, int groups_of_step) const {
    return sums.floats() + (index * steps + step) * groups_of_step * kTileRows;
  }
};

/// blocks: how w lies in tiles if it consists of blocks.
PackedX pack(const Matrix& x, const std::optional<BlockTiles>& blocks) {
  PackedX packed;
  packed.num_tiles = divide_up(x.rows, kTileRows);
  packed.steps = divide_up(x.columns, kTileDepth);
  packed.parts = bf16_parts(x.dtype);
  packed.exponents.resize(static_cast<std::size_t>(packed.num_tiles * kTileRows));
  const XTileOrder order = blocks ? blocks->x_order() : XTileOrder::kPairs;
  packed.step_bytes = x_tiles_of_step(order, packed.parts) * kPackedTileBytes;
  const bool has_sums = blocks && blocks->has_offsets;
  const std::int64_t tile_bytes = packed.steps * packed.step_bytes;
  packed.memory = scratch_floats(packed.num_tiles, tile_bytes / 4, "gemm's x in tiles");
  const std::int64_t sums_of_tile = has_sums ? packed.steps * blocks->groups_of_step * kTileRows : 0;
  packed.sums = scratch_floats(packed.num_tiles, sums_of_tile, "sums of gemm's x");
  std::atomic<bool> is_finite = true;
  parallel_for(static_cast<std::size_t>(packed.num_tiles), [&](std::size_t task) {
    const auto i = static_cast<std::int64_t>(task);
    auto* tiles = static_cast<std::byte*>(packed.memory.data()) + i * tile_bytes;
    GroupSums sums;
    if (has_sums) sums = {packed.sums.floats() + i * sums_of_tile, blocks->groups_of_step};
    if (!pack_x_tiles(x, i * kTileRows, order, tiles, &packed.exponents[task * kTileRows], sums))
      is_finite = false;
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

/// Rounds and stores the sums of columns [begin, end), in tiles of the order that x had in its.
void finish(const GemmArguments& a, const PackedX& x, XTileOrder order, std::int64_t begin, std::int64_t end,
            ColumnSums& sums) {
  const std::int64_t stride = sums.num_tiles() * kTileRows;
  const Scratch strip = scratch_floats(kTileRows, stride, "rows of gemm's sums");
  for (std::int64_t j = 0; j < x.num_tiles; ++j) {
    for (std::int64_t i = 0; i < sums.num_tiles(); ++i)
      copy_tile(sums.tile(j, i), order, strip.floats() + i * kTileRows, stride);
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

void multiply_columns(const GemmArguments& a, const PackedX& x, std::int64_t begin, std::int64_t end) {
  const std::int64_t pairs = divide_up(end - begin, kTilesOfWeight * kTileRows);
  ColumnSums sums(x, pairs * kTilesOfWeight);
  if (a.weight.dtype == DType::kBF16 && x.num_tiles <= kTilesOfFewRows) {
    multiply_in_place(a.weight, x, begin, sums);
  } else {
    multiply_packed(a.weight, x, begin, sums);
  }
  finish(a, x, XTileOrder::kPairs, begin, end, sums);
}

/// A piece of k of some columns of blocks, packed in panels of as many tiles as the first-level cache holds
/// sums for.
class PackedPanels {
 public:
  static constexpr std::int64_t kPanelTiles = 16;

  PackedPanels(const Weight& w, const BlockTiles& layout, std::int64_t num_tiles, std::int64_t most_steps)
      : w_(w),
        layout_(layout),
        num_tiles_(num_tiles),
        panel_tiles_(std::min(kPanelTiles, num_tiles) * most_steps * layout.groups_of_step),
        tiles_(scratch_floats(num_panels() * panel_tiles_, kPackedTileBytes / 4, "weights in tiles")),
        scales_(scratch_floats(num_panels() * panel_tiles_, kTileRows, "scales")),
        offsets_(scratch_floats(num_panels() * panel_tiles_, layout.has_offsets ? kTileRows : 0, "offsets")) {
  }

  std::int64_t num_panels() const { return divide_up(num_tiles_, kPanelTiles); }
  PackedBlocks panel(std::int64_t i) {
    const std::int64_t at = i * panel_tiles_;
    PackedBlocks panel;
    panel.tiles = static_cast<std::byte*>(tiles_.data()) + at * kPackedTileBytes;
    panel.scales = scales_.floats() + at * kTileRows;
    if (layout_.has_offsets) panel.offsets = offsets_.floats() + at * kTileRows;
    panel.num_tiles = std::min(kPanelTiles, num_tiles_ - i * kPanelTiles);
    return panel;
  }
  void pack(std::int64_t first_row, std::int64_t step, std::int64_t steps) {
    for (std::int64_t i = 0; i < num_tiles_; ++i) {
      pack_blocks(w_, layout_, first_row + i * kTileRows, step * kTileDepth, steps * kTileDepth,
                  i % kPanelTiles, panel(i / kPanelTiles));
    }
  }

 private:
  const Weight& w_;
  const BlockTiles& layout_;
  std::int64_t num_tiles_;
  std::int64_t panel_tiles_;
  Scratch tiles_;
  Scratch scales_;
  Scratch offsets_;
};

/// As multiply_packed, of blocks.
void multiply_columns_of_blocks(const GemmArguments& a, const BlockTiles& layout, const PackedX& x,
                                std::int64_t begin, std::int64_t end) {
  // 512 or 256 elements of k: whole blocks of all formats, and 512 KB of the second-level cache in tiles.
  const std::int64_t most_steps = 16 / layout.groups_of_step;
  constexpr std::int64_t kMultiple = 4;  // which products come in
  const std::int64_t num_tiles = divide_up(end - begin, kTileRows * kMultiple) * kMultiple;
  ColumnSums sums(x, num_tiles);
  PackedPanels weights(a.weight, layout, num_tiles, std::min(most_steps, x.steps));
  BlockProduct p;
  p.groups_of_step = layout.groups_of_step;
  p.x_parts = x.parts;
  for (std::int64_t step = 0; step < x.steps; step += most_steps) {
    p.steps = std::min(most_steps, x.steps - step);
    weights.pack(begin, step, p.steps);
    for (std::int64_t j = 0; j < x.num_tiles; ++j) {
      p.x = x.tile(j, step);
      p.x_next = j + 1 < x.num_tiles ? x.tile(j + 1, step) : x.tile(0, step + p.steps);
      if (layout.has_offsets) p.x_sums = x.sums_of(j, step, layout.groups_of_step);
      for (std::int64_t i = 0; i < weights.num_panels(); ++i) {
        p.w = weights.panel(i);
        p.c = sums.tile(j, i * PackedPanels::kPanelTiles);
        if (step == 0) std::fill_n(p.c, p.w.num_tiles * kPackedTileBytes / 4, 0.0f);
        multiply_blocks(p);
      }
    }
  }
  finish(a, x, XTileOrder::kRows, begin, end, sums);
}

bool has_blocks(DType weight) { return block_format(weight).elements > 1; }

/// Columns a task takes: its sums for all rows and a piece of its weights share the second-level cache.
/// Blocks' products take so little time that x, which comes from the third for each task, needs many columns.
std::int64_t columns_of_tiles(const Weight& w) {
  constexpr std::int64_t kMultiple = kTilesOfWeight * kTileRows;
  const std::int64_t most = w.dtype == DType::kF16 ? 128 : has_blocks(w.dtype) ? 512 : 256;
  const std::int64_t even = divide_up(w.rows, std::int64_t{2} * num_threads());
  return std::min(most, divide_up(even, kMultiple) * kMultiple);
}

}  // namespace

bool amx_takes(DType x, DType weight) {
  return bf16_parts(x) != 0 && (weight == DType::kBF16 || weight == DType::kF16 || has_blocks(weight));
}

bool gemm_amx(const GemmArguments& a) {
  std::optional<BlockTiles> blocks;
  if (has_blocks(a.weight.dtype)) blocks.emplace(a.weight.dtype);
  const PackedX x = pack(a.x, blocks);
  const bool has_parts = x.parts > 1 || weight_parts(a.weight.dtype) > 1 || (blocks && blocks->has_offsets);
  if (has_parts && !x.is_finite) return false;
  for_column_ranges(a.weight.rows, columns_of_tiles(a.weight), [&](std::int64_t begin, std::int64_t end) {
    const amx::TilesInUse tiles;
    if (blocks) {
      multiply_columns_of_blocks(a, *blocks, x, begin, end);
    } else {
      multiply_columns(a, x, begin, end);
    }
  });
  return true;
}

#else

bool amx_takes(DType, DType) { return false; }
bool gemm_amx(const GemmArguments&) { return false; }

#endif

}  // namespace tessera::cpu
