#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>

#include "backends/cuda/attention/mapped_tokens.h"
#include "backends/cuda/runtime/driver.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "core/rounding.h"
#include "sm80/attention_decode_traits.h"
#include "sm90/attention_arguments.h"
#include "sm90/attention_decode_traits.h"

// sm90/attention_decode.cu: few packed rows over many keys by Hopper's own products and copies, for f16 and
// bf16. sm90/attention_decode_e4m3.cu: the same beside keys and values of 8 bits.

namespace tessera::cuda {

using namespace gpu;

namespace {

constexpr std::int64_t kMostPositions = std::int64_t{1} << 30;          // kernels count them in 32 bits
constexpr std::int64_t kMostListedSequences = 4096;                     // whose lengths each block adds up
constexpr std::int64_t kFewestCombinedBytes = std::int64_t{160} << 20;  // of keys and values
constexpr std::int64_t kFewestTiles = 4;
constexpr int kMostParts = 4096;
constexpr int kPieceCost = 2;  // tiles

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

bool has_narrow_kv(const AttentionProblem& p) { return p.k.dtype != p.q.dtype; }

int element_bytes(const AttentionProblem& p) { return static_cast<int>(dtype_bytes(p.k.dtype, 1)); }

int tile_keys(const AttentionProblem& p) { return kernels::decode_tile_keys(element_bytes(p)); }

/// Packed rows of a block, at most.
int most_rows(const AttentionProblem& p) {
  return has_narrow_kv(p) ? kernels::kNarrowDecodeQueryRows : kernels::kDecodeQueryRows;
}

/// Whether all sequences have the problem's lengths.
bool is_uniform(const AttentionProblem& p) {
  return !p.ragged_q && !p.ragged_kv && !p.paged_kv && p.seq_lens_kv == nullptr;
}

std::int64_t tiles_of_head(const AttentionProblem& p) {
  return std::max<std::int64_t>(divide_up(p.seq_len_kv, std::int64_t{tile_keys(p)}), 1);
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
  return {std::max<std::int64_t>(p.batch * p.num_kv_heads, 1), tiles_of_head(p), multiprocessors, tile_alone,
          has_narrow_kv(p)};
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
  return is_uniform(p) ? cut_uniform(work) : cut_ragged(work);
}

bool takes_head_dim(int head_dim) { return head_dim == 64 || head_dim == 128; }

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (device.compute_capability != 90 || !device.has_tensor_maps)
    return "it takes Hopper GPUs (compute capability 9.0) with a driver for CUDA 12.0 or later";
  if (p.q.dtype == DType::kF32) return "it takes f16 and bf16, not f32";
  if (!takes_head_dim(p.head_dim_qk) || !takes_head_dim(p.head_dim_v))
    return fmt::format("it takes head_dims of 64 and 128, not {} and {}", p.head_dim_qk, p.head_dim_v);
  const int group = p.num_heads / p.num_kv_heads;
  if (p.seq_len_q * group > most_rows(p)) {
    return fmt::format("it takes up to {} rows a kv head{}, not {} queries of {} head{}", most_rows(p),
                       has_narrow_kv(p) ? " of 8-bit keys" : "", p.seq_len_q, group, group == 1 ? "" : "s");
  }
  if (p.kv_scales && p.paged_kv && p.kv_scales->batch_stride != 0)
    return "it takes one scale a head, not one a page";
  if (p.batch_invariant) return "its bits depend on how the keys are split, and batch_invariant is asked for";
  if (p.paged_kv && p.paged_kv->page_size > 0 && !has_whole_pages(p.paged_kv->page_size, tile_keys(p)))
    return fmt::format("it takes pages of 8, 16, 32{} and multiples of {} tokens, not {}",
                       has_narrow_kv(p) ? ", 64" : "", tile_keys(p), p.paged_kv->page_size);
  const bool is_sized = !p.paged_kv || p.paged_kv->page_size > 0;  // what is built ahead is not
  const TokenStorage kv = key_storage(p);
  if (!has_aligned_rows(p) ||
      (is_sized && (!has_map(p.k, kv, p.num_kv_heads) || !has_map(p.v, kv, p.num_kv_heads))))
    return "it takes tensors that are not empty, of rows aligned to 16 bytes, with strides above 0";
  const std::int64_t most_sequences = is_uniform(p) ? kMaxGridYz : kMostListedSequences;
  if (p.batch > most_sequences) {
    return fmt::format("it takes up to {} sequences{}, not {}", most_sequences,
                       is_uniform(p) ? "" : " of different lengths", p.batch);
  }
  const std::int64_t heads = p.batch * p.num_kv_heads;
  if (heads > kMostPositions / (tiles_of_head(p) + 8)) return "the keys' tiles are more than 32 bits count";
  const auto key_bytes = static_cast<std::int64_t>(
      dtype_bytes(p.k.dtype, static_cast<std::size_t>(p.head_dim_qk + p.head_dim_v)));
  // Keys of 8 bits keep the other kernel busy.
  const bool has_few_keys =
      tiles_of_head(p) < kFewestTiles || (!has_narrow_kv(p) && choose_cut(p, device).combines &&
                                          heads * p.seq_len_kv * key_bytes < kFewestCombinedBytes);
  if (is_uniform(p) && p.seq_len_q * group <= kernels::kDecodeRows && has_few_keys)
    return "sm80/decode starts and ends sooner, which is most of the time for so few keys of one length";
  return {};
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const auto require = [](const char* field, int value, int expected) {
    if (value > 0 && value != expected)
      reject_forced(field, value, fmt::format("{} for Hopper's decode kernel", expected));
  };
  const int slots = kernels::decode_slots(element_bytes(p), p.head_dim_qk, p.head_dim_v);
  KernelChoice c;
  c.config = {most_rows(p), tile_keys(p), kernels::kDecodeThreads / 32, slots, 0};
  require("block_m", forced.block_m, c.config.block_m);
  require("block_n", forced.block_n, c.config.block_n);
  require("num_warps", forced.num_warps, c.config.num_warps);
  require("num_stages", forced.num_stages, c.config.num_stages);
  if (forced.num_splits > kMostParts)
    reject_forced("num_splits", forced.num_splits, fmt::format("at most {}", kMostParts));
  c.pack_heads = p.num_heads / p.num_kv_heads;
  cut_rows(p, c);
  const std::int64_t heads = std::max<std::int64_t>(p.batch * p.num_kv_heads, 1);
  Cut cut = choose_cut(p, device);
  if (forced.num_splits > 0 && forced.num_splits != cut.parts)
    cut = {std::min<std::int64_t>(forced.num_splits, heads * tiles_of_head(p)), 1, forced.num_splits > 1, 0};
  c.config.num_splits = static_cast<int>(cut.parts);
  c.cluster_blocks = cut.cluster_blocks;
  c.partial_bytes = static_cast<std::size_t>(heads) * sizeof(kernels::DecodePiecesOfHead);
  if (cut.combines || cut.cluster_blocks > 1) {
    c.partial_bytes += static_cast<std::size_t>((cut.parts + heads) * p.seq_len_q * c.pack_heads) *
                       static_cast<std::size_t>(p.head_dim_v + 1) * sizeof(float);
  }
  c.shared_bytes = static_cast<std::size_t>(
      kernels::decode_shared_bytes_of(slots, element_bytes(p), p.head_dim_qk, p.head_dim_v));
  c.entry = "attention_decode";
  c.module = {has_narrow_kv(p) ? "sm90/attention_decode_e4m3.cu" : "sm90/attention_decode.cu",
              common_defines(p)};
  std::erase_if(c.module.defines, [](const std::string& d) { return d.starts_with("TESSERA_VECTOR="); });
  c.module.defines.push_back(define("STAGES", slots));
  if (has_narrow_kv(p)) {
    c.module.defines.push_back(fmt::format("TESSERA_KV_DTYPE={}", dtype_name(p.k.dtype)));
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

LaunchShape shape(const KernelChoice& choice, std::int64_t, unsigned warp_size) {
  LaunchShape shape;
  shape.grid = {static_cast<unsigned>(choice.config.num_splits), 1, 1};
  shape.block = {static_cast<unsigned>(choice.config.num_warps) * warp_size, 1, 1};
  shape.shared_bytes = choice.shared_bytes;
  shape.overlaps_prior = true;
  shape.cluster_blocks = static_cast<unsigned>(choice.cluster_blocks);
  return shape;
}

/// A map of a panel's elements, tokens, panels, heads, sequences or pages (DecodeArguments).
template <class Tensor>
void encode_map(const AttentionProblem& p, kernels::TensorMap& map, const Tensor& t, int head_dim) {
  const TokenStorage mapped = key_storage(p);
  const int bytes = element_bytes(p);
  // What there is one of may have any stride, which need not be one that a map takes.
  const auto stride_bytes = [&](std::int64_t stride, std::int64_t count) {
    return static_cast<unsigned long long>(count > 1 ? stride * bytes : 16);
  };
  const int panel_elements = kernels::decode_panel_elements(bytes, head_dim);
  const int panels = head_dim / panel_elements;
  const std::array sizes = {
      static_cast<unsigned long long>(panel_elements), static_cast<unsigned long long>(mapped.tokens),
      static_cast<unsigned long long>(panels), static_cast<unsigned long long>(p.num_kv_heads),
      static_cast<unsigned long long>(mapped.sequences)};
  const std::array strides = {stride_bytes(t.seq_stride, mapped.tokens), stride_bytes(panel_elements, panels),
                              stride_bytes(t.head_stride, p.num_kv_heads),
                              stride_bytes(t.batch_stride, mapped.sequences)};
  const bool has_small_pages = p.paged_kv && p.paged_kv->page_size < tile_keys(p);
  const std::array<unsigned, 5> box = {
      static_cast<unsigned>(panel_elements),
      static_cast<unsigned>(has_small_pages ? p.paged_kv->page_size : tile_keys(p)),
      static_cast<unsigned>(has_small_pages ? 1 : panels), 1, 1};
  const std::array<unsigned, 5> element_strides = {1, 1, 1, 1, 1};
  const int type = bytes == 1               ? kTensorMapUint8
                   : t.dtype == DType::kF16 ? kTensorMapFloat16
                                            : kTensorMapBFloat16;
  // Larger units of the L2 cache read 8 % slower.
  check(driver().cuTensorMapEncodeTiled(
            &map, type, box.size(), const_cast<void*>(static_cast<const void*>(t.data)), sizes.data(),
            strides.data(), box.data(), element_strides.data(), 0,
            panel_elements * bytes == 128 ? kTensorMapSwizzle128B : kTensorMapSwizzle64B,
            kTensorMapL2Promotion128B, 0),
        "cuTensorMapEncodeTiled");
}

/// The workspace: DecodePiecesOfHead of each head, partial results.
kernels::DecodeParts decode_parts(const AttentionProblem& p, const KernelChoice& choice, std::byte* workspace,
                                  kernels::AttentionParams& params) {
  kernels::DecodeParts parts = {};
  parts.num_parts = choice.config.num_splits;
  parts.block_n = choice.config.block_n;
  parts.piece_cost = is_uniform(p) ? 0 : kPieceCost;
  parts.cluster_blocks = choice.cluster_blocks;
  parts.pieces = reinterpret_cast<kernels::DecodePiecesOfHead*>(workspace);
  const std::int64_t heads = p.batch * p.num_kv_heads;
  // As many as there are multiprocessors or fewer would be crowded on some of them: empty parts beside them.
  const Work work = work_of(p, choice.num_multiprocessors);
  if (parts.num_parts >= heads && heads > choice.num_multiprocessors &&
      whole_heads(work).time <= equal_shares(work).time)
    parts.prefers_whole = 1;
  params.o_partial = reinterpret_cast<float*>(parts.pieces + heads);
  params.lse_partial =
      params.o_partial + (parts.num_parts + heads) * p.seq_len_q * choice.pack_heads * p.head_dim_v;
  return parts;
}

KernelArguments arguments(const kernels::AttentionParams& params, const AttentionProblem& p,
                          const KernelChoice& choice, std::byte* workspace) {
  kernels::DecodeArguments a = {};
  a.params = params;
  a.parts = decode_parts(p, choice, workspace, a.params);
  encode_map(p, a.k, p.k, p.head_dim_qk);
  encode_map(p, a.v, p.v, p.head_dim_v);
  return KernelArguments(a);
}

CombineLaunch combine(const kernels::AttentionParams& params, const AttentionProblem& p,
                      const KernelChoice& choice, std::byte* workspace, std::int64_t sequences) {
  constexpr int kWarps = 4;
  kernels::DecodeCombineArguments a = {};
  a.params = params;
  a.parts = decode_parts(p, choice, workspace, a.params);
  // Where heads have few pieces a warp has all of a row's on their way at once.
  a.warps_of_row = choice.config.num_splits > 4 * p.batch * p.num_kv_heads ? kWarps : 1;
  LaunchShape shape;
  shape.grid = {static_cast<unsigned>(
                    divide_up(p.seq_len_q * choice.pack_heads, std::int64_t{kWarps / a.warps_of_row})),
                static_cast<unsigned>(p.num_kv_heads), static_cast<unsigned>(sequences)};
  shape.block = {32 * kWarps, 1, 1};
  shape.overlaps_prior = true;
  return {shape, KernelArguments(a)};
}

std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int head_dim : {64, 128}) {
      for (const bool is_paged : {false, true}) {
        AttentionProblem p = usual_problem(dtype, head_dim, 1, is_paged);
        p.batch = 64;
        problems.push_back({p});
        p.k.dtype = p.v.dtype = DType::kF8E4M3;
        problems.push_back({p});
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
    .choose = choose,
    .sequences_at_once = sequences_at_once,
    .shape = shape,
    .arguments = arguments,
    .combine = combine,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
