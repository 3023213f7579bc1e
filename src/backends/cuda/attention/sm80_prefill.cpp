#include <algorithm>
#include <array>

#include "backends/cuda/attention/reserved_shared.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"

// sm80/attention_mma.cu: tensor-core tiles of f16 and bf16.

namespace tessera::cuda {

using namespace gpu;

namespace {

constexpr int kPadding = 8;         // elements after each shared-memory row
constexpr int kMmaStateBytes = 96;  // attention_mma.cu's BlockState

struct MmaTiles {
  int block_m;
  int block_n;
  int num_warps;
  int num_stages;
  int min_blocks;  // a multiprocessor
};

/// For the padded head_dim, the preferred first: of those whose min_blocks fit in a multiprocessor's shared
/// memory the first is taken, else the first that fits at all. Measured in docs/kernels/cuda_attention.md.
std::array<MmaTiles, 4> mma_tiles(int head_dim) {
  if (head_dim <= 64) return {{{128, 64, 4, 2, 3}, {128, 64, 4, 1, 2}, {64, 64, 4, 1, 2}, {64, 32, 4, 1, 1}}};
  if (head_dim <= 128)
    return {{{128, 64, 4, 2, 2}, {128, 64, 4, 1, 2}, {64, 64, 4, 1, 2}, {64, 32, 4, 1, 1}}};
  return {{{128, 64, 8, 2, 1}, {64, 32, 4, 1, 2}, {64, 32, 4, 1, 1}, {64, 16, 4, 1, 1}}};
}

/// The layout of attention_mma.cu's shared memory.
std::size_t mma_shared_bytes(const MmaTiles& t, int head_dim_qk, int head_dim_v) {
  const int stride_qk = head_dim_qk + kPadding;
  const int stride_v = head_dim_v + kPadding;
  const bool shares_rows =
      std::max(head_dim_qk, head_dim_v) > 128 && head_dim_v % 32 == 0 && t.block_n % 32 == 0;
  const int elements = t.block_m * std::max(stride_qk, stride_v) +
                       t.num_stages * t.block_n * (stride_qk + stride_v) +
                       (shares_rows ? t.block_m * (t.block_n + kPadding) : 0);
  const int row_bytes = shares_rows ? 16 : 8;  // a row's key range, and what its two warps tell each other
  return static_cast<std::size_t>(2 * elements + kMmaStateBytes + row_bytes * t.block_m);
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
  for (const MmaTiles& tiles : mma_tiles(head_dim)) {
    if (agree(forced, tiles)) candidates.push_back(tiles);
  }
  if (!candidates.empty()) return candidates;
  for (MmaTiles tiles : mma_tiles(head_dim)) {
    if (forced.num_warps > 0) tiles.num_warps = forced.num_warps;
    if (forced.block_m > 0) tiles.block_m = forced.block_m;
    if (forced.block_n > 0) tiles.block_n = forced.block_n;
    if (forced.num_stages > 0) tiles.num_stages = forced.num_stages;
    candidates.push_back(tiles);
  }
  return candidates;
}

MmaTiles choose_tiles(const AttentionProblem& p, const DeviceProperties& device,
                      const AttentionConfig& forced) {
  const int head_dim_qk = padded_head_dim_qk(p), head_dim_v = padded_head_dim_v(p);
  MmaTiles tiles = {};
  bool found = false;
  for (const MmaTiles& candidate : candidates_for(std::max(head_dim_qk, head_dim_v), forced)) {
    const std::size_t bytes = mma_shared_bytes(candidate, head_dim_qk, head_dim_v);
    const bool fits = bytes <= device.shared_per_block_bytes;
    const bool fits_well =
        fits && static_cast<std::size_t>(candidate.min_blocks) * (bytes + kReservedShared) <=
                    device.shared_per_multiprocessor_bytes;
    if (fits_well || (fits && !found) || tiles.block_m == 0) tiles = candidate;
    found = found || fits;
    if (fits_well) break;
  }
  if (tiles.num_warps != 2 && tiles.num_warps != 4 && tiles.num_warps != 8)
    reject_forced("num_warps", tiles.num_warps, "2, 4 or 8");
  if (tiles.block_m % (16 * tiles.num_warps) != 0)
    reject_forced("block_m", tiles.block_m, "a multiple of 16 * num_warps");
  if (tiles.block_n % 16 != 0) reject_forced("block_n", tiles.block_n, "a multiple of 16");
  if (tiles.num_stages > 2) reject_forced("num_stages", tiles.num_stages, "1 or 2");
  const std::size_t shared_bytes = mma_shared_bytes(tiles, head_dim_qk, head_dim_v);
  reject_large_tiles(shared_bytes, device);
  const auto by_shared =
      static_cast<int>(device.shared_per_multiprocessor_bytes / (shared_bytes + kReservedShared));
  const int by_threads = 65536 / (tiles.num_warps * 32 * 168);  // leave registers for the accumulators
  tiles.min_blocks = std::clamp(std::min({tiles.min_blocks, by_shared, by_threads}), 1, 8);
  return tiles;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties&) {
  if (p.q.dtype == DType::kF32) return "it takes f16 and bf16, not f32";
  return reason_against_head_dims(p);
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const MmaTiles tiles = choose_tiles(p, device, forced);
  KernelChoice c;
  c.config = {tiles.block_m, tiles.block_n, tiles.num_warps, tiles.num_stages, 0};
  c.shared_bytes = mma_shared_bytes(tiles, padded_head_dim_qk(p), padded_head_dim_v(p));
  c.pack_heads = pack_short_prompts(p, tiles.block_m);
  c.entry = "attention_mma";
  c.module = {"sm80/attention_mma.cu", common_defines(p)};
  c.module.defines.insert(c.module.defines.end(),
                          {define("BLOCK_M", tiles.block_m), define("BLOCK_N", tiles.block_n),
                           define("NUM_WARPS", tiles.num_warps), define("STAGES", tiles.num_stages),
                           define("MIN_BLOCKS", tiles.min_blocks)});
  if (p.batch_invariant) c.module.defines.push_back(define("INVARIANT", 1));
  cut_for_tiles(p, device, forced, c);
  return c;
}

}  // namespace

extern const AttentionKernel kSm80Prefill;
const AttentionKernel kSm80Prefill = {
    .name = "sm80/prefill",
    .merit = "multiplies tiles on the tensor cores",
    .reason_against = reason_against,
    .choose = choose,
    .sequences_at_once = tiled_sequences_at_once,
    .shape = tiled_shape,
};

}  // namespace tessera::cuda
