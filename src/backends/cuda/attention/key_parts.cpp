#include "backends/cuda/attention/key_parts.h"

#include <fmt/core.h>

#include <algorithm>

#include "backends/cuda/attention/mapped_tokens.h"
#include "backends/cuda/runtime/tensor_map.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "core/rounding.h"

namespace tessera::cuda {

using namespace gpu;

namespace {

constexpr int kHeadDimMultiple = 8;  // of what kernels are compiled for: the copy engine fills tiles up
constexpr std::int64_t kMostPositions = std::int64_t{1} << 30;  // kernels count them in 32 bits

/// "8, 16, 32": the pages smaller than a tile.
std::string small_pages(int tile_keys) {
  std::string pages;
  for (int size = 8; size < tile_keys; size *= 2) pages += fmt::format("{}{}", size == 8 ? "" : ", ", size);
  return pages;
}

}  // namespace

bool has_uniform_keys(const AttentionProblem& p) {
  return !p.ragged_q && !p.ragged_kv && !p.paged_kv && p.seq_lens_kv == nullptr;
}

std::int64_t kv_heads_of_all(const AttentionProblem& p) {
  return std::max<std::int64_t>(p.batch * p.num_kv_heads, 1);
}

std::int64_t tiles_of_head(const AttentionProblem& p, int tile_keys) {
  return std::max<std::int64_t>(divide_up(p.seq_len_kv, std::int64_t{tile_keys}), 1);
}

std::string reason_against_device(const DeviceProperties& device) {
  if (device.compute_capability == 90 && device.has_tensor_maps) return {};
  return "it takes Hopper GPUs (compute capability 9.0) with a driver for CUDA 12.0 or later";
}

std::string reason_against_keys(const AttentionProblem& p, int tile_keys, bool maps_values) {
  if (p.batch_invariant) return "its bits depend on how the keys are split, and batch_invariant is asked for";
  if (p.paged_kv && p.paged_kv->page_size > 0 && !has_whole_pages(p.paged_kv->page_size, tile_keys)) {
    return fmt::format("it takes pages of {} and multiples of {} tokens, not {}", small_pages(tile_keys),
                       tile_keys, p.paged_kv->page_size);
  }
  const bool is_sized = !p.paged_kv || p.paged_kv->page_size > 0;  // what is built ahead is not
  const TensorExtents kv = key_extents(p);
  if (!has_aligned_rows(p) || (is_sized && (!has_map(p.k, kv) || (maps_values && !has_map(p.v, kv)))))
    return "it takes tensors that are not empty, of rows aligned to 16 bytes, with strides above 0";
  const bool is_uniform = has_uniform_keys(p);
  const std::int64_t most_sequences = is_uniform ? kMaxGridYz : kMostListedSequences;
  if (p.batch > most_sequences) {
    return fmt::format("it takes up to {} sequences{}, not {}", most_sequences,
                       is_uniform ? "" : " of different lengths", p.batch);
  }
  if (kv_heads_of_all(p) > kMostPositions / (tiles_of_head(p, tile_keys) + 8))
    return "the keys' tiles are more than 32 bits count";
  return {};
}

void require_tiles(const AttentionConfig& forced, const AttentionConfig& config, std::string_view kernel) {
  const auto require = [&](const char* field, int value, int expected) {
    if (value > 0 && value != expected)
      reject_forced(field, value, fmt::format("{} for {}", expected, kernel));
  };
  require("block_m", forced.block_m, config.block_m);
  require("block_n", forced.block_n, config.block_n);
  require("num_warps", forced.num_warps, config.num_warps);
  require("num_stages", forced.num_stages, config.num_stages);
}

std::int64_t forced_parts(const AttentionProblem& p, const AttentionConfig& forced, int tile_keys) {
  const std::int64_t heads = kv_heads_of_all(p), tiles = tiles_of_head(p, tile_keys);
  if (forced.num_parts > kMostParts)
    reject_forced("num_parts", forced.num_parts, fmt::format("at most {}", kMostParts));
  if (forced.num_parts > 0) return std::min<std::int64_t>(forced.num_parts, heads * tiles);
  require_mergeable(forced);
  if (forced.num_splits == 0) return 0;
  const std::int64_t most = std::max<std::int64_t>(std::min(tiles, kMostParts / heads), 1);
  return heads * std::min<std::int64_t>(forced.num_splits, most);
}

void set_parts(const AttentionProblem& p, std::int64_t parts, AttentionConfig& config) {
  config.num_parts = static_cast<int>(parts);
  config.num_splits = static_cast<int>(divide_up(parts, kv_heads_of_all(p)));
}

ModuleSpec part_module(std::string source, const AttentionProblem& p) {
  ModuleSpec module = {std::move(source), common_defines(p, term_flags(p.scores), kHeadDimMultiple)};
  std::erase_if(module.defines, [](const std::string& d) { return d.starts_with("TESSERA_VECTOR="); });
  return module;
}

void encode_key_map(const AttentionProblem& p, const AttentionInput& t, const KeyBoxes& boxes,
                    kernels::TensorMap& map) {
  const TensorExtents mapped = key_extents(p);
  const auto element_bytes = static_cast<std::int64_t>(dtype_bytes(t.dtype, 1));
  TensorMapShape shape{.data = t.data, .dtype = t.dtype};
  if (boxes.panel_elements * element_bytes != 128) shape.swizzle = kTensorMapSwizzle64B;
  // Larger units of the L2 cache read 8 % slower, and so do these where rows begin within one, whose other
  // half is another head's, and no block reads that at about the same time.
  const bool halves_units = t.head_stride * element_bytes % 128 != 0 && !has_uniform_keys(p);
  shape.l2_promotion = halves_units ? kTensorMapL2Promotion64B : kTensorMapL2Promotion128B;
  shape.add(boxes.row_elements, 0, boxes.panel_elements);
  shape.add(mapped.tokens, t.seq_stride * element_bytes, boxes.tokens_of_box);
  shape.add(boxes.panels, boxes.panel_elements * element_bytes, boxes.panels_of_box);
  shape.add(mapped.heads, t.head_stride * element_bytes, 1);
  shape.add(mapped.outer, t.batch_stride * element_bytes, 1);
  map = encode_tensor_map(shape);
}

std::size_t part_workspace_bytes(const AttentionProblem& p, const KernelChoice& choice, bool has_partials) {
  const std::int64_t heads = kv_heads_of_all(p);
  std::size_t bytes = static_cast<std::size_t>(heads) * sizeof(kernels::DecodePiecesOfHead);
  if (has_partials) {
    bytes += static_cast<std::size_t>((choice.config.num_parts + heads) * p.seq_len_q * choice.pack_heads) *
             static_cast<std::size_t>(p.head_dim_v + 1) * sizeof(float);
  }
  return bytes;
}

kernels::DecodeParts parts_in_workspace(const AttentionProblem& p, const KernelChoice& choice,
                                        std::byte* workspace, kernels::AttentionParams& params) {
  kernels::DecodeParts parts = {};
  parts.num_parts = choice.config.num_parts;
  parts.block_n = choice.config.block_n;
  parts.piece_cost = has_uniform_keys(p) ? 0 : kPieceCost;
  parts.pieces = reinterpret_cast<kernels::DecodePiecesOfHead*>(workspace);
  const std::int64_t heads = p.batch * p.num_kv_heads;
  params.o_partial = reinterpret_cast<float*>(parts.pieces + heads);
  params.lse_partial =
      params.o_partial + (parts.num_parts + heads) * p.seq_len_q * choice.pack_heads * p.head_dim_v;
  return parts;
}

LaunchShape part_shape(const KernelChoice& choice, std::int64_t, unsigned warp_size) {
  LaunchShape shape;
  shape.grid = {static_cast<unsigned>(choice.config.num_parts * choice.num_row_tiles), 1, 1};
  shape.block = {static_cast<unsigned>(choice.config.num_warps) * warp_size, 1, 1};
  shape.shared_bytes = choice.shared_bytes;
  shape.overlaps_prior = true;
  shape.cluster_blocks = static_cast<unsigned>(choice.cluster_blocks);
  return shape;
}

std::int64_t part_sequences_at_once(const KernelChoice&) { return kMaxGridYz; }

CombineLaunch combine_parts(const kernels::AttentionParams& params, const AttentionProblem& p,
                            const KernelChoice& choice, const kernels::DecodeParts& parts,
                            std::int64_t sequences) {
  constexpr int kWarps = 4;
  kernels::DecodeCombineArguments a = {};
  a.params = params;
  a.parts = parts;
  // Where heads have few pieces a warp has all of a row's on their way at once.
  a.warps_of_row = choice.config.num_parts > 4 * kv_heads_of_all(p) ? kWarps : 1;
  // Where lengths differ most heads may have far fewer rows, or no pieces: no more blocks than run at once,
  // which go over the rows.
  constexpr std::int64_t kBlocksOfMultiprocessor = 16;
  const std::int64_t groups =
      divide_up(p.seq_len_q * choice.pack_heads, std::int64_t{kWarps / a.warps_of_row});
  const std::int64_t at_once = kBlocksOfMultiprocessor * choice.num_multiprocessors /
                               std::max<std::int64_t>(p.num_kv_heads * sequences, 1);
  LaunchShape shape;
  shape.grid = {static_cast<unsigned>(std::clamp<std::int64_t>(at_once, 1, groups)),
                static_cast<unsigned>(p.num_kv_heads), static_cast<unsigned>(sequences)};
  shape.block = {32 * kWarps, 1, 1};
  shape.overlaps_prior = true;
  return {shape, KernelArguments(a)};
}

}  // namespace tessera::cuda
