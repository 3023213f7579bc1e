#include "backends/cuda/attention/sm80_decode.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "backends/cuda/attention/reserved_shared.h"
#include "backends/cuda/attention/tile_times.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/decode_splits.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "core/rounding.h"
#include "sm80/attention_decode_traits.h"

// sm80/attention_decode.cu: few packed rows over many keys.

namespace tessera::cuda {

using namespace gpu;

extern const AttentionKernel kSm80Prefill;
extern const AttentionKernel kSm90Prefill;

namespace {

using kernels::DecodeTiles;
using kernels::kDecodeRows;
using kernels::kDecodeWarpKeys;
using kernels::kMostDecodeCluster;
using kernels::kMostDecodeWarps;

constexpr std::array kClusters = {2, 3, 4, 6, kMostDecodeCluster};  // of which groups leave few idle
constexpr std::int64_t kMostTiledRows = 64;  // in tiles of 16, of fp32 and of keys of 8 bits
constexpr std::int64_t kMostF32Rows = 32;    // beyond, other kernels' tiles of 64 rows are sooner
constexpr int kNarrowDecodeWarps = 4;        // of 16-bit types
constexpr int kWideDecodeWarps = 8;          // of a block that has a multiprocessor for itself

// Fitted to times measured on an H200, of keys and values that are not in the cache
// (docs/kernels/cuda_attention.md).
constexpr double kUnitUs = 1.06;
constexpr double kNarrowClusterRate = 0.7;  // of keys of 8 bits, which a block widens no faster
constexpr std::int64_t kMostClusterBlockBytes = 256 * 1024;
constexpr double kEarlyStart = 0.5;  // of a cluster's blocks, while the kernel before ends
constexpr DecodeRates kDecodeRates = {
    .unit_bytes = 32 * 1024,
    .start = 3.48,
    .combine = 2.07,
    .combine_of_part = 0.042,
    .rate_of_half = 1.34,
    .rate_of_halves = 1.52,
    .rate_of_whole = 1.82,
    .rate_of_f32 = 1,
    .rate_of_cluster = 1.45,
    .start_of_clusters = 2.3,
    .start_of_cluster_block = 0.032,
};

std::size_t tile_bytes(const DecodeTiles& tiles, const AttentionProblem& p, int cluster_blocks = 1) {
  const auto element_bytes = [](DType dtype) { return static_cast<int>(dtype_bytes(dtype, 1)); };
  return static_cast<std::size_t>(
      kernels::decode_shared_bytes(tiles, element_bytes(p.q.dtype), element_bytes(p.k.dtype),
                                   padded_head_dim_qk(p), padded_head_dim_v(p), cluster_blocks));
}

/// Warps hide each other's waiting: fp32, which they split themselves, wants as many as fit, and only then
/// more buffers for each. Of 16-bit types four warps with up to four buffers suffice, in two blocks a
/// multiprocessor, or eight in one (twelve, of keys of 8 bits, which they widen themselves), see widen().
DecodeTiles decode_tiles(const AttentionProblem& p, const DeviceProperties& device) {
  const auto fits = [&](const DecodeTiles& t, std::size_t blocks) {
    const std::size_t bytes = tile_bytes(t, p);
    return bytes <= device.shared_per_block_bytes &&
           bytes * blocks <= device.shared_per_multiprocessor_bytes - 2 * kReservedShared;
  };
  DecodeTiles tiles;
  if (p.q.dtype == DType::kF32) {
    const int most_warps =
        std::max(padded_head_dim_qk(p), padded_head_dim_v(p)) <= 128 ? kMostDecodeWarps : 6;
    for (const int num_warps : {kMostDecodeWarps, 8, 6, 4, 3, 2}) {
      tiles = {num_warps, 1};
      if (num_warps <= most_warps && fits(tiles, 1)) break;
    }
    if (fits({tiles.num_warps, 2}, 1)) tiles.num_stages = 2;
    return tiles;
  }
  tiles = {kNarrowDecodeWarps, 4};
  while (tiles.num_stages > 2 && !fits(tiles, padded_head_dim_qk(p) <= 128 ? 2 : 1)) --tiles.num_stages;
  return tiles;
}

/// How a head's keys are shared out.
struct KeyShares {
  std::int64_t parts = 1;
  bool are_of_cluster = false;  ///< whose blocks merge what they find themselves; else another kernel does
  double time = 0;              ///< by the model, in the rates' unit
};

/// Whether all clusters are sure to run at once, each block on a multiprocessor of its own. A cluster lies in
/// one group of a GPU's multiprocessors (of 12 to 18 on an H200), of which large ones leave some idle.
bool run_at_once(std::int64_t clusters, std::int64_t blocks, std::int64_t multiprocessors) {
  constexpr double kShareOfLarge = 0.75;
  const double share = blocks == 2 ? 1 : kShareOfLarge;
  return static_cast<double>(clusters * blocks) <= share * static_cast<double>(multiprocessors);
}

DecodeWork work_of(const AttentionProblem& p, const DeviceProperties& device, const DecodeTiles& tiles) {
  const bool fits_twice =
      2 * (tile_bytes(tiles, p) + kReservedShared) <= device.shared_per_multiprocessor_bytes;
  DecodeWork work = decode_work(p, device, kDecodeWarpKeys * tiles.num_warps);
  work.blocks *= std::max<std::int64_t>(divide_up(packed_rows(p), std::int64_t{kDecodeRows}), 1);
  work.blocks_a_multiprocessor = fits_twice ? 2 : 1;
  work.is_f32 = p.q.dtype == DType::kF32;
  return work;
}

/// Whether clusters of `blocks` blocks take the problem. Blocks that read more gain nothing by them; f32's
/// are bound by splitting it, and those of large heads by pages' rows.
bool takes_clusters(const AttentionProblem& p, const DeviceProperties& device, const DecodeTiles& tiles,
                    const DecodeWork& work, std::int64_t blocks) {
  const bool is_wide = std::max(p.head_dim_qk, p.head_dim_v) > 128;
  return device.compute_capability >= 90 && !work.is_f32 && !(is_wide && p.paged_kv) &&
         blocks <= work.key_tiles && work.bytes <= blocks * kMostClusterBlockBytes &&
         run_at_once(work.blocks, blocks, work.num_multiprocessors) &&
         tile_bytes(tiles, p, static_cast<int>(blocks)) <= device.shared_per_block_bytes;
}

/// forced_parts: how many there have to be; 0: as many as are quickest.
KeyShares choose_shares(const AttentionProblem& p, const DeviceProperties& device, const DecodeTiles& tiles,
                        std::int64_t forced_parts = 0) {
  const DecodeWork work = work_of(p, device, tiles);
  DecodeRates rates = kDecodeRates;
  if (has_narrow_kv(p)) rates.rate_of_cluster = kNarrowClusterRate;
  if (p.settled_kv) rates.start_of_cluster_block *= kEarlyStart;
  KeyShares best = {forced_parts, false, 0};
  if (forced_parts > 0) {
    best.time = time_of_splits(work, rates, forced_parts);
  } else {
    const DecodeSplits splits = choose_decode_splits(work, rates, kMaxSplits);
    best = {splits.splits, false, splits.time};
  }
  for (const std::int64_t blocks : kClusters) {
    if (forced_parts > 0 && blocks != forced_parts) continue;
    if (!takes_clusters(p, device, tiles, work, blocks)) continue;
    const double time = time_of_cluster(work, rates, blocks);
    if (time < best.time) best = {blocks, true, time};
  }
  return best;
}

/// Most warps that a module of 16-bit types takes. Large heads leave neither memory nor registers for more.
int most_decode_warps(const AttentionProblem& p) {
  if (std::max(p.head_dim_qk, p.head_dim_v) > 128) return kNarrowDecodeWarps;
  // Terms take the registers of more.
  return has_narrow_kv(p) && term_flags(p.scores) == 0 ? kMostDecodeWarps : kWideDecodeWarps;
}

/// As many warps a block as may be unless that is slower: half as many blocks fit, which may fill the device
/// without splits where four warps need two, and each has a multiprocessor for itself, also where the next
/// call's blocks come before this call's have ended.
DecodeTiles widen(const AttentionProblem& p, const DeviceProperties& device, const DecodeTiles& tiles) {
  if (p.seq_len_kv <= kDecodeWarpKeys * tiles.num_warps) return tiles;  // the others would have no keys
  const DecodeTiles wide = {most_decode_warps(p), tiles.num_stages};
  if (tile_bytes(wide, p) > device.shared_per_block_bytes) return tiles;
  return choose_shares(p, device, wide).time <= choose_shares(p, device, tiles).time ? wide : tiles;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (std::string reason = reason_against_head_dims(p); !reason.empty()) return reason;
  if (has_narrow_kv(p)) {
    if (p.q.dtype == DType::kF32)
      return fmt::format("it takes keys and values of {} beside f16 and bf16, not f32",
                         dtype_name(p.k.dtype));
    if (std::string reason = reason_against_scales(p); !reason.empty()) return reason;
  }
  // What takes its time with others is not the products, which more tiles of rows do again.
  const bool takes_tiles = has_narrow_kv(p) || p.q.dtype == DType::kF32;
  const std::int64_t most_rows = takes_tiles ? kMostTiledRows : kDecodeRows;
  const int group = p.num_heads / p.num_kv_heads;
  if (packed_rows(p) > most_rows) {
    return fmt::format("it takes up to {} rows a kv head{}, not {} queries of {} head{}", most_rows,
                       takes_tiles ? fmt::format(" of {}", dtype_name(p.k.dtype)) : "", p.seq_len_q, group,
                       group == 1 ? "" : "s");
  }
  if (p.batch_invariant) return "its bits depend on how the keys are split, and batch_invariant is asked for";
  // It does fit but for large heads on devices with little shared memory.
  if (tile_bytes(decode_tiles(p, device), p) > device.shared_per_block_bytes) {
    return fmt::format("its tiles do not fit into the {} bytes of shared memory that a block of {} has",
                       device.shared_per_block_bytes, device.name);
  }
  return {};
}

DecodeTiles choose_tiles(const AttentionProblem& p, const DeviceProperties& device,
                         const AttentionConfig& forced) {
  const bool is_f32 = p.q.dtype == DType::kF32;
  DecodeTiles tiles = decode_tiles(p, device);
  if (!is_f32 && forced.num_stages == 0 && forced.num_splits == 0) tiles = widen(p, device, tiles);
  if (forced.num_warps > 0) tiles.num_warps = forced.num_warps;
  if (forced.num_stages > 0) tiles.num_stages = forced.num_stages;
  if (forced.block_m > 0 && forced.block_m != kDecodeRows)
    reject_forced("block_m", forced.block_m, "16 for decode");
  const int block_n = kDecodeWarpKeys * tiles.num_warps;
  if (forced.block_n > 0 && forced.block_n != block_n)
    reject_forced("block_n", forced.block_n, fmt::format("{} for decode", block_n));
  if (tiles.num_warps > kMostDecodeWarps)
    reject_forced("num_warps", forced.num_warps, fmt::format("1 to {} for decode", kMostDecodeWarps));
  const int fewest_stages = is_f32 ? 1 : 2;
  if (tiles.num_stages < fewest_stages || tiles.num_stages > 8)
    reject_forced("num_stages", forced.num_stages, fmt::format("{} to 8 for decode", fewest_stages));
  reject_large_tiles(tile_bytes(tiles, p), device);
  return tiles;
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const DecodeTiles tiles = choose_tiles(p, device, forced);
  KernelChoice c;
  c.config = {kDecodeRows, kDecodeWarpKeys * tiles.num_warps, tiles.num_warps, tiles.num_stages, 0};
  c.shared_bytes = tile_bytes(tiles, p);
  c.pack_heads = p.num_heads / p.num_kv_heads;
  c.entry = "attention_decode";
  // A module of 16-bit types takes fewer warps than it is compiled for.
  const int module_warps =
      p.q.dtype == DType::kF32 ? tiles.num_warps : std::max(tiles.num_warps, most_decode_warps(p));
  c.module = {"sm80/attention_decode.cu", common_defines(p, term_flags(p.scores))};
  c.module.defines.insert(c.module.defines.end(),
                          {define("NUM_WARPS", module_warps), define("STAGES", tiles.num_stages)});
  add_narrow_define(p, c.module);
  add_piece_define(p, c.module);
  cut_rows(p, c);
  const KeyShares shares = choose_shares(p, device, tiles, forced.num_splits);
  if (!shares.are_of_cluster) {
    cut_keys(p, forced, c.config.block_n, shares.parts, c);
    return c;
  }
  c.config.num_splits = static_cast<int>(shares.parts);
  c.keys_per_split = round_up(divide_up(p.seq_len_kv, shares.parts), std::int64_t{kDecodeWarpKeys});
  c.cluster_blocks = c.config.num_splits;
  c.shared_bytes = tile_bytes(tiles, p, c.cluster_blocks);
  c.note = fmt::format("the {} blocks that share a head's keys out are a cluster and merge what they find",
                       c.cluster_blocks);
  return c;
}

/// Blocks of few warps and of as many as may be, of 16-bit types, each with splits around those of the model.
std::vector<AttentionConfig> candidates(const AttentionProblem& p, const DeviceProperties& device) {
  std::vector<AttentionConfig> configs;
  const AttentionConfig own = choose(p, device, {}).config;
  const bool is_f32 = p.q.dtype == DType::kF32;
  for (const int num_warps :
       is_f32 ? std::vector{own.num_warps} : std::vector{kNarrowDecodeWarps, most_decode_warps(p)}) {
    const DecodeTiles tiles = {num_warps, own.num_stages};
    if (tile_bytes(tiles, p) > device.shared_per_block_bytes) continue;
    configs.push_back({.num_warps = num_warps});
    for (AttentionConfig config : splits_around(choose_shares(p, device, tiles).parts,
                                                divide_up(p.seq_len_kv, kDecodeWarpKeys * num_warps))) {
      config.num_warps = num_warps;
      configs.push_back(config);
    }
  }
  return configs;
}

std::string reason_to_yield(const AttentionProblem& p, const DeviceProperties& device) {
  if (packed_rows(p) <= kDecodeRows) return {};
  constexpr std::string_view kReason = "tiles that hold more rows read and take apart the keys less often";
  if (!has_narrow_kv(p)) return std::string(packed_rows(p) <= kMostF32Rows ? "" : kReason);
  double other_us = us_of_sm80_narrow_tiles(p, device, kSm80Prefill.choose(p, device, {}));
  if (kSm90Prefill.reason_against(p, device).empty())
    other_us = std::min(other_us, us_of_sm90_narrow_tiles(p, device, kSm90Prefill.choose(p, device, {})));
  return std::string(us_of_narrow_decode(p, device, choose(p, device, {})) <= other_us ? "" : kReason);
}

/// The blocks of a cluster are neighbours along x, and all of them take all keys.
LaunchShape shape(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size) {
  LaunchShape shape = early_row_shape(choice, sequences, warp_size);
  if (choice.cluster_blocks == 1) return shape;
  shape.cluster_blocks = static_cast<unsigned>(choice.cluster_blocks);
  shape.grid[0] *= shape.cluster_blocks;
  shape.grid[2] = static_cast<unsigned>(sequences);
  return shape;
}

KernelArguments arguments(const kernels::AttentionParams& params, const AttentionProblem&,
                          const KernelChoice& choice, std::byte*) {
  kernels::AttentionParams of_kernel = params;
  if (choice.cluster_blocks > 1) of_kernel.num_splits = 1;
  return KernelArguments(of_kernel);
}

std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (const int head_dim : {64, 128, 256}) {
      if (dtype == DType::kF32 && head_dim > 128) continue;
      const bool may_spill = dtype == DType::kF32 && head_dim > 64;
      for (const bool is_paged : {false, true})
        problems.push_back({usual_problem(dtype, head_dim, 1, is_paged), may_spill});
    }
  }
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int head_dim : {64, 128}) {
      for (const bool is_paged : {false, true})
        problems.push_back({with_narrow_kv(usual_problem(dtype, head_dim, 1, is_paged))});
    }
  }
  return problems;
}

}  // namespace

double sm80_decode_us(const AttentionProblem& p, const DeviceProperties& device) {
  return kUnitUs * choose_shares(p, device, choose_tiles(p, device, {})).time;
}

bool sm80_decode_has_clusters(const AttentionProblem& p, const DeviceProperties& device) {
  return choose_shares(p, device, choose_tiles(p, device, {})).are_of_cluster;
}

extern const AttentionKernel kSm80Decode;
const AttentionKernel kSm80Decode = {
    .name = "sm80/decode",
    .merit = "shares out the keys where so few rows would leave most of a tile empty",
    .is_decode = true,
    .takes_modifiers = true,
    .classifies_tiles = true,
    .takes_narrow_kv = true,
    .reason_against = reason_against,
    .reason_to_yield = reason_to_yield,
    .choose = choose,
    .candidates = candidates,
    .sequences_at_once = row_sequences_at_once,
    .shape = shape,
    .arguments = arguments,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
