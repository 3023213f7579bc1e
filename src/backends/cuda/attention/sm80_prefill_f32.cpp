#include <algorithm>
#include <array>

#include "backends/cuda/attention/reserved_shared.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "core/rounding.h"

// sm80/attention_f32.cu: tensor-core tiles of fp32, each product by three in fp16.

namespace tessera::cuda {

using namespace gpu;

namespace {

struct F32Tiles {
  int block_m;
  int num_warps;
};

/// Keys of f32 tiles that fit beside the queries in two buffers, for the padded head_dim. Rows' bits depend
/// on it, so that it is the same for all problems on a device.
int f32_block_n(int head_dim, const DeviceProperties& device) {
  const std::size_t kib = device.shared_per_block_bytes / 1024;
  if (head_dim <= 64) return kib >= 200 ? 64 : 32;
  if (head_dim <= 128) return kib >= 200 ? 64 : kib >= 140 ? 32 : 16;
  return 16;
}

/// What attention_f32.cu's SharedStorage takes.
std::size_t f32_shared_bytes(const F32Tiles& t, int block_n, int head_dim_qk, int head_dim_v) {
  const int bytes_qk = 4 * head_dim_qk + 16;
  const int bytes_v = 4 * head_dim_v + 16;
  const int stage_bytes = round_up(block_n * (bytes_qk + bytes_v) + 8 * block_n + 4, 16);
  const int flag_bytes = 4 * divide_up(t.block_m, 32) + 4;
  return static_cast<std::size_t>(round_up(t.block_m * (bytes_qk + 12) + 2 * stage_bytes + flag_bytes, 16));
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties&) {
  if (p.q.dtype != DType::kF32) return "it takes f32, not " + std::string(dtype_name(p.q.dtype));
  return reason_against_head_dims(p);
}

/// Blocks of most rows first: they read K and V least often, and smaller ones are for problems that would
/// leave multiprocessors without a block.
KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const int head_dim_qk = padded_head_dim_qk(p);
  const int head_dim_v = padded_head_dim_v(p);
  const int head_dim = std::max(head_dim_qk, head_dim_v);
  const int group = p.num_heads / p.num_kv_heads;
  const int block_n = forced.block_n > 0 ? forced.block_n : f32_block_n(head_dim, device);
  // Terms are unrolled over a thread's scores: with half the rows a warp they compile in half the time.
  const bool has_terms = term_flags(p.scores) != 0;
  const std::array<F32Tiles, 3> candidates =
      head_dim <= 64 ? std::array<F32Tiles, 3>{{{has_terms ? 64 : 128, 4}, {64, 4}, {64, 2}}}
                     : std::array<F32Tiles, 3>{{{128, 8}, {64, 4}, {32, 2}}};
  F32Tiles tiles = {};
  std::size_t shared_bytes = 0;
  for (const F32Tiles& candidate : candidates) {
    tiles = candidate;
    if (forced.block_m > 0) tiles.block_m = forced.block_m;
    if (forced.num_warps > 0) tiles.num_warps = forced.num_warps;
    shared_bytes = f32_shared_bytes(tiles, block_n, head_dim_qk, head_dim_v);
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
  if (forced.num_stages > 0 && forced.num_stages != 2)
    reject_forced("num_stages", forced.num_stages, "2 for f32");
  reject_large_tiles(shared_bytes, device);
  const bool fits_twice = 2 * (shared_bytes + kReservedShared) <= device.shared_per_multiprocessor_bytes;
  const int min_blocks = tiles.num_warps <= 4 && fits_twice ? 2 : 1;

  KernelChoice c;
  c.config = {tiles.block_m, block_n, tiles.num_warps, 2, 0};
  c.shared_bytes = shared_bytes;
  c.pack_heads = pack_short_prompts(p, tiles.block_m);
  c.entry = "attention_f32";
  c.module = {"sm80/attention_f32.cu", common_defines(p)};
  c.module.defines.insert(c.module.defines.end(),
                          {define("BLOCK_M", tiles.block_m), define("BLOCK_N", block_n),
                           define("NUM_WARPS", tiles.num_warps), define("MIN_BLOCKS", min_blocks)});
  if (p.batch_invariant) c.module.defines.push_back(define("INVARIANT", 1));
  cut_for_tiles(p, device, forced, c);
  return c;
}

}  // namespace

extern const AttentionKernel kSm80PrefillF32;
const AttentionKernel kSm80PrefillF32 = {
    .name = "sm80/prefill_f32",
    .merit = "multiplies fp32 in parts on the tensor cores",
    .reason_against = reason_against,
    .choose = choose,
    .sequences_at_once = tiled_sequences_at_once,
    .shape = tiled_shape,
};

}  // namespace tessera::cuda
