#include "backends/cpu/ops/gemm_blocks.h"

#if defined(__x86_64__)

#include <algorithm>
#include <optional>

#include "backends/cpu/amx_tiles.h"
#include "backends/cpu/ops/block_dots.h"
#include "backends/cpu/ops/gemm_columns.h"
#include "backends/cpu/ops/packed_x.h"
#include "backends/cpu/ops/scratch.h"
#include "core/parallel.h"

namespace tessera::cpu {
namespace {

/// A piece of k of some columns of blocks, packed in panels of as many tiles as the first-level cache holds
/// sums for.
class PackedPanels {
 public:
  static constexpr std::int64_t kPanelTiles = 16;

  PackedPanels(const Weight& w, const BlockTiles& layout, std::int64_t num_tiles, std::int64_t most_steps)
      : w_(w),
        layout_(layout),
        num_tiles_(num_tiles),
        panel_tiles_(std::min(kPanelTiles, num_tiles) * most_steps),
        tiles_(scratch_floats(num_panels() * panel_tiles_ * layout.tiles_of_step, kPackedTileBytes / 4,
                              "weights in tiles")),
        scales_(scratch_floats(num_panels() * panel_tiles_ * layout.groups_of_step, kTileRows, "scales")),
        offsets_(scratch_floats(num_panels() * panel_tiles_ * layout.groups_of_step,
                                layout.has_offsets ? kTileRows : 0, "offsets")) {}

  std::int64_t num_panels() const { return divide_up(num_tiles_, kPanelTiles); }
  PackedBlocks panel(std::int64_t i) {
    const std::int64_t groups = i * panel_tiles_ * layout_.groups_of_step;
    PackedBlocks panel;
    panel.tiles =
        static_cast<std::byte*>(tiles_.data()) + i * panel_tiles_ * layout_.tiles_of_step * kPackedTileBytes;
    panel.scales = scales_.floats() + groups * kTileRows;
    if (layout_.has_offsets) panel.offsets = offsets_.floats() + groups * kTileRows;
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
  std::int64_t panel_tiles_;  // of all steps
  Scratch tiles_;
  Scratch scales_;
  Scratch offsets_;
};

/// Weights are packed a piece of k at a time, which stays in the second-level cache for all rows of x.
void multiply_columns(const GemmArguments& a, const BlockTiles& layout, BlockUnit unit, const PackedX& x,
                      std::int64_t begin, std::int64_t end) {
  // 512 or 256 elements of k: whole blocks of all formats, and 512 KB of the second-level cache in tiles.
  const std::int64_t most_steps = 16 / layout.tiles_of_step;
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
      p.rows = static_cast<int>(std::min(kTileRows, a.x.rows - j * kTileRows));
      p.x = x.tile(j, step);
      p.x_next = j + 1 < x.num_tiles ? x.tile(j + 1, step) : x.tile(0, step + p.steps);
      if (layout.has_offsets) p.x_sums = x.sums_of(j, step, layout.groups_of_step);
      for (std::int64_t i = 0; i < weights.num_panels(); ++i) {
        p.w = weights.panel(i);
        p.c = sums.tile(j, i * PackedPanels::kPanelTiles);
        if (step == 0) std::fill_n(p.c, p.w.num_tiles * kPackedTileBytes / 4, 0.0f);
        if (unit == BlockUnit::kAmx) {
          multiply_blocks(p);
        } else {
          multiply_blocks_by_dots(p);
        }
      }
    }
  }
  finish_tiles(a, x, XTileOrder::kRows, begin, end, sums);
}

}  // namespace

bool gemm_blocks(const GemmArguments& a, BlockUnit unit) {
  const BlockTiles layout(a.weight.dtype, unit);
  const PackedX x = pack_x(a.x, layout);
  if ((x.parts > 1 || layout.has_offsets) && !x.is_finite) return false;
  // Products take so little time that x, which comes from the third-level cache for each task, needs many.
  constexpr std::int64_t kMostColumns = 512;
  for_column_ranges(a.weight.rows, columns_of_task(a.weight, kMostColumns),
                    [&](std::int64_t begin, std::int64_t end) {
                      std::optional<amx::TilesInUse> tiles;
                      if (unit == BlockUnit::kAmx) tiles.emplace();
                      multiply_columns(a, layout, unit, x, begin, end);
                    });
  return true;
}

}  // namespace tessera::cpu

#else

namespace tessera::cpu {

bool gemm_blocks(const GemmArguments&, BlockUnit) { return false; }

}  // namespace tessera::cpu

#endif
