#include "backends/cpu/ops/packed_x.h"

#if defined(__x86_64__)

#include <algorithm>
#include <atomic>

#include "backends/cpu/ops/gemm_columns.h"
#include "core/parallel.h"

namespace tessera::cpu {

PackedX pack_x(const Matrix& x, const std::optional<BlockTiles>& blocks) {
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

std::int64_t columns_of_task(const Weight& w, std::int64_t most) {
  constexpr std::int64_t kMultiple = kTilesOfWeight * kTileRows;
  const std::int64_t even = divide_up(w.rows, std::int64_t{2} * num_threads());
  return std::min(most, divide_up(even, kMultiple) * kMultiple);
}

void finish_tiles(const GemmArguments& a, const PackedX& x, XTileOrder order, std::int64_t begin,
                  std::int64_t end, ColumnSums& sums) {
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

}  // namespace tessera::cpu

#endif
