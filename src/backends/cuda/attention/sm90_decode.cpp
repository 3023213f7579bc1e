#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "backends/cuda/attention/key_parts.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "core/rounding.h"
#include "sm80/attention_decode_traits.h"
#include "sm90/attention_arguments.h"
#include "sm90/attention_decode_traits.h"

// sm90/attention_decode.cu: few packed rows over many keys by Hopper's own products and copies, for f16 and
// bf16. sm90/attention_decode_e4m3.cu: the same beside keys and values of 8 bits.

namespace tessera::cuda {

using namespace gpu;

namespace {

constexpr std::int64_t kFewestCombinedBytes = std::int64_t{160} << 20;  // of keys and values
constexpr std::int64_t kFewestTiles = 4;

// How long things take on an H200, in the time in which one of two blocks of a multiprocessor reads a tile
// (1.9 us with head_dim 128), fitted to docs/kernels/hopper_decode.md.
constexpr double kTileAlone = 0.51;        // of a block that has its multiprocessor for itself
constexpr double kWideTileAlone = 0.68;    // of keys of 8 bits and two tiles of rows
constexpr double kNarrowTileOfFew = 0.45;  // of keys of 8 bits where half of the multiprocessors have none
constexpr double kTileOfSome = 0.93;       // where some have and others haven't
constexpr double kUneven = 1.035;          // blocks of equal shares don't end together
constexpr double kStart = 2.2;
constexpr double kRoundStart = 3;
constexpr double kCombine = 2.5;
constexpr double kClusterMerge = 0.8;
constexpr double kClusterBlock = 0.05;  // for each block of a cluster above two: they crowd together

/// How all keys of all heads are cut into parts.
struct Cut {
  std::int64_t parts = 1;
  int cluster_blocks = 1;  ///< that merge a head's pieces
  bool combines = false;   ///< another kernel merges them
  double time = 0;
};

int element_bytes(const AttentionProblem& p) { return static_cast<int>(dtype_bytes(p.k.dtype, 1)); }

int tile_keys(const AttentionProblem& p) { return kernels::decode_tile_keys(element_bytes(p)); }

/// Packed rows of a block, at most.
int most_rows(const AttentionProblem& p) {
  return has_narrow_kv(p) ? kernels::kNarrowDecodeQueryRows : kernels::kDecodeQueryRows;
}

/// What is cut.
struct Work {
  std::int64_t heads;  ///< kv heads of all sequences
  std::int64_t tiles;  ///< of a head, at most
  std::int64_t multiprocessors;
  double tile_alone;
  bool is_narrow;

  std::int64_t slots() const { return 2 * multiprocessors; }
};

Work work_of(const AttentionProblem& p, std::int64_t multiprocessors) {
  const bool is_wide =
      has_narrow_kv(p) && p.seq_len_q * (p.num_heads / p.num_kv_heads) > kernels::kNarrowDecodeTileRows;
  const double tile_alone = is_wide ? kWideTileAlone : kTileAlone;
  return {kv_heads_of_all(p), tiles_of_head(p, tile_keys(p)), multiprocessors, tile_alone, has_narrow_kv(p)};
}

/// What a tile takes where `blocks` run at once.
double time_of_tile(const Work& work, std::int64_t blocks) {
  if (blocks <= work.multiprocessors) return work.tile_alone;
  return std::max(kTileOfSome, static_cast<double>(blocks) / static_cast<double>(work.slots()) * kUneven);
}

/// Every head is a part.
Cut whole_heads(const Work& work) {
  const std::int64_t rest = work.heads % work.slots();
  const auto rounds = static_cast<double>(work.heads / work.slots());
  const double last = rest > 0 ? time_of_tile(work, rest) : 0;
  const double starts = work.heads <= work.slots() ? kStart : kRoundStart * (rounds + (rest > 0 ? 1 : 0));
  return {work.heads, 1, false, (rounds + last) * static_cast<double>(work.tiles) + starts};
}

/// Equal shares for all blocks that run at once, whatever heads they cut.
Cut equal_shares(const Work& work) {
  const std::int64_t parts = std::min(work.slots(), work.heads * work.tiles);
  const double share = static_cast<double>(work.heads * work.tiles) / static_cast<double>(parts);
  return {parts, 1, parts > 1, share * kUneven + kStart + kCombine};
}

/// A cluster for each head, whose blocks merge its pieces; takes forever where not all run at once.
Cut clusters(const Work& work) {
  Cut best = {work.heads, 1, false, std::numeric_limits<double>::infinity()};
  for (const int blocks : {2, 4, 8}) {
    if (work.heads * blocks > work.multiprocessors) continue;
    const bool are_few = 2 * work.heads * blocks <= work.multiprocessors;
    const double of_tile =
        work.is_narrow && are_few ? kNarrowTileOfFew : work.tile_alone * (1 + kClusterBlock * (blocks - 2));
    const auto tiles = static_cast<double>(divide_up(work.tiles, static_cast<std::int64_t>(blocks)));
    const double time = of_tile * tiles + kStart + kClusterMerge;
    if (time < best.time) best = {work.heads * blocks, blocks, false, time};
  }
  return best;
}

/// The fastest for heads of as many tiles each.
Cut cut_uniform(const Work& work) {
  Cut best = whole_heads(work);
  const auto consider = [&](const Cut& cut) {
    if (cut.time < best.time) best = cut;
  };
  consider(equal_shares(work));
  const std::int64_t most =
      std::min({work.slots() / work.heads, work.tiles, std::int64_t{kernels::kMaxSplits}});
  for (std::int64_t pieces = 2; pieces <= most; ++pieces) {
    const std::int64_t parts = work.heads * pieces;
    consider(
        {parts, 1, true,
         time_of_tile(work, parts) * static_cast<double>(divide_up(work.tiles, pieces)) + kStart + kCombine});
  }
  consider(clusters(work));
  return best;
}

/// For heads of lengths that only the device knows. Not by clusters, which cost a whole model's step 2 %
/// where they are a microsecond faster alone.
Cut cut_ragged(const Work& work) {
  const std::int64_t pieces = std::max<std::int64_t>((work.slots() + work.heads / 2) / work.heads, 1);
  return {work.heads * pieces, 1, work.heads * pieces > 1, 0};
}

Cut choose_cut(const AttentionProblem& p, const DeviceProperties& device) {
  const Work work = work_of(p, device.num_multiprocessors);
  return has_uniform_keys(p) ? cut_uniform(work) : cut_ragged(work);
}

bool takes_head_dim(int head_dim) { return head_dim == 64 || head_dim == 128; }

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (std::string reason = reason_against_device(device); !reason.empty()) return reason;
  if (p.q.dtype == DType::kF32) return "it takes f16 and bf16, not f32";
  if (!takes_head_dim(p.head_dim_qk) || !takes_head_dim(p.head_dim_v))
    return fmt::format("it takes head_dims of 64 and 128, not {} and {}", p.head_dim_qk, p.head_dim_v);
  const int group = p.num_heads / p.num_kv_heads;
  if (p.seq_len_q * group > most_rows(p)) {
    return fmt::format("it takes up to {} rows a kv head{}, not {} queries of {} head{}", most_rows(p),
                       has_narrow_kv(p) ? " of 8-bit keys" : "", p.seq_len_q, group, group == 1 ? "" : "s");
  }
  if (std::string reason = reason_against_scales(p); !reason.empty()) return reason;
  return reason_against_keys(p, tile_keys(p), true);
}

std::string reason_to_yield(const AttentionProblem& p, const DeviceProperties& device) {
  const int group = p.num_heads / p.num_kv_heads;
  if (!has_uniform_keys(p) || p.seq_len_q * group > kernels::kDecodeRows) return {};
  const auto key_bytes = static_cast<std::int64_t>(
      dtype_bytes(p.k.dtype, static_cast<std::size_t>(p.head_dim_qk + p.head_dim_v)));
  // Keys of 8 bits keep the other kernel busy.
  if (tiles_of_head(p, tile_keys(p)) < kFewestTiles ||
      (!has_narrow_kv(p) && choose_cut(p, device).combines &&
       kv_heads_of_all(p) * p.seq_len_kv * key_bytes < kFewestCombinedBytes))
    return "sm80/decode starts and ends sooner, which is most of the time for so few keys of one length";
  return {};
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const int slots = kernels::decode_slots(element_bytes(p), p.head_dim_qk, p.head_dim_v);
  KernelChoice c;
  c.config = {most_rows(p), tile_keys(p), kernels::kDecodeThreads / 32, slots, 0};
  require_tiles(forced, c.config, "Hopper's decode kernel");
  if (forced.num_splits > kMostParts)
    reject_forced("num_splits", forced.num_splits, fmt::format("at most {}", kMostParts));
  c.pack_heads = p.num_heads / p.num_kv_heads;
  cut_rows(p, c);
  Cut cut = choose_cut(p, device);
  if (forced.num_splits > 0 && forced.num_splits != cut.parts) {
    const std::int64_t most = kv_heads_of_all(p) * tiles_of_head(p, tile_keys(p));
    cut = {std::min<std::int64_t>(forced.num_splits, most), 1, forced.num_splits > 1, 0};
  }
  c.config.num_splits = static_cast<int>(cut.parts);
  c.cluster_blocks = cut.cluster_blocks;
  c.partial_bytes = part_workspace_bytes(p, c, cut.combines || cut.cluster_blocks > 1);
  c.shared_bytes = static_cast<std::size_t>(
      kernels::decode_shared_bytes_of(slots, element_bytes(p), p.head_dim_qk, p.head_dim_v));
  c.entry = "attention_decode";
  c.module = part_module(has_narrow_kv(p) ? "sm90/attention_decode_e4m3.cu" : "sm90/attention_decode.cu", p);
  c.module.defines.push_back(define("STAGES", slots));
  add_narrow_define(p, c.module);
  if (has_narrow_kv(p)) {
    c.module.defines.push_back(
        define("ROW_TILES", p.seq_len_q * c.pack_heads > kernels::kNarrowDecodeTileRows ? 2 : 1));
  }
  if (cut.combines) {
    c.combine_module = c.module;
    c.combine_entry = "attention_decode_combine";
  }
  return c;
}

std::int64_t sequences_at_once(const KernelChoice&) { return kMaxGridYz; }

std::vector<AttentionConfig> candidates(const AttentionProblem& p, const DeviceProperties& device) {
  const Work work = work_of(p, device.num_multiprocessors);
  std::vector<AttentionConfig> configs;
  for (const std::int64_t parts : {work.heads, 2 * work.heads, 3 * work.heads, 4 * work.heads, 8 * work.heads,
                                   work.multiprocessors, work.slots()}) {
    if (parts <= kMostParts) configs.push_back({.num_splits = static_cast<int>(parts)});
  }
  return configs;
}

LaunchShape shape(const KernelChoice& choice, std::int64_t, unsigned warp_size) {
  LaunchShape shape;
  shape.grid = {static_cast<unsigned>(choice.config.num_splits), 1, 1};
  shape.block = {static_cast<unsigned>(choice.config.num_warps) * warp_size, 1, 1};
  shape.shared_bytes = choice.shared_bytes;
  shape.overlaps_prior = true;
  shape.cluster_blocks = static_cast<unsigned>(choice.cluster_blocks);
  return shape;
}

/// Whole tiles, or a panel of pages that are smaller.
KeyBoxes boxes_of(const AttentionProblem& p, int head_dim) {
  const int panel_elements = kernels::decode_panel_elements(element_bytes(p), head_dim);
  const int panels = head_dim / panel_elements;
  const bool has_small_pages = p.paged_kv && p.paged_kv->page_size < tile_keys(p);
  return {.panel_elements = panel_elements,
          .panels = panels,
          .panels_of_box = has_small_pages ? 1 : panels,
          .tokens_of_box = has_small_pages ? p.paged_kv->page_size : tile_keys(p)};
}

kernels::DecodeParts parts_of(const AttentionProblem& p, const KernelChoice& choice, std::byte* workspace,
                              kernels::AttentionParams& params) {
  kernels::DecodeParts parts = parts_in_workspace(p, choice, workspace, params);
  // As many as there are multiprocessors or fewer would be crowded on some of them: empty parts beside them.
  const Work work = work_of(p, choice.num_multiprocessors);
  if (parts.num_parts >= work.heads && work.heads > work.multiprocessors &&
      whole_heads(work).time <= equal_shares(work).time)
    parts.prefers_whole = 1;
  return parts;
}

KernelArguments arguments(const kernels::AttentionParams& params, const AttentionProblem& p,
                          const KernelChoice& choice, std::byte* workspace) {
  kernels::DecodeArguments a = {};
  a.params = params;
  a.parts = parts_of(p, choice, workspace, a.params);
  encode_key_map(p, p.k, boxes_of(p, p.head_dim_qk), a.k);
  encode_key_map(p, p.v, boxes_of(p, p.head_dim_v), a.v);
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
    for (const int head_dim : {64, 128}) {
      for (const bool is_paged : {false, true}) {
        AttentionProblem p = usual_problem(dtype, head_dim, 1, is_paged);
        p.batch = 64;
        problems.push_back({p});
        problems.push_back({with_narrow_kv(p)});
      }
    }
  }
  return problems;
}

}  // namespace

extern const AttentionKernel kSm90Decode;
const AttentionKernel kSm90Decode = {
    .name = "sm90/decode",
    .merit = "shares out the keys by each sequence's own length, and copies them by Hopper's copy engine",
    .takes_modifiers = true,
    .takes_narrow_kv = true,
    .reason_against = reason_against,
    .reason_to_yield = reason_to_yield,
    .choose = choose,
    .candidates = candidates,
    .sequences_at_once = sequences_at_once,
    .shape = shape,
    .arguments = arguments,
    .combine = combine,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
