#include "backends/cuda/ops/block_stream_launch.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/ops/widened_products.h"
#include "core/rounding.h"
#include "sm90/gemm_block_stream_traits.h"

namespace tessera::cuda {

using kernels::kTeams;
using kernels::kTileRows;

namespace {

/// Of static shared memory, at most: barriers and the norm's sums, of two formats.
constexpr std::int64_t kStaticBytes = 1024;
constexpr std::int64_t kLeastSlots = 2 * kTeams;
/// As many as one row's copies keep the memory busy with; fewer leave place for what x is multiplied with.
constexpr std::int64_t kEnoughSlots = 3 * kTeams;
/// Of x, that a block holds whole rather than to ask for each piece when it comes to it.
constexpr std::int64_t kMostBytesHeld = 120 << 10;

/// w in boxes of eight rows and the eight rows_apart behind them; of 8 bytes whatever the format.
TensorMapShape slot_map(const RowsOfW& w) {
  const kernels::StreamParams& p = w.stream;
  const std::int64_t row_bytes = w.row_bytes();
  TensorMapShape shape{.data = p.gemm.weight.data, .of_words = true, .swizzle = 0};
  shape.add(row_bytes / 8, 8, w.piece.slot_row / 8);
  shape.add(p.gemm.n - p.rows_apart, row_bytes, kTileRows / 2);
  shape.add(2, p.rows_apart * row_bytes, 2);
  return shape;
}

/// What all blocks of a launch have alike.
struct Block {
  std::int64_t x_rows, columns;  // of x
  std::int64_t warps;            // that multiply
  std::int64_t num_pairs;        // that are rotated
  bool has_all_x;
  std::int64_t most_bytes;  // of shared memory

  int compiled_x_rows() const { return kernels::compiled_x_rows(static_cast<int>(x_rows)); }
  std::int64_t bytes(const RowsOfW& w, std::int64_t at_once, std::int64_t slots) const {
    return kernels::block_gemm_shared_bytes(kernels::x_floats_of_piece(compiled_x_rows()) * 4, warps, at_once,
                                            compiled_x_rows(), has_all_x ? x_rows * columns * 2 : 0,
                                            num_pairs) +
           slots * w.piece.slot;
  }
  bool fits(const RowsOfW& w, std::int64_t at_once, std::int64_t slots) const {
    return bytes(w, at_once, slots) <= most_bytes;
  }
};

struct Share {
  std::int64_t at_once, slots;
};

/// How a block goes over `groups` groups: what a warp makes ready of x serves those at once.
Share share(const Block& block, const RowsOfW& w, std::int64_t groups) {
  const std::int64_t least = block.x_rows <= 2 && block.fits(w, 1, kEnoughSlots) ? kEnoughSlots : kLeastSlots;
  const std::int64_t at_once =
      groups_at_once(groups, [&](std::int64_t some) { return block.fits(w, some, least); });
  std::int64_t slots = kLeastSlots;
  while (slots < kernels::kMostSlots && block.fits(w, at_once, slots + kTeams)) slots += kTeams;
  return {at_once, slots};
}

}  // namespace

std::optional<BlockGemmLaunch> block_stream_launch(std::span<const RowsOfW> w, DType x_dtype,
                                                   const gpu::DeviceProperties& device) {
  const kernels::GemmParams& p = w.front().stream.gemm;
  const bool is_normed = w.front().is_normed();
  const std::int64_t pieces = w.front().pieces();
  const auto has_tensor_map = [](const RowsOfW& rows) { return rows.row_bytes() % 16 == 0; };
  if (device.compute_capability != 90 || !device.has_tensor_maps || !std::ranges::all_of(w, has_tensor_map))
    return {};
  // Rows of fewer pieces than a team has warps leave place for more blocks of fewer warps.
  const std::int64_t team_warps = std::min<std::int64_t>(pieces, kernels::kSlotPieces);
  const std::int64_t resident = kernels::kSlotPieces / team_warps;
  const std::int64_t warps = kTeams * team_warps;
  Block block{p.m,
              p.k,
              warps,
              w.front().num_pairs(),
              is_normed,
              std::min(static_cast<std::int64_t>(device.shared_per_block_bytes),
                       static_cast<std::int64_t>(device.shared_per_multiprocessor_bytes) / resident -
                           kSystemSharedBytes) -
                  kStaticBytes};
  const std::int64_t blocks = std::min(count_groups(w), resident * device.num_multiprocessors);
  if (blocks < static_cast<std::int64_t>(w.size()) || !w.front().can_be_normed_by(warps * 32)) return {};
  const std::int64_t most_groups = divide_up(count_groups(w), blocks);  // of a block
  const auto fits = [&](std::int64_t at_once) {
    return std::ranges::all_of(w,
                               [&](const RowsOfW& rows) { return block.fits(rows, at_once, kLeastSlots); });
  };
  // Not at the price of making it ready more often.
  block.has_all_x = is_normed;
  const std::int64_t at_once = groups_at_once(most_groups, fits);
  if (!is_normed && p.m * p.k * 2 <= kMostBytesHeld) {
    block.has_all_x = true;
    if (!fits(at_once)) block.has_all_x = false;
  }
  if (!fits(1)) return {};

  BlockGemmLaunch launch;
  launch.shape = {
      {static_cast<unsigned>(blocks), 1, 1}, {static_cast<unsigned>((warps + 1) * 32), 1, 1}, 0, true};
  const auto params_of = [&](const RowsOfW& rows, std::int64_t blocks_of_rows) {
    const auto [at_once, slots] = share(block, rows, divide_up(rows.groups, blocks_of_rows));
    launch.shape.shared_bytes =
        std::max(launch.shape.shared_bytes, static_cast<std::size_t>(block.bytes(rows, at_once, slots)));
    launch.maps.push_back(slot_map(rows));
    return kernels::BlockStreamParams{
        {},
        {rows.stream, static_cast<int>(rows.groups / blocks_of_rows),
         static_cast<int>(rows.groups % blocks_of_rows), static_cast<int>(at_once), static_cast<int>(slots)},
        block.has_all_x && !is_normed ? 1 : 0};
  };
  launch.module = {"sm90/gemm_block_stream.cu", {gpu::blocks_define(w.front().dtype)}};
  if (w.size() == 1) {
    launch.params = params_of(w.front(), blocks);
  } else {
    launch.module.defines.push_back(gpu::blocks_define(w.back().dtype, "TESSERA_LOWER_BLOCKS"));
    const std::int64_t of_upper = blocks_of_upper(w.front(), w.back(), blocks);
    kernels::TwoBlockStreamParams two;
    two.upper = params_of(w.front(), of_upper);
    two.lower = params_of(w.back(), blocks - of_upper);
    two.upper_blocks = static_cast<int>(of_upper);
    launch.params = two;
  }
  launch.module.defines.push_back(fmt::format("TESSERA_X_ROWS={}", block.compiled_x_rows()));
  launch.module.defines.push_back(fmt::format("TESSERA_ONLY={}", gpu::part_of_x(x_dtype)));
  launch.entry = fmt::format("gemm_block_stream{}_{}", is_normed ? "_normed" : "", dtype_name(x_dtype));
  return launch;
}

}  // namespace tessera::cuda
