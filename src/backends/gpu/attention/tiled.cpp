#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "common/attention_tiled_traits.h"
#include "core/rounding.h"

// common/attention_tiled.cu: tiles on the units that all GPUs have, for what no kernel of matrix units takes.

namespace tessera::gpu {
namespace {

using kernels::kTiledKeys;
using kernels::kTiledMostRows;
using kernels::kTiledThreadRows;

constexpr int kBlocksAtOnce = 2;  // of a multiprocessor, by registers

int shared_kib(const DeviceProperties& device) {
  return static_cast<int>(device.shared_per_block_bytes / 1024);
}

std::size_t shared_bytes(const AttentionProblem& p, const DeviceProperties& device, int block_m) {
  constexpr int kMultiple = kernels::kTiledHeadDimMultiple;
  return static_cast<std::size_t>(kernels::tiled_shared_bytes(kernels::tiled_layout(
      {block_m, padded_head_dim_qk(p, kMultiple), padded_head_dim_v(p, kMultiple), shared_kib(device)})));
}

/// As many rows as there are, in a power of two.
int rows_of_block(const AttentionProblem& p) {
  const std::int64_t rows = packed_rows(p);
  const auto few = static_cast<unsigned>(std::clamp<std::int64_t>(rows, kTiledThreadRows, kTiledMostRows));
  return static_cast<int>(std::bit_ceil(few));
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (p.batch_invariant) return "its bits depend on how the keys are split, and batch_invariant is asked for";
  if (shared_bytes(p, device, rows_of_block(p)) > device.shared_per_block_bytes) {
    return fmt::format("its tiles do not fit into the {} bytes of shared memory that a block of {} has",
                       device.shared_per_block_bytes, device.name);
  }
  return {};
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const int block_m = forced.block_m > 0 ? forced.block_m : rows_of_block(p);
  if (block_m < kTiledThreadRows || block_m > kTiledMostRows ||
      !std::has_single_bit(static_cast<unsigned>(block_m)))
    reject_forced("block_m", block_m, "4, 8, 16, 32 or 64");
  if (forced.block_n > 0 && forced.block_n != kTiledKeys)
    reject_forced("block_n", forced.block_n, std::to_string(kTiledKeys));
  const int num_warps = kernels::kTiledAttentionThreads / device.warp_size;
  if (forced.num_warps > 0 && forced.num_warps != num_warps)
    reject_forced("num_warps", forced.num_warps, std::to_string(num_warps));
  if (forced.num_stages > 1) reject_forced("num_stages", forced.num_stages, "1");
  KernelChoice c;
  c.config = {block_m, kTiledKeys, num_warps, 1, 0};
  c.shared_bytes = shared_bytes(p, device, block_m);
  reject_large_tiles(c.shared_bytes, device);
  c.pack_heads = p.num_heads / p.num_kv_heads;
  c.entry = "attention_tiled";
  c.module = {"common/attention_tiled.cu",
              common_defines(p, term_flags(p.scores), kernels::kTiledHeadDimMultiple)};
  for (std::string& d : c.module.defines) {
    if (d.starts_with("TESSERA_PAGED=")) d = define("PAGED", 0);  // the call's arguments say so
  }
  c.module.defines.push_back(define("BLOCK_M", block_m));
  c.module.defines.push_back(define("SHARED_KIB", shared_kib(device)));
  add_narrow_define(p, c.module);
  add_piece_define(p, c.module);
  DeviceProperties filled = device;  // when each multiprocessor has as many blocks as fit
  filled.num_multiprocessors *= kBlocksAtOnce;
  cut_for_tiles(p, filled, forced, c);
  return c;
}

/// What GPUs without matrix units for fp32 have of it.
std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  for (const int head_dim : {64, 128}) {
    for (const int seq_len_q : {1, 4096})
      problems.push_back({usual_problem(DType::kF32, head_dim, seq_len_q, false)});
  }
  return problems;
}

/// Tiles of more rows and of fewer, and splits around those of its choice.
std::vector<AttentionConfig> candidates(const AttentionProblem& p, const DeviceProperties& device) {
  const AttentionConfig own = choose(p, device, {}).config;
  std::vector<AttentionConfig> configs = splits_around(own.num_splits, divide_up(p.seq_len_kv, own.block_n));
  for (const int block_m : {own.block_m / 2, own.block_m * 2}) {
    if (block_m >= kTiledThreadRows && block_m <= kTiledMostRows) configs.push_back({.block_m = block_m});
  }
  return configs;
}

}  // namespace

const AttentionKernel kTiledAttention = {
    .name = "tiled",
    .merit = "multiplies tiles",
    .note =
        "the tiled kernel for any GPU, which uses no unit for matrices: no tuned one takes such a problem",
    .is_plain = true,
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

}  // namespace tessera::gpu
