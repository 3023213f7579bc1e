#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "attention/call.h"
#include "backends/cuda/attention/mapped_tokens.h"
#include "backends/cuda/runtime/driver.h"
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

constexpr std::int64_t kMostPositions = std::int64_t{1} << 30;  // kernels count them in 32 bits
constexpr std::int64_t kMostListedSequences = 4096;             // whose lengths each block adds up
constexpr int kMostParts = 4096;
constexpr int kPieceCost = 2;  // tiles

// How long things take on an H200, in the time that a block needs for a tile.
constexpr double kRoundStart = 2;
constexpr double kCombine = 4;
constexpr double kUneven = 1.02;  // blocks of equal shares don't end together

/// How all keys of all heads are cut into parts.
struct Cut {
  std::int64_t parts = 1;
  bool is_whole = true;  ///< a head a part
};

bool is_uniform(const AttentionProblem& p) {
  return !p.ragged_q && !p.ragged_kv && !p.paged_kv && p.seq_lens_kv == nullptr;
}

std::int64_t row_groups(const AttentionProblem& p) {
  const std::int64_t rows = p.seq_len_q * (p.num_heads / p.num_kv_heads);
  return divide_up(std::max<std::int64_t>(rows, 1), std::int64_t{kLatentRows});
}

std::int64_t tiles_of_head(const AttentionProblem& p) {
  return std::max<std::int64_t>(divide_up(p.seq_len_kv, std::int64_t{kLatentTileKeys}), 1);
}

std::int64_t num_kv_heads_of_all(const AttentionProblem& p) {
  return std::max<std::int64_t>(p.batch * p.num_kv_heads, 1);
}

/// The groups of a part's rows run side by side, so that they read its keys from the L2 cache.
Cut choose_cut(const AttentionProblem& p, const DeviceProperties& device) {
  const std::int64_t heads = num_kv_heads_of_all(p);
  const std::int64_t slots = std::max<std::int64_t>(device.num_multiprocessors / row_groups(p), 1);
  const auto tiles = static_cast<double>(tiles_of_head(p));
  const auto rounds = static_cast<double>(divide_up(heads, slots));
  const std::int64_t shares = std::min(slots, heads * tiles_of_head(p));
  const double whole_time = rounds * (tiles + kRoundStart);
  const double shared_time =
      static_cast<double>(heads) * tiles / static_cast<double>(shares) * kUneven + kRoundStart + kCombine;
  if (whole_time <= shared_time || heads >= kMostParts) return {heads, true};
  return {shares, false};
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (device.compute_capability != 90 || !device.has_tensor_maps)
    return "it takes Hopper GPUs (compute capability 9.0) with a driver for CUDA 12.0 or later";
  if (p.q.dtype == DType::kF32) return "it takes f16 and bf16, not f32";
  if (p.head_dim_qk != kLatentHeadDimQk || p.head_dim_v != kLatentHeadDimV || !has_values_in_keys(p)) {
    return fmt::format("it takes head_dims of {} and {} whose values are the first part of the keys",
                       kLatentHeadDimQk, kLatentHeadDimV);
  }
  if (p.batch_invariant) return "its bits depend on how the keys are split, and batch_invariant is asked for";
  if (p.paged_kv && p.paged_kv->page_size > 0 && !has_whole_pages(p.paged_kv->page_size, kLatentTileKeys))
    return fmt::format("it takes pages of 8, 16, 32 and multiples of 64 tokens, not {}",
                       p.paged_kv->page_size);
  const bool is_sized = !p.paged_kv || p.paged_kv->page_size > 0;  // what is built ahead is not
  if (!has_aligned_rows(p) || (is_sized && !has_map(p.k, key_storage(p), p.num_kv_heads)))
    return "it takes tensors that are not empty, of rows aligned to 16 bytes, with strides above 0";
  const std::int64_t most_sequences = is_uniform(p) ? kMaxGridYz : kMostListedSequences;
  if (p.batch > most_sequences) {
    return fmt::format("it takes up to {} sequences{}, not {}", most_sequences,
                       is_uniform(p) ? "" : " of different lengths", p.batch);
  }
  if (num_kv_heads_of_all(p) > kMostPositions / (tiles_of_head(p) + 8))
    return "the keys' tiles are more than 32 bits count";
  if (num_kv_heads_of_all(p) * row_groups(p) > kMostPositions)
    return "the rows are more than a grid has blocks for";
  return {};
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const auto require = [](const char* field, int value, int expected) {
    if (value > 0 && value != expected)
      reject_forced(field, value, fmt::format("{} for Hopper's kernel of latent attention", expected));
  };
  KernelChoice c;
  c.config = {kLatentRows, kLatentTileKeys, kernels::kLatentThreads / 32, kernels::kLatentBuffers, 0};
  require("block_m", forced.block_m, c.config.block_m);
  require("block_n", forced.block_n, c.config.block_n);
  require("num_warps", forced.num_warps, c.config.num_warps);
  require("num_stages", forced.num_stages, c.config.num_stages);
  if (forced.num_splits > kMostParts && forced.num_splits != num_kv_heads_of_all(p))
    reject_forced("num_splits", forced.num_splits, fmt::format("at most {}", kMostParts));
  c.pack_heads = p.num_heads / p.num_kv_heads;
  cut_rows(p, c);
  const std::int64_t heads = num_kv_heads_of_all(p);
  Cut cut = choose_cut(p, device);
  if (forced.num_splits > 0 && forced.num_splits != cut.parts) {
    cut.parts = std::min<std::int64_t>(forced.num_splits, heads * tiles_of_head(p));
    cut.is_whole = false;
  }
  c.config.num_splits = static_cast<int>(cut.parts);
  c.partial_bytes = static_cast<std::size_t>(heads) * sizeof(kernels::DecodePiecesOfHead);
  c.shared_bytes = kernels::kLatentSharedBytes;
  c.entry = "attention_latent";
  c.module = {"sm90/attention_latent.cu", common_defines(p)};
  std::erase_if(c.module.defines, [](const std::string& d) { return d.starts_with("TESSERA_VECTOR="); });
  // Where lengths are the device's to know, what is cut to be whole may have to be shared out after all.
  if (!(cut.is_whole && is_uniform(p)) && cut.parts > 1) {
    c.partial_bytes += static_cast<std::size_t>((cut.parts + heads) * p.seq_len_q * c.pack_heads) *
                       static_cast<std::size_t>(p.head_dim_v + 1) * sizeof(float);
    c.combine_module = c.module;
    c.combine_entry = "attention_latent_combine";
  }
  return c;
}

std::int64_t sequences_at_once(const KernelChoice&) { return kMaxGridYz; }

LaunchShape shape(const KernelChoice& choice, std::int64_t, unsigned warp_size) {
  LaunchShape shape;
  shape.grid = {static_cast<unsigned>(choice.config.num_splits * choice.num_row_tiles), 1, 1};
  shape.block = {static_cast<unsigned>(choice.config.num_warps) * warp_size, 1, 1};
  shape.shared_bytes = choice.shared_bytes;
  shape.overlaps_prior = true;
  return shape;
}

/// A map of 64 elements, tokens, panels, heads, sequences or pages (LatentArguments).
void encode_map(const AttentionProblem& p, kernels::TensorMap& map) {
  constexpr int kPanelElements = 64;
  const TokenStorage mapped = key_storage(p);
  // What there is one of may have any stride, which need not be one that a map takes.
  const auto stride_bytes = [](std::int64_t stride, std::int64_t count) {
    return static_cast<unsigned long long>(count > 1 ? stride * 2 : 16);
  };
  const std::array sizes = {
      static_cast<unsigned long long>(kPanelElements), static_cast<unsigned long long>(mapped.tokens),
      static_cast<unsigned long long>(kernels::kLatentPanels),
      static_cast<unsigned long long>(p.num_kv_heads), static_cast<unsigned long long>(mapped.sequences)};
  const std::array strides = {
      stride_bytes(p.k.seq_stride, mapped.tokens), stride_bytes(kPanelElements, kernels::kLatentPanels),
      stride_bytes(p.k.head_stride, p.num_kv_heads), stride_bytes(p.k.batch_stride, mapped.sequences)};
  const int box_rows = p.paged_kv ? std::min(p.paged_kv->page_size, kLatentTileKeys) : kLatentTileKeys;
  const std::array<unsigned, 5> box = {kPanelElements, static_cast<unsigned>(box_rows), 1, 1, 1};
  const std::array<unsigned, 5> element_strides = {1, 1, 1, 1, 1};
  check(driver().cuTensorMapEncodeTiled(
            &map, p.k.dtype == DType::kF16 ? kTensorMapFloat16 : kTensorMapBFloat16, box.size(),
            const_cast<void*>(p.k.data), sizes.data(), strides.data(), box.data(), element_strides.data(), 0,
            kTensorMapSwizzle128B, kTensorMapL2Promotion128B, 0),
        "cuTensorMapEncodeTiled");
}

/// The workspace: DecodePiecesOfHead of each head, partial results.
kernels::DecodeParts decode_parts(const AttentionProblem& p, const KernelChoice& choice, std::byte* workspace,
                                  kernels::AttentionParams& params) {
  kernels::DecodeParts parts = {};
  parts.num_parts = choice.config.num_splits;
  parts.block_n = choice.config.block_n;
  parts.piece_cost = is_uniform(p) ? 0 : kPieceCost;
  parts.pieces = reinterpret_cast<kernels::DecodePiecesOfHead*>(workspace);
  const std::int64_t heads = p.batch * p.num_kv_heads;
  parts.prefers_whole = parts.num_parts == heads ? 1 : 0;
  params.o_partial = reinterpret_cast<float*>(parts.pieces + heads);
  params.lse_partial =
      params.o_partial + (parts.num_parts + heads) * p.seq_len_q * choice.pack_heads * p.head_dim_v;
  return parts;
}

KernelArguments arguments(const kernels::AttentionParams& params, const AttentionProblem& p,
                          const KernelChoice& choice, std::byte* workspace) {
  kernels::LatentArguments a = {};
  a.params = params;
  a.parts = decode_parts(p, choice, workspace, a.params);
  a.row_groups = static_cast<int>(choice.num_row_tiles);
  encode_map(p, a.k);
  return KernelArguments(a);
}

CombineLaunch combine(const kernels::AttentionParams& params, const AttentionProblem& p,
                      const KernelChoice& choice, std::byte* workspace, std::int64_t sequences) {
  constexpr int kWarps = 4;
  kernels::DecodeCombineArguments a = {};
  a.params = params;
  a.parts = decode_parts(p, choice, workspace, a.params);
  // Where heads have few pieces a warp has all of a row's on their way at once.
  a.warps_of_row = choice.config.num_splits > 4 * num_kv_heads_of_all(p) ? kWarps : 1;
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
    .takes_modifiers = true,
    .reason_against = reason_against,
    .choose = choose,
    .sequences_at_once = sequences_at_once,
    .shape = shape,
    .arguments = arguments,
    .combine = combine,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
