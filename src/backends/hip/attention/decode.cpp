#include <fmt/core.h>

#include <algorithm>

#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/decode_splits.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "backends/hip/attention/matrix_units.h"
#include "backends/hip/runtime/targets.h"
#include "core/rounding.h"
#include "matrix/attention_decode_traits.h"

// matrix/attention_decode.hip: few packed rows over many keys.

namespace tessera::hip {

using namespace gpu;

namespace {

using kernels::MatrixDecodeTiles;

constexpr int kTile = kernels::kDecodeTile;
constexpr int kKeyWaves = 4;   // that take keys of their own
constexpr int kMostWaves = 8;  // of a workgroup
constexpr int kMostRowTiles = 2;
constexpr int kMostDimOfTwoRowTiles = 128;  // head_dim_v, of 16-bit types: more sums than registers beyond

// Not measured: no AMD GPU was at hand. What is sure is that a compute unit's fair share of memory's rate is
// 15 to 20 bytes a nanosecond on all of them (docs/kernels/amd_decode.md), so that the unit is about 1 us,
// and that a workgroup has 8 to 32 KiB under way, about as much as that rate times the latency.
constexpr DecodeRates kDecodeRates = {
    .unit_bytes = 16 * 1024,
    .start = 4,
    .combine = 4,
    .combine_of_part = 0.03,
    .rate_of_half = 1.2,
    .rate_of_halves = 1.6,
    .rate_of_whole = 1.2,
    .rate_of_f32 = 1.2,
};

/// Waves that take the same keys.
int column_parts(const AttentionProblem& p, MatrixUnit unit, int row_tiles) {
  return kernels::decode_column_parts(traits_of(unit), row_tiles, padded_head_dim_v(p));
}

std::size_t shared_bytes(const MatrixDecodeTiles& t, const AttentionProblem& p, MatrixUnit unit) {
  const int element_bytes = static_cast<int>(dtype_bytes(p.q.dtype, 1));
  const kernels::MatrixDecodeLayout layout = kernels::matrix_decode_layout(
      t, traits_of(unit), element_bytes, padded_head_dim_qk(p), padded_head_dim_v(p));
  return static_cast<std::size_t>(layout.all) * sizeof(float);
}

int rows_of(const AttentionProblem& p) {
  return static_cast<int>(p.seq_len_q) * (p.num_heads / p.num_kv_heads);
}

/// Latent attention's, which no other kernel but the plain one takes: any number of rows is worth it here.
bool has_large_heads(const AttentionProblem& p) { return !reason_against_head_dims(p).empty(); }

/// Empty if a lane's registers hold its parts of a tile's keys and values, and its sums.
std::string reason_against_dims(const AttentionProblem& p, MatrixUnit unit) {
  if (!has_large_heads(p)) return {};
  if (unit != MatrixUnit::kMfma || p.q.dtype == DType::kF32) return reason_against_head_dims(p);
  if (p.head_dim_qk <= kernels::kMostWideHeadQk && p.head_dim_v <= kernels::kMostWideHeadV) return {};
  return fmt::format("it takes head_dims up to {} and {}, not {} and {}", kernels::kMostWideHeadQk,
                     kernels::kMostWideHeadV, p.head_dim_qk, p.head_dim_v);
}

int most_row_tiles(const AttentionProblem& p) {
  return p.q.dtype != DType::kF32 && padded_head_dim_v(p) <= kMostDimOfTwoRowTiles ? kMostRowTiles : 1;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (std::string reason = reason_against_matrix_unit(device.architecture, p.q.dtype); !reason.empty())
    return reason;
  if (std::string reason = reason_against_dims(p, matrix_unit(device.architecture)); !reason.empty())
    return reason;
  if (std::string reason = reason_against_scales(p); !reason.empty()) return reason;
  const int group = p.num_heads / p.num_kv_heads;
  const int most_rows = kTile * most_row_tiles(p);
  if (p.seq_len_q * group > most_rows && !has_large_heads(p)) {
    return fmt::format("it takes up to {} rows a kv head, not {} queries of {} head{}", most_rows,
                       p.seq_len_q, group, group == 1 ? "" : "s");
  }
  if (p.batch_invariant) return "its bits depend on how the keys are split, and batch_invariant is asked for";
  return {};
}

MatrixDecodeTiles choose_tiles(const AttentionProblem& p, const DeviceProperties& device,
                               const AttentionConfig& forced) {
  const MatrixUnit unit = matrix_unit(device.architecture);
  MatrixDecodeTiles tiles = {0, std::clamp(divide_up(rows_of(p), kTile), 1, most_row_tiles(p))};
  if (forced.block_m > 0) {
    if (forced.block_m % kTile != 0 || forced.block_m > kTile * most_row_tiles(p))
      reject_forced(
          "block_m", forced.block_m,
          most_row_tiles(p) > 1 ? "16 or 32 for decode" : "16 for decode of such a head_dim or dtype");
    tiles.row_tiles = forced.block_m / kTile;
  }
  const int parts = column_parts(p, unit, tiles.row_tiles);
  tiles.num_waves = std::min(kKeyWaves * parts, kMostWaves);
  if (forced.num_warps > 0) tiles.num_waves = forced.num_warps;
  if (tiles.num_waves > kMostWaves || tiles.num_waves % parts != 0)
    reject_forced("num_warps", forced.num_warps,
                  fmt::format("{} to {} for decode{}", parts, kMostWaves,
                              parts > 1 ? fmt::format(", a multiple of {}", parts) : ""));
  const int block_n = kTile * tiles.num_waves / parts;
  if (forced.block_n > 0 && forced.block_n != block_n)
    reject_forced("block_n", forced.block_n, fmt::format("{} for decode", block_n));
  if (forced.num_stages > 1) reject_forced("num_stages", forced.num_stages, "1 for decode");
  reject_large_tiles(shared_bytes(tiles, p, unit), device);
  return tiles;
}

std::int64_t choose_splits(const AttentionProblem& p, const DeviceProperties& device, int key_tile,
                           std::int64_t row_tiles) {
  DecodeWork work = decode_work(p, device, key_tile);
  work.blocks *= row_tiles;
  work.blocks_a_multiprocessor = 2;  // at least: by registers and LDS
  return choose_decode_splits(work, kDecodeRates, kMaxSplits).splits;
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const MatrixUnit unit = matrix_unit(device.architecture);
  const MatrixDecodeTiles tiles = choose_tiles(p, device, forced);
  const int block_n = kTile * tiles.num_waves / column_parts(p, unit, tiles.row_tiles);
  KernelChoice c;
  c.config = {kTile * tiles.row_tiles, block_n, tiles.num_waves, 1, 0};
  c.shared_bytes = shared_bytes(tiles, p, unit);
  c.pack_heads = p.num_heads / p.num_kv_heads;
  c.entry = "attention_decode";
  c.module = {"matrix/attention_decode.hip", common_defines(p, term_flags(p.scores))};
  c.module.defines.insert(c.module.defines.end(),
                          {define("NUM_WARPS", tiles.num_waves), define("ROW_TILES", tiles.row_tiles)});
  add_narrow_define(p, c.module);
  cut_rows(p, c);
  const std::int64_t wanted = forced.num_splits > 0 ? 1 : choose_splits(p, device, block_n, c.num_row_tiles);
  cut_keys(p, forced, block_n, wanted, c);
  return c;
}

/// Workgroups of fewer and more waves, and of one tile of rows and two, each with splits around the model's.
std::vector<AttentionConfig> candidates(const AttentionProblem& p, const DeviceProperties& device) {
  const AttentionConfig own = choose(p, device, {}).config;
  std::vector<AttentionConfig> configs;
  for (const int num_warps : {own.num_warps / 2, own.num_warps, own.num_warps * 2}) {
    for (int row_tiles = 1; row_tiles <= most_row_tiles(p); ++row_tiles) {
      const int block_m = kTile * row_tiles;
      if (num_warps < 1 || num_warps > kMostWaves) continue;
      configs.push_back({.block_m = block_m, .num_warps = num_warps});
      if (block_m != own.block_m) continue;
      for (AttentionConfig config : splits_around(own.num_splits, divide_up(p.seq_len_kv, own.block_n))) {
        config.block_m = block_m;
        config.num_warps = num_warps;
        configs.push_back(config);
      }
    }
  }
  return configs;
}

std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (const int head_dim : {64, 128, 256}) {
      if (dtype == DType::kF32 && head_dim > 128) continue;
      // With 4 heads a kv head one tile of rows, and two.
      for (const std::int64_t seq_len_q : {1, 8}) {
        for (const bool is_paged : {false, true})
          problems.push_back({usual_problem(dtype, head_dim, seq_len_q, is_paged)});
      }
    }
  }
  AttentionProblem latent = usual_problem(DType::kBF16, 576, 1, /*is_paged=*/true);
  latent.num_kv_heads = 1;
  latent.head_dim_v = 512;
  problems.push_back({latent});
  for (const int head_dim : {64, 128})  // a model's cache
    problems.push_back({with_narrow_kv(usual_problem(DType::kBF16, head_dim, 1, /*is_paged=*/true))});
  return problems;
}

}  // namespace

extern const AttentionKernel kMatrixDecode;
const AttentionKernel kMatrixDecode = {
    .name = "matrix/decode",
    .merit = "shares out the keys where so few rows would leave most of a tile empty",
    .is_decode = true,
    .takes_modifiers = true,
    .classifies_tiles = true,
    .takes_narrow_kv = true,
    .reason_against = reason_against,
    .choose = choose,
    .candidates = candidates,
    .sequences_at_once = row_sequences_at_once,
    .shape = row_shape,
    .built_ahead = built_ahead,
};

}  // namespace tessera::hip
