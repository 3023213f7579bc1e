#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "backends/cuda/attention/key_parts.h"
#include "backends/cuda/attention/sm80_decode.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/decode_splits.h"
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

constexpr std::int64_t kFewestTiles = 4;
constexpr double kTie = 1.02;  // times as long by its model is not slower than the other kernel

// One block a multiprocessor where lengths live on the device: for heads of more rows, and at most so many
// heads and bytes of keys and values.
constexpr std::int64_t kFewRows = 4;
constexpr std::int64_t kFewHeads = 8;
constexpr std::int64_t kMostShortTiles = 16;
constexpr std::int64_t kFewBytes = std::int64_t{48} << 20;

// How long things take on an H200, in us, fitted to times of keys and values that are not in the cache
// (docs/kernels/hopper_decode.md).
constexpr double kStart = 4.3;    // of a launch: its blocks' starts and ends
constexpr double kMerge = 0.7;    // of a cluster's blocks
constexpr double kCombine = 2.1;  // another kernel
constexpr double kCombineOfPiece = 0.02;
constexpr double kLateCombine = 1.3;     // whose blocks find no room beside two blocks a multiprocessor
constexpr std::int64_t kEarlyRows = 32;  // unless they are so few
// A tile passes through a block in kTile + kTileOfByte * its bytes at least: products and softmax wait for
// each other.
constexpr double kTile = 0.45;
constexpr double kTileOfByte = 0.27 / 32768;
constexpr double kManyRows = 1.13;       // times as long, of more rows than half a warp's
constexpr double kWideTile = 1.67;       // of head_dims above 128, whose queries come from shared memory
constexpr double kNarrowTile = 1.19;     // of keys of 8 bits
constexpr double kWideNarrowTile = 1.8;  // of two tiles of rows
// What terms of more rows than half a warp's take of a tile besides; of head_dims above 128 nothing.
constexpr double kSoftcap = 0.4;
constexpr double kAlibi = 0.15;
constexpr double kAdditiveMask = 0.47;
constexpr double kBooleanMask = 0.4;
constexpr double kModifier = 0.4;
// How many times as long sm80/decode takes for as many rows, whose threads wait for masks' elements.
constexpr double kSm80AdditiveMask = 1.4;
constexpr double kSm80BooleanMask = 1.3;
constexpr double kBytesOfBlocks = 40e3;   // in a us, of two blocks of a multiprocessor
constexpr double kBytesOfShare = 32.6e3;  // of a multiprocessor, where all read
constexpr double kMostlyFull = 0.9;       // of the blocks that run at once
constexpr std::int64_t kTilesAhead = 3;   // that a block has asked for before it computes

/// How all keys of all heads are cut into parts.
struct Cut {
  std::int64_t parts = 1;
  int cluster_blocks = 1;  ///< that merge a head's pieces
  bool combines = false;   ///< another kernel merges them
  double us = 0;
};

int element_bytes(const AttentionProblem& p) { return static_cast<int>(dtype_bytes(p.k.dtype, 1)); }

int tile_keys(const AttentionProblem& p) { return kernels::decode_tile_keys(element_bytes(p)); }

/// Packed rows of a block, at most.
int most_rows(const AttentionProblem& p) {
  return has_narrow_kv(p) ? kernels::kNarrowDecodeQueryRows : kernels::kDecodeQueryRows;
}

/// Of masks' elements in shared memory, which a modifier has looked up one by one.
int masks_bytes(const AttentionProblem& p) {
  const ScoreTerms& s = p.scores;
  if (s.modifier) return 0;
  const int additive = s.additive_mask ? static_cast<int>(dtype_bytes(s.additive_mask->dtype, 1)) : 0;
  return kernels::decode_masks_bytes(element_bytes(p), additive, s.boolean_mask ? 1 : 0);
}

int slots_of(const AttentionProblem& p) {
  return kernels::decode_slots(element_bytes(p), p.head_dim_qk, p.head_dim_v, masks_bytes(p));
}

/// What is cut.
struct Work {
  std::int64_t heads;       ///< kv heads of all sequences
  std::int64_t tiles;       ///< of a head, at most
  std::int64_t tile_bytes;  ///< of keys and values
  std::int64_t rows;        ///< of all heads
  std::int64_t multiprocessors;
  int blocks_a_multiprocessor;
  double tile_us;  ///< in which a tile passes through a block, at least

  /// Blocks that run at once.
  std::int64_t slots() const { return blocks_a_multiprocessor * multiprocessors; }
};

double us_of_terms(const ScoreTerms& s) {
  return (s.softcap ? kSoftcap : 0) + (s.alibi ? kAlibi : 0) + (s.additive_mask ? kAdditiveMask : 0) +
         (s.boolean_mask ? kBooleanMask : 0) + (s.modifier ? kModifier : 0);
}

Work work_of(const AttentionProblem& p, std::int64_t multiprocessors) {
  const std::int64_t group_rows = packed_rows(p);
  const std::int64_t tile_bytes = tile_keys(p) * key_bytes(p);
  double tile_us = kTile + kTileOfByte * static_cast<double>(tile_bytes);
  if (has_narrow_kv(p)) {
    tile_us *= group_rows > kernels::kNarrowDecodeTileRows ? kWideNarrowTile : kNarrowTile;
  } else if (group_rows > kernels::kDecodeHalfRows) {
    tile_us *= kManyRows;
  }
  const int blocks = kernels::decode_blocks(p.head_dim_qk, p.head_dim_v);
  if (blocks == 1) {
    tile_us *= kWideTile;
  } else if (!has_narrow_kv(p) && group_rows > kernels::kDecodeHalfRows) {
    tile_us += us_of_terms(p.scores);
  }
  return {kv_heads_of_all(p),
          tiles_of_head(p, tile_keys(p)),
          tile_bytes,
          kv_heads_of_all(p) * group_rows,
          multiprocessors,
          blocks,
          tile_us};
}

/// What a tile takes where `blocks` run at once, `together` of them on a multiprocessor that has the most.
double us_of_tile(const Work& work, std::int64_t blocks, std::int64_t together) {
  const auto bytes = static_cast<double>(work.tile_bytes);
  const double share =
      sharing_blocks(blocks, together, work.multiprocessors) / static_cast<double>(work.multiprocessors);
  const double busy = together > 1 ? static_cast<double>(together) / kBytesOfBlocks : 0;
  return std::max({work.tile_us, bytes * busy, bytes * share / kBytesOfShare});
}

double us_of_tile(const Work& work, std::int64_t blocks) {
  return us_of_tile(work, blocks, divide_up(blocks, work.multiprocessors));
}

/// Of the kernel that merges `parts`.
double us_of_combine(const Work& work, std::int64_t parts) {
  const bool is_late = parts > work.multiprocessors && work.rows > kEarlyRows;
  const auto pieces = static_cast<double>(divide_up(parts, work.heads));
  return kCombine + kCombineOfPiece * pieces + (is_late ? kLateCombine : 0);
}

/// Every head is a part.
Cut whole_heads(const Work& work) {
  const std::int64_t rounds = work.heads / work.slots();
  const std::int64_t rest = work.heads % work.slots();
  const double us =
      static_cast<double>(rounds) * us_of_tile(work, work.slots()) + (rest > 0 ? us_of_tile(work, rest) : 0);
  return {work.heads, 1, false, us * static_cast<double>(work.tiles) + kStart};
}

/// Equal shares for all blocks that run at once, whatever heads they cut.
Cut equal_shares(const Work& work) {
  const std::int64_t parts = std::min(work.slots(), work.heads * work.tiles);
  const double share = static_cast<double>(work.heads * work.tiles) / static_cast<double>(parts);
  const double combine = parts > 1 ? us_of_combine(work, parts) : 0;
  return {parts, 1, parts > 1, share * us_of_tile(work, parts) + kStart + combine};
}

/// As many parts of each head, in all slots.
Cut equal_pieces(const Work& work) {
  const std::int64_t pieces =
      std::min({work.slots() / work.heads, work.tiles, std::int64_t{kernels::kMaxSplits}});
  if (pieces < 2) return whole_heads(work);
  const std::int64_t parts = work.heads * pieces;
  return {parts, 1, true,
          us_of_tile(work, parts) * static_cast<double>(divide_up(work.tiles, pieces)) + kStart +
              us_of_combine(work, parts)};
}

/// A cluster for each head, whose blocks merge its pieces; takes forever where not all run at once. More than
/// two crowd together on few multiprocessors unless there are few.
Cut clusters(const Work& work) {
  Cut best = {work.heads, 1, false, std::numeric_limits<double>::infinity()};
  for (const int blocks : {2, 4, 8}) {
    const std::int64_t parts = work.heads * blocks;
    if (parts > work.multiprocessors) continue;
    const std::int64_t tiles = divide_up(work.tiles, static_cast<std::int64_t>(blocks));
    const bool are_crowded = blocks > 2 && 2 * parts > work.multiprocessors && tiles > kTilesAhead;
    if (are_crowded && work.blocks_a_multiprocessor == 1) continue;  // they don't all run at once
    const double us =
        us_of_tile(work, parts, are_crowded ? 2 : 1) * static_cast<double>(tiles) + kStart + kMerge;
    if (us < best.us) best = {parts, blocks, false, us};
  }
  return best;
}

/// The fastest for heads of as many tiles each.
Cut cut_uniform(const Work& work) {
  Cut best = whole_heads(work);
  for (const Cut& cut : {equal_shares(work), equal_pieces(work), clusters(work)}) {
    if (cut.us < best.us) best = cut;
  }
  return best;
}

/// For heads of lengths that only the device knows. Whole where all are so short that merging pieces would
/// take longer than it saves, however much they differ. Not by clusters, which cost a whole model's step 2 %
/// where they are a microsecond faster alone. Never more parts than run at once: a few more take as long as
/// all. Of many rows that few heads have one block a multiprocessor leaves room for the combination's, which
/// long sequences take less of their time for.
Cut cut_ragged(const Work& work) {
  const Cut whole = whole_heads(work);
  // Blocks that fill a multiprocessor each leave the combination's no room before they end.
  const bool is_late = work.blocks_a_multiprocessor == 1 && work.rows > kEarlyRows;
  const double us = whole.us - (is_late ? kLateCombine : 0);
  if (work.tiles <= kMostShortTiles && us <= equal_pieces(work).us && us <= equal_shares(work).us)
    return whole;
  const bool has_late_combine = work.rows > kEarlyRows && work.rows / work.heads > kFewRows;
  const bool is_short = work.heads <= kFewHeads && work.heads * work.tiles * work.tile_bytes <= kFewBytes;
  const std::int64_t blocks = has_late_combine && is_short ? work.multiprocessors : work.slots();
  const std::int64_t pieces = std::max<std::int64_t>(blocks / work.heads, 1) * work.heads;
  // As many of each head, unless that leaves too many multiprocessors without.
  const bool fills = static_cast<double>(pieces) >= kMostlyFull * static_cast<double>(blocks);
  const std::int64_t parts = fills ? pieces : blocks;
  return {parts, 1, parts > 1, 0};
}

Cut choose_cut(const AttentionProblem& p, const DeviceProperties& device) {
  const Work work = work_of(p, device.num_multiprocessors);
  return has_uniform_keys(p) ? cut_uniform(work) : cut_ragged(work);
}

double us_of_sm80(const AttentionProblem& p, const DeviceProperties& device) {
  const double us = sm80_decode_us(p, device);
  if (packed_rows(p) <= kernels::kDecodeHalfRows) return us;
  return us * (p.scores.additive_mask ? kSm80AdditiveMask : 1) *
         (p.scores.boolean_mask ? kSm80BooleanMask : 1);
}

/// What head_dims are multiples of: 16 bytes of keys.
int head_dim_multiple(const AttentionProblem& p) { return 16 / element_bytes(p); }

bool takes_head_dim(const AttentionProblem& p, int head_dim) {
  return head_dim % head_dim_multiple(p) == 0 && head_dim <= kernels::kMostDecodeHeadDim;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (std::string reason = reason_against_device(device); !reason.empty()) return reason;
  if (p.q.dtype == DType::kF32) return "it takes f16 and bf16, not f32";
  if (!takes_head_dim(p, p.head_dim_qk) || !takes_head_dim(p, p.head_dim_v)) {
    return fmt::format("it takes head_dims{} that {} divides, up to {}, not {} and {}",
                       has_narrow_kv(p) ? " of 8-bit keys" : "", head_dim_multiple(p),
                       kernels::kMostDecodeHeadDim, p.head_dim_qk, p.head_dim_v);
  }
  const int group = p.num_heads / p.num_kv_heads;
  if (p.seq_len_q * group > most_rows(p)) {
    return fmt::format("it takes up to {} rows a kv head{}, not {} queries of {} head{}", most_rows(p),
                       has_narrow_kv(p) ? " of 8-bit keys" : "", p.seq_len_q, group, group == 1 ? "" : "s");
  }
  if (std::string reason = reason_against_scales(p); !reason.empty()) return reason;
  return reason_against_keys(p, tile_keys(p), true);
}

/// Of rows of keys or values that long: no panel is filled up.
bool has_whole_panels(const AttentionProblem& p, int head_dim) {
  return head_dim % kernels::decode_panel_elements(element_bytes(p), head_dim) == 0;
}

std::string reason_to_yield(const AttentionProblem& p, const DeviceProperties& device) {
  const int group = p.num_heads / p.num_kv_heads;
  if (p.seq_len_q * group > kernels::kDecodeRows) return {};
  const bool is_wide = kernels::decode_blocks(p.head_dim_qk, p.head_dim_v) == 1;
  const bool is_uniform = has_uniform_keys(p);
  const bool are_whole = has_whole_panels(p, p.head_dim_qk) && has_whole_panels(p, p.head_dim_v);
  if (!are_whole && !(is_wide && is_uniform && has_narrow_kv(p)))
    return "its tiles' last panels are filled up, and sm80/decode copies no more than there is";
  const bool is_short = tiles_of_head(p, tile_keys(p)) <= kMostShortTiles;
  if (!is_uniform && is_wide && is_short && !p.paged_kv && !has_narrow_kv(p))
    return "sm80/decode is as fast over short sequences of lengths that the device knows";
  if (!is_uniform && sm80_decode_has_clusters(p, device))
    return "sm80/decode's clusters end sooner, each of which shares the few keys of a head out and needs no "
           "other kernel";
  if (!is_uniform) return {};
  // Keys of 8 bits keep the other kernel busy.
  const bool has_few_keys = tiles_of_head(p, tile_keys(p)) < kFewestTiles;
  if (has_few_keys || (!has_narrow_kv(p) && us_of_sm80(p, device) < kTie * choose_cut(p, device).us))
    return "sm80/decode starts and ends sooner, which is most of the time for so few keys of one length";
  return {};
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const int slots = slots_of(p);
  KernelChoice c;
  c.config = {most_rows(p), tile_keys(p), kernels::kDecodeThreads / 32, slots, 0};
  require_tiles(forced, c.config, "Hopper's decode kernel");
  c.pack_heads = p.num_heads / p.num_kv_heads;
  cut_rows(p, c);
  Cut cut = choose_cut(p, device);
  const std::int64_t parts = forced_parts(p, forced, tile_keys(p));
  const bool is_whole = parts == kv_heads_of_all(p) && (forced.num_parts == 0 || parts == 1);
  if (parts > 0 && parts != cut.parts) cut = {parts, 1, !is_whole, 0};
  set_parts(p, cut.parts, c.config);
  c.cluster_blocks = cut.cluster_blocks;
  c.partial_bytes = part_workspace_bytes(p, c, cut.combines || cut.cluster_blocks > 1);
  c.shared_bytes = static_cast<std::size_t>(
      kernels::decode_shared_bytes_of(slots, element_bytes(p), p.head_dim_qk, p.head_dim_v, masks_bytes(p)));
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

std::vector<AttentionConfig> candidates(const AttentionProblem& p, const DeviceProperties& device) {
  const Work work = work_of(p, device.num_multiprocessors);
  std::vector<AttentionConfig> configs;
  for (const std::int64_t parts : {work.heads, 2 * work.heads, 3 * work.heads, 4 * work.heads, 8 * work.heads,
                                   work.multiprocessors, work.slots()}) {
    if (parts <= kMostParts) configs.push_back({.num_parts = static_cast<int>(parts)});
  }
  return configs;
}

/// Whole tiles, or a panel of pages that are smaller or of rows whose last panel is filled up.
KeyBoxes boxes_of(const AttentionProblem& p, int head_dim) {
  const int panel_elements = kernels::decode_panel_elements(element_bytes(p), head_dim);
  const bool are_whole = has_whole_panels(p, head_dim);
  const int panels = are_whole ? head_dim / panel_elements : 1;
  const bool has_small_pages = p.paged_kv && p.paged_kv->page_size < tile_keys(p);
  return {.row_elements = are_whole ? panel_elements : head_dim,
          .panel_elements = panel_elements,
          .panels = panels,
          .panels_of_box = has_small_pages ? 1 : panels,
          .tokens_of_box = has_small_pages ? p.paged_kv->page_size : tile_keys(p)};
}

kernels::DecodeParts parts_of(const AttentionProblem& p, const KernelChoice& choice, std::byte* workspace,
                              kernels::AttentionParams& params) {
  kernels::DecodeParts parts = parts_in_workspace(p, choice, workspace, params);
  if (choice.cluster_blocks > 1 || (!has_uniform_keys(p) && choice.combine_entry.empty())) {
    parts.parts_of_head = choice.cluster_blocks;
    return parts;
  }
  // As many as there are multiprocessors or fewer would be crowded on some of them: empty parts beside them.
  const Work work = work_of(p, choice.num_multiprocessors);
  if (parts.num_parts >= work.heads && work.heads > work.multiprocessors &&
      whole_heads(work).us <= equal_shares(work).us)
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
    for (const int head_dim : {64, 128, 256}) {
      for (const bool is_paged : {false, true}) {
        AttentionProblem p = usual_problem(dtype, head_dim, 1, is_paged);
        p.batch = 64;
        problems.push_back({p});
        if (takes_head_dim(with_narrow_kv(p), head_dim)) problems.push_back({with_narrow_kv(p)});
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
    .is_decode = true,
    .takes_modifiers = true,
    .classifies_tiles = true,
    .takes_narrow_kv = true,
    .reason_against = reason_against,
    .reason_to_yield = reason_to_yield,
    .choose = choose,
    .candidates = candidates,
    .sequences_at_once = part_sequences_at_once,
    .shape = part_shape,
    .arguments = arguments,
    .combine = combine,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
