#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "backends/cuda/attention/reserved_shared.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "core/rounding.h"
#include "sm80/attention_mma_traits.h"

// sm80/attention_mma.cu: tensor-core tiles of f16 and bf16, also over keys and values of e4m3.

namespace tessera::cuda {

using namespace gpu;

namespace {

using kernels::MmaTiles;

/// As the kernel pads them.
struct HeadDims {
  int qk, v;
  int multiple;

  explicit HeadDims(const AttentionProblem& p)
      : multiple(std::max(p.head_dim_qk, p.head_dim_v) > kernels::kMostUsualHeadDim ? 64 : 16) {
    qk = padded_head_dim_qk(p, multiple);
    v = padded_head_dim_v(p, multiple);
  }
  int larger() const { return std::max(qk, v); }
};

std::size_t tile_bytes(const MmaTiles& tiles, const HeadDims& dims) {
  return static_cast<std::size_t>(kernels::mma_shared_bytes(tiles, dims.qk, dims.v));
}

bool agrees(int forced, int value) { return forced == 0 || forced == value; }

/// Whether all that is forced is what the tiles have.
bool agree(const AttentionConfig& forced, const MmaTiles& t) {
  return agrees(forced.block_m, t.block_m) && agrees(forced.block_n, t.block_n) &&
         agrees(forced.num_warps, t.num_warps) && agrees(forced.num_stages, t.num_stages);
}

/// The tiles to choose from: those that agree with what is forced, else all with the forced values put in.
std::vector<MmaTiles> candidates_for(int head_dim, const AttentionConfig& forced) {
  std::vector<MmaTiles> candidates;
  for (const MmaTiles& tiles : kernels::mma_candidates(head_dim).tiles) {
    if (agree(forced, tiles)) candidates.push_back(tiles);
  }
  if (!candidates.empty()) return candidates;
  for (MmaTiles tiles : kernels::mma_candidates(head_dim).tiles) {
    if (forced.num_warps > 0) tiles.num_warps = forced.num_warps;
    if (forced.block_m > 0) tiles.block_m = forced.block_m;
    if (forced.block_n > 0) tiles.block_n = forced.block_n;
    if (forced.num_stages > 0) tiles.num_stages = forced.num_stages;
    candidates.push_back(tiles);
  }
  return candidates;
}

MmaTiles tiles_of_rows(const MmaTiles& tiles, const AttentionProblem& p, const HeadDims& dims) {
  return kernels::mma_tiles_of_rows(tiles, packed_rows(p), dims.qk, dims.v);
}

MmaTiles choose_tiles(const AttentionProblem& p, const DeviceProperties& device,
                      const AttentionConfig& forced) {
  const HeadDims dims(p);
  MmaTiles tiles = {};
  bool found = false;
  for (const MmaTiles& candidate : candidates_for(dims.larger(), forced)) {
    const std::size_t bytes = tile_bytes(candidate, dims);
    const bool fits = bytes <= device.shared_per_block_bytes;
    const bool fits_well =
        fits && static_cast<std::size_t>(candidate.min_blocks) * (bytes + kReservedShared) <=
                    device.shared_per_multiprocessor_bytes;
    if (fits_well || (fits && !found) || tiles.block_m == 0) tiles = candidate;
    found = found || fits;
    if (fits_well) break;
  }
  if (forced.block_m == 0 && forced.num_warps == 0) tiles = tiles_of_rows(tiles, p, dims);
  const bool is_large = dims.larger() > kernels::kMostUsualHeadDim;
  if (is_large) tiles.min_blocks = 8;  // as many as fit
  if (tiles.num_warps != 2 && tiles.num_warps != 4 && tiles.num_warps != 8)
    reject_forced("num_warps", tiles.num_warps, "2, 4 or 8");
  const int warp_columns = kernels::mma_warp_columns(tiles, dims.qk, dims.v);
  if (tiles.num_warps % warp_columns != 0)
    reject_forced("num_warps", tiles.num_warps, fmt::format("a multiple of {}", warp_columns));
  if (const int row_warps = tiles.num_warps / warp_columns; tiles.block_m % (16 * row_warps) != 0)
    reject_forced("block_m", tiles.block_m, fmt::format("a multiple of {}", 16 * row_warps));
  if (tiles.block_n % 16 != 0) reject_forced("block_n", tiles.block_n, "a multiple of 16");
  if (tiles.num_stages > 2) reject_forced("num_stages", tiles.num_stages, "1 or 2");
  const std::size_t shared_bytes = tile_bytes(tiles, dims);
  reject_large_tiles(shared_bytes, device);
  const auto by_shared =
      static_cast<int>(device.shared_per_multiprocessor_bytes / (shared_bytes + kReservedShared));
  const int by_threads = 65536 / (tiles.num_warps * 32 * kernels::kMmaRegisters);
  tiles.min_blocks = std::clamp(std::min({tiles.min_blocks, by_shared, by_threads}), 1, 8);
  return tiles;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (p.q.dtype == DType::kF32) return "it takes f16 and bf16, not f32";
  if (std::string reason = reason_against_scales(p); !reason.empty()) return reason;
  const HeadDims dims(p);
  const auto fits = [&](const MmaTiles& t) { return tile_bytes(t, dims) <= device.shared_per_block_bytes; };
  if (!std::ranges::any_of(kernels::mma_candidates(dims.larger()).tiles, fits)) {
    return fmt::format("its tiles do not fit into the {} bytes of shared memory that a block of {} has",
                       device.shared_per_block_bytes, device.name);
  }
  return {};
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const MmaTiles tiles = choose_tiles(p, device, forced);
  KernelChoice c;
  c.config = {tiles.block_m, tiles.block_n, tiles.num_warps, tiles.num_stages, 0};
  const HeadDims dims(p);
  c.shared_bytes = tile_bytes(tiles, dims);
  c.pack_heads = pack_short_prompts(p, tiles.block_m);
  c.entry = "attention_mma";
  c.module = {"sm80/attention_mma.cu", common_defines(p, scoring_flags(p.scores), dims.multiple)};
  c.module.defines.insert(c.module.defines.end(),
                          {define("BLOCK_M", tiles.block_m), define("BLOCK_N", tiles.block_n),
                           define("NUM_WARPS", tiles.num_warps), define("STAGES", tiles.num_stages),
                           define("MIN_BLOCKS", tiles.min_blocks)});
  if (p.batch_invariant) c.module.defines.push_back(define("INVARIANT", 1));
  add_narrow_define(p, c.module);
  add_piece_define(p, c.module);
  cut_for_tiles(p, device, forced, c);
  return c;
}

/// All tiles that it chooses from, and for short prompts splits around those of its choice.
std::vector<AttentionConfig> candidates(const AttentionProblem& p, const DeviceProperties& device) {
  const AttentionConfig own = choose(p, device, {}).config;
  std::vector<AttentionConfig> configs = splits_around(own.num_splits, divide_up(p.seq_len_kv, own.block_n));
  const HeadDims dims(p);
  for (const MmaTiles& candidate : kernels::mma_candidates(dims.larger()).tiles) {
    const MmaTiles t = tiles_of_rows(candidate, p, dims);
    if (tile_bytes(t, dims) > device.shared_per_block_bytes) continue;
    configs.push_back({t.block_m, t.block_n, t.num_warps, t.num_stages, 0});
  }
  return configs;
}

/// With pages tiles spill up to 40 bytes, what joins segments some 200.
std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int head_dim : {64, 128, 256}) {
      for (const bool is_paged : {false, true})
        problems.push_back({usual_problem(dtype, head_dim, 4096, is_paged), is_paged});
    }
    for (const int head_dim : {64, 128}) {
      for (const bool is_paged : {false, true}) {
        problems.push_back({usual_problem(dtype, head_dim, 4096, is_paged), true});
        problems.back().problem.batch_invariant = true;
      }
    }
  }
  return problems;
}

}  // namespace

extern const AttentionKernel kSm80Prefill;
const AttentionKernel kSm80Prefill = {
    .name = "sm80/prefill",
    .merit = "multiplies tiles on the tensor cores",
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

}  // namespace tessera::cuda
