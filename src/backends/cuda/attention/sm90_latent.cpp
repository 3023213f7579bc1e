#include <fmt/core.h>

#include <algorithm>

#include "attention/call.h"
#include "backends/cuda/attention/key_parts.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "core/rounding.h"
#include "sm90/attention_arguments.h"
#include "sm90/attention_latent_traits.h"

// sm90/attention_latent.cu: multi-head latent attention, whose values are the first 512 of a key's 576
// elements, by Hopper's own products and copies, for f16 and bf16.

namespace tessera::cuda {

using namespace gpu;

namespace {

using kernels::kLatentHeadDimQk;
using kernels::kLatentHeadDimV;
using kernels::kLatentRows;
using kernels::kLatentTileKeys;

constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;

// How long things take on an H200, in the time that a block needs for a tile.
constexpr double kRoundStart = 2;
constexpr double kCombine = 4;
constexpr double kUneven = 1.02;  // blocks of equal shares don't end together

/// How all keys of all heads are cut into parts.
struct Cut {
  std::int64_t parts = 1;
  bool is_whole = true;  ///< a head a part
};

std::int64_t row_groups(const AttentionProblem& p) {
  const std::int64_t rows = packed_rows(p);
  return divide_up(std::max<std::int64_t>(rows, 1), std::int64_t{kLatentRows});
}

/// The groups of a part's rows run side by side, so that they read its keys from the L2 cache.
Cut choose_cut(const AttentionProblem& p, const DeviceProperties& device) {
  const std::int64_t heads = kv_heads_of_all(p);
  const std::int64_t slots = std::max<std::int64_t>(device.num_multiprocessors / row_groups(p), 1);
  const auto tiles = static_cast<double>(tiles_of_head(p, kLatentTileKeys));
  const auto rounds = static_cast<double>(divide_up(heads, slots));
  const std::int64_t shares = std::min(slots, heads * tiles_of_head(p, kLatentTileKeys));
  const double whole_time = rounds * (tiles + kRoundStart);
  const double shared_time =
      static_cast<double>(heads) * tiles / static_cast<double>(shares) * kUneven + kRoundStart + kCombine;
  if (whole_time <= shared_time || heads >= kMostParts) return {heads, true};
  return {shares, false};
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (std::string reason = reason_against_device(device); !reason.empty()) return reason;
  if (p.q.dtype == DType::kF32) return "it takes f16 and bf16, not f32";
  if (p.head_dim_qk != kLatentHeadDimQk || p.head_dim_v != kLatentHeadDimV || !has_values_in_keys(p)) {
    return fmt::format("it takes head_dims of {} and {} whose values are the first part of the keys",
                       kLatentHeadDimQk, kLatentHeadDimV);
  }
  if (std::string reason = reason_against_keys(p, kLatentTileKeys, false); !reason.empty()) return reason;
  if (kv_heads_of_all(p) * row_groups(p) > kMostBlocks) return "the rows are more than a grid has blocks for";
  return {};
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  KernelChoice c;
  c.config = {kLatentRows, kLatentTileKeys, kernels::kLatentThreads / 32, kernels::kLatentBuffers, 0};
  require_tiles(forced, c.config, "Hopper's kernel of latent attention");
  c.pack_heads = p.num_heads / p.num_kv_heads;
  cut_rows(p, c);
  if (c.num_row_tiles % kernels::kLatentPair == 0) c.cluster_blocks = kernels::kLatentPair;
  const std::int64_t heads = kv_heads_of_all(p);
  Cut cut = choose_cut(p, device);
  const std::int64_t parts = forced_parts(p, forced, kLatentTileKeys);
  if (parts > 0 && parts != cut.parts) cut = {parts, parts == heads};
  set_parts(p, cut.parts, c.config);
  // Where lengths are the device's to know, what is cut to be whole may have to be shared out after all.
  const bool combines = !(cut.is_whole && has_uniform_keys(p)) && cut.parts > 1;
  c.partial_bytes = part_workspace_bytes(p, c, combines);
  c.shared_bytes = kernels::kLatentSharedBytes;
  c.entry = "attention_latent";
  c.module = part_module("sm90/attention_latent.cu", p);
  if (combines) {
    c.combine_module = c.module;
    c.combine_entry = "attention_latent_combine";
  }
  return c;
}

std::vector<AttentionConfig> candidates(const AttentionProblem& p, const DeviceProperties& device) {
  const std::int64_t heads = kv_heads_of_all(p);
  const std::int64_t slots = std::max<std::int64_t>(device.num_multiprocessors / row_groups(p), 1);
  std::vector<AttentionConfig> configs;
  for (const std::int64_t parts : {heads, 2 * heads, slots / 2, slots, 2 * slots}) {
    if (parts > 0 && parts <= kMostParts) configs.push_back({.num_parts = static_cast<int>(parts)});
  }
  return configs;
}

kernels::DecodeParts parts_of(const AttentionProblem& p, const KernelChoice& choice, std::byte* workspace,
                              kernels::AttentionParams& params) {
  kernels::DecodeParts parts = parts_in_workspace(p, choice, workspace, params);
  parts.prefers_whole = parts.num_parts == p.batch * p.num_kv_heads ? 1 : 0;
  return parts;
}

KernelArguments arguments(const kernels::AttentionParams& params, const AttentionProblem& p,
                          const KernelChoice& choice, std::byte* workspace) {
  kernels::LatentArguments a = {};
  a.params = params;
  a.parts = parts_of(p, choice, workspace, a.params);
  a.row_groups = static_cast<int>(choice.num_row_tiles);
  a.blocks_of_cluster = choice.cluster_blocks;
  const int page_size = p.paged_kv ? p.paged_kv->page_size : kLatentTileKeys;
  encode_key_map(p, p.k,
                 {.row_elements = kLatentHeadDimQk / kernels::kLatentPanels,
                  .panel_elements = kLatentHeadDimQk / kernels::kLatentPanels,
                  .panels = kernels::kLatentPanels,
                  .panels_of_box = 1,
                  .tokens_of_box = std::min(page_size, kLatentTileKeys)},
                 a.k);
  return KernelArguments(a);
}

CombineLaunch combine(const kernels::AttentionParams& params, const AttentionProblem& p,
                      const KernelChoice& choice, std::byte* workspace, std::int64_t sequences) {
  kernels::AttentionParams with_partials = params;
  const kernels::DecodeParts parts = parts_of(p, choice, workspace, with_partials);
  return combine_parts(with_partials, p, choice, parts, sequences);
}

std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const bool is_paged : {false, true}) {
      AttentionProblem p = usual_problem(dtype, kLatentHeadDimQk, 1, is_paged);
      p.num_kv_heads = 1;
      p.head_dim_v = kLatentHeadDimV;
      p.batch = 64;
      problems.push_back({p});
    }
  }
  return problems;
}

}  // namespace

extern const AttentionKernel kSm90Latent;
const AttentionKernel kSm90Latent = {
    .name = "sm90/latent",
    .merit = "reads keys that hold the values once for both products",
    .is_decode = true,
    .takes_modifiers = true,
    .classifies_tiles = true,
    .reason_against = reason_against,
    .choose = choose,
    .candidates = candidates,
    .sequences_at_once = part_sequences_at_once,
    .shape = part_shape,
    .arguments = arguments,
    .combine = combine,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
