#include <fmt/core.h>

#include <algorithm>

#include "backends/cuda/attention/reserved_shared.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "core/rounding.h"
#include "sm80/attention_f32_traits.h"

// sm80/attention_f32.cu: tensor-core tiles of fp32, each product by three in fp16.

namespace tessera::cuda {

using namespace gpu;

namespace {

using kernels::F32Tiles;
using kernels::kF32Stages;

std::string reason_against(const AttentionProblem& p, const DeviceProperties&) {
  if (p.q.dtype != DType::kF32) return "it takes f32, not " + std::string(dtype_name(p.q.dtype));
  return reason_against_head_dims(p);
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const int head_dim_qk = padded_head_dim_qk(p);
  const int head_dim_v = padded_head_dim_v(p);
  const int head_dim = std::max(head_dim_qk, head_dim_v);
  const int group = p.num_heads / p.num_kv_heads;
  const int block_n =
      forced.block_n > 0
          ? forced.block_n
          : kernels::f32_block_n(head_dim, static_cast<int>(device.shared_per_block_bytes / 1024));
  const kernels::F32Candidates candidates =
      kernels::f32_candidates(head_dim, block_n, term_flags(p.scores) != 0);
  F32Tiles tiles = {};
  std::size_t shared_bytes = 0;
  for (const F32Tiles& candidate : candidates.tiles) {
    tiles = candidate;
    if (forced.block_m > 0) tiles.block_m = forced.block_m;
    if (forced.num_warps > 0) tiles.num_warps = forced.num_warps;
    shared_bytes = static_cast<std::size_t>(kernels::f32_shared_bytes(tiles, head_dim_qk, head_dim_v));
    if (shared_bytes > device.shared_per_block_bytes) continue;
    const std::int64_t blocks = divide_up(p.seq_len_q * group, tiles.block_m) * p.num_kv_heads * p.batch;
    if (blocks >= device.num_multiprocessors || tiles.block_m <= 64) break;
  }
  if (tiles.num_warps != 1 && tiles.num_warps != 2 && tiles.num_warps != 4 && tiles.num_warps != 8)
    reject_forced("num_warps", tiles.num_warps, "1, 2, 4 or 8");
  if (tiles.block_m % (16 * tiles.num_warps) != 0)
    reject_forced("block_m", tiles.block_m, "a multiple of 16 * num_warps");
  if (block_n != 16 && block_n != 32 && block_n != 64 && block_n != 128)
    reject_forced("block_n", block_n, "16, 32, 64 or 128 for f32");
  if (forced.num_stages > 0 && forced.num_stages != kF32Stages)
    reject_forced("num_stages", forced.num_stages, fmt::format("{} for f32", kF32Stages));
  reject_large_tiles(shared_bytes, device);
  const bool fits_twice = 2 * (shared_bytes + kReservedShared) <= device.shared_per_multiprocessor_bytes;
  const int min_blocks = tiles.num_warps <= 4 && fits_twice ? 2 : 1;

  KernelChoice c;
  c.config = {tiles.block_m, tiles.block_n, tiles.num_warps, kF32Stages, 0};
  c.shared_bytes = shared_bytes;
  c.pack_heads = pack_short_prompts(p, tiles.block_m);
  c.entry = "attention_f32";
  c.module = {"sm80/attention_f32.cu", common_defines(p, scoring_flags(p.scores))};
  c.module.defines.insert(c.module.defines.end(),
                          {define("BLOCK_M", tiles.block_m), define("BLOCK_N", block_n),
                           define("NUM_WARPS", tiles.num_warps), define("MIN_BLOCKS", min_blocks)});
  if (p.batch_invariant) c.module.defines.push_back(define("INVARIANT", 1));
  add_piece_define(p, c.module);
  cut_for_tiles(p, device, forced, c);
  return c;
}

/// All tiles that it chooses from, and for short prompts splits around those of its choice.
std::vector<AttentionConfig> candidates(const AttentionProblem& p, const DeviceProperties& device) {
  const AttentionConfig own = choose(p, device, {}).config;
  std::vector<AttentionConfig> configs = splits_around(own.num_splits, divide_up(p.seq_len_kv, own.block_n));
  const int head_dim = std::max(padded_head_dim_qk(p), padded_head_dim_v(p));
  for (const F32Tiles& t : kernels::f32_candidates(head_dim, own.block_n, term_flags(p.scores) != 0).tiles)
    configs.push_back({.block_m = t.block_m, .block_n = t.block_n, .num_warps = t.num_warps});
  return configs;
}

std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  for (const int head_dim : {64, 128}) {
    for (const bool is_paged : {false, true})
      problems.push_back({usual_problem(DType::kF32, head_dim, 4096, is_paged), true});
  }
  return problems;
}

}  // namespace

extern const AttentionKernel kSm80PrefillF32;
const AttentionKernel kSm80PrefillF32 = {
    .name = "sm80/prefill_f32",
    .merit = "multiplies fp32 in parts on the tensor cores",
    .takes_modifiers = true,
    .classifies_tiles = true,
    .reason_against = reason_against,
    .choose = choose,
    .candidates = candidates,
    .sequences_at_once = tiled_sequences_at_once,
    .shape = tiled_shape,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
