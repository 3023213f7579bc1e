#include <fmt/core.h>

#include <vector>

#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "backends/hip/attention/matrix_units.h"
#include "backends/hip/attention/prefill_tiles.h"
#include "core/rounding.h"

// matrix/attention_prefill.hip: tiles on the matrix units, for many queries.

namespace tessera::hip {

using namespace gpu;

namespace {

using kernels::MatrixPrefillShape;
using kernels::MatrixPrefillTiles;

MatrixPrefillShape shape_of(const AttentionProblem& p) {
  return {padded_head_dim_qk(p), padded_head_dim_v(p), static_cast<int>(dtype_bytes(p.q.dtype, 1))};
}

bool agrees(int forced, int value) { return forced == 0 || forced == value; }

int num_stages(const MatrixPrefillTiles& tiles) { return tiles.prefetch ? 2 : 1; }

/// The first tiles that agree with what is forced, else the first with the forced values put in.
MatrixPrefillTiles tiles_for(MatrixUnit unit, const MatrixPrefillShape& shape,
                             const AttentionConfig& forced) {
  const auto candidates = prefill_tiles(unit, shape);
  for (const MatrixPrefillTiles& t : candidates) {
    if (agrees(forced.block_m, t.block_m) && agrees(forced.block_n, t.block_n) &&
        agrees(forced.num_warps, t.num_waves) && agrees(forced.num_stages, num_stages(t)))
      return t;
  }
  MatrixPrefillTiles tiles = candidates.front();
  if (forced.block_m > 0) tiles.block_m = forced.block_m;
  if (forced.block_n > 0) tiles.block_n = forced.block_n;
  if (forced.num_warps > 0) tiles.num_waves = forced.num_warps;
  if (forced.num_stages > 0) tiles.prefetch = forced.num_stages == 2;
  return tiles;
}

MatrixPrefillTiles choose_tiles(const AttentionProblem& p, const DeviceProperties& device,
                                const AttentionConfig& forced) {
  const MatrixUnit unit = matrix_unit(device.architecture);
  const MatrixPrefillShape shape = shape_of(p);
  const MatrixPrefillTiles tiles = tiles_for(unit, shape, forced);
  const kernels::MatrixUnitTraits& traits = traits_of(unit);
  const int tile = traits.largest_tile;
  if (tiles.num_waves != 1 && tiles.num_waves != 2 && tiles.num_waves != 4 && tiles.num_waves != 8)
    reject_forced("num_warps", tiles.num_waves, "1, 2, 4 or 8");
  if (tiles.block_m % (tile * tiles.num_waves) != 0)
    reject_forced("block_m", tiles.block_m, fmt::format("a multiple of {} * num_warps", tile));
  if (tiles.block_n % tile != 0)
    reject_forced("block_n", tiles.block_n, fmt::format("a multiple of {}", tile));
  if (forced.num_stages > 2) reject_forced("num_stages", forced.num_stages, "1 or 2");
  const int shared_bytes = kernels::matrix_prefill_layout(tiles, traits, shape).shared_bytes();
  reject_large_tiles(static_cast<std::size_t>(shared_bytes), device);
  const int registers = kernels::matrix_prefill_registers(tiles, traits, shape);
  const int available = kernels::registers_of_wave(traits, tiles.min_waves);
  if (registers >= available)
    reject_forced("block_m", tiles.block_m,
                  fmt::format("rows and keys of fewer registers: {} of them don't fit in a wave's {}",
                              registers, available));
  return tiles;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (std::string reason = reason_against_matrix_unit(device.architecture, p.q.dtype); !reason.empty())
    return reason;
  if (std::string reason = reason_against_head_dims(p); !reason.empty()) return reason;
  return reason_against_scales(p);
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const MatrixPrefillTiles tiles = choose_tiles(p, device, forced);
  KernelChoice c;
  c.config = {tiles.block_m, tiles.block_n, tiles.num_waves, num_stages(tiles), 0};
  c.pack_heads = pack_short_prompts(p, tiles.block_m);
  c.entry = "attention_prefill";
  c.module = {"matrix/attention_prefill.hip", common_defines(p, term_flags(p.scores))};
  const bool is_padded = p.head_dim_qk != padded_head_dim_qk(p) || p.head_dim_v != padded_head_dim_v(p);
  c.module.defines.insert(c.module.defines.end(),
                          {define("PADDED", is_padded ? 1 : 0), define("BLOCK_M", tiles.block_m),
                           define("BLOCK_N", tiles.block_n), define("NUM_WARPS", tiles.num_waves),
                           define("MIN_WAVES", tiles.min_waves), define("SHARED_Q", tiles.shared_q ? 1 : 0),
                           define("PREFETCH", tiles.prefetch ? 1 : 0)});
  if (p.batch_invariant) c.module.defines.push_back(define("INVARIANT", 1));
  add_narrow_define(p, c.module);
  cut_for_tiles(p, device, forced, c);
  // No module with this definition is built ahead, of the kernel's neither: both come from hipRTC, whose exp
  // and log round otherwise than those of modules built ahead. A row's bits must not depend on who joins it.
  if (p.batch_invariant && c.config.num_splits > 1)
    c.combine_module.defines.push_back(define("INVARIANT", 1));
  return c;
}

/// All tiles that it chooses from, and for short prompts splits around those of its choice.
std::vector<AttentionConfig> candidates(const AttentionProblem& p, const DeviceProperties& device) {
  const AttentionConfig own = choose(p, device, {}).config;
  std::vector<AttentionConfig> configs = splits_around(own.num_splits, divide_up(p.seq_len_kv, own.block_n));
  for (const MatrixPrefillTiles& t : prefill_tiles(matrix_unit(device.architecture), shape_of(p)))
    configs.push_back({t.block_m, t.block_n, t.num_waves, num_stages(t), 0});
  return configs;
}

std::vector<BuiltProblem> built_ahead() {
  constexpr std::int64_t kPrompt = 4096;
  std::vector<BuiltProblem> problems;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (const int head_dim : {64, 128, 256}) {
      if (dtype == DType::kF32 && head_dim > 128) continue;
      for (const bool is_paged : {false, true})
        problems.push_back({usual_problem(dtype, head_dim, kPrompt, is_paged)});
    }
  }
  for (const int head_dim : {64, 128})  // a model's cache
    problems.push_back({with_narrow_kv(usual_problem(DType::kBF16, head_dim, kPrompt, /*is_paged=*/true))});
  return problems;
}

}  // namespace

extern const AttentionKernel kMatrixPrefill;
const AttentionKernel kMatrixPrefill = {
    .name = "matrix/prefill",
    .merit = "multiplies tiles on the matrix units",
    .takes_modifiers = true,
    .classifies_tiles = true,
    .takes_narrow_kv = true,
    .reason_against = reason_against,
    .choose = choose,
    .candidates = candidates,
    .sequences_at_once = tiled_sequences_at_once,
    .shape = tiled_shape,
    .built_ahead = built_ahead,
};

}  // namespace tessera::hip
