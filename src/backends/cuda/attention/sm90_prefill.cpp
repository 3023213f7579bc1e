#include <fmt/core.h>

#include <algorithm>

#include "backends/cuda/attention/key_parts.h"
#include "backends/cuda/attention/sm90_prefill_shares.h"
#include "backends/cuda/attention/wgmma_prefill.h"
#include "backends/gpu/attention/align_rows.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "backends/gpu/attention/problem_params.h"
#include "core/rounding.h"
#include "sm90/attention_arguments.h"
#include "sm90/attention_wgmma_traits.h"
#include "tessera/error.h"

// sm90/attention_wgmma.cu: Hopper's own products and copies, for f16 and bf16, also
// over keys and values of e4m3.

namespace tessera::cuda {

using namespace gpu;

extern const AttentionKernel kSm80Prefill;

namespace {

constexpr std::int64_t kManyQueries = 1536;
constexpr int kMostInvariantHeadDim = 128;

using kernels::WgmmaTiles;

const ScoreMask& mask_of(const AttentionProblem& p, int flag) {
  return flag == kernels::kTermAdditiveMask ? *p.scores.additive_mask : *p.scores.boolean_mask;
}

/// Whether the copy engine can bring a mask's tiles; else threads read it element by element.
bool is_copyable(const ScoreMask& m, const AttentionProblem& p) {
  const auto element_bytes = static_cast<std::int64_t>(dtype_bytes(m.dtype, 1));
  const auto has_stride = [&](std::int64_t stride, std::int64_t count) {
    return is_mappable(stride, count) && (count <= 1 || stride * element_bytes % kMapAlignment == 0);
  };
  const auto is_broadcast_or_has = [&](std::int64_t stride, std::int64_t count) {
    return stride == 0 || has_stride(stride, count);
  };
  return m.kv_stride == 1 && has_stride(m.q_stride, p.seq_len_q) &&
         is_broadcast_or_has(m.head_stride, p.num_heads) && is_broadcast_or_has(m.batch_stride, p.batch) &&
         reinterpret_cast<std::uintptr_t>(m.data) % kMapAlignment == 0;
}

// What reading a mask's elements where they lie costs beside tiles of it, of a pair of query and key at
// head_dim 128: 260 in place of 550 TFLOP/s.
constexpr double kUsOfStrayElement = 1.0e-6;

/// Whether a mask that the copy engine can't bring is copied to rows that it can: where many heads read it.
bool is_worth_aligning(const ScoreMask& m, const AttentionProblem& p) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 28;  // align_rows.cu counts bytes in 32 bits
  constexpr double kMostBytes = 1 << 30;                       // of workspace
  if (m.kv_stride != 1 || p.seq_len_q == 0 || p.seq_len_kv == 0 || p.batch == 0) return false;
  if (std::max(p.seq_len_q, p.seq_len_kv) > kMostTokens) return false;
  const double pairs = static_cast<double>(p.seq_len_q) * static_cast<double>(p.seq_len_kv);
  const double masks =
      static_cast<double>(m.batch_stride != 0 ? p.batch : 1) * (m.head_stride != 0 ? p.num_heads : 1);
  const double bytes = masks * pairs * static_cast<double>(dtype_bytes(m.dtype, 1));
  const double heads = static_cast<double>(p.batch) * p.num_heads * share_of_pairs(p);
  const double dims = std::max(padded_head_dim_qk(p), padded_head_dim_v(p)) / 128.0;
  return bytes <= kMostBytes && us_of_aligned_bytes(bytes) < heads * pairs * kUsOfStrayElement * dims;
}

/// The mask whose tiles could be copied (of two the additive one), of kernels::ScoreTermFlags, or 0. Tiles
/// that have to be widened leave no room for it.
int mask_of_tiles(const AttentionProblem& p) {
  const ScoreTerms& s = p.scores;
  if (s.modifier) return 0;  // which leaves out tiles of keys
  if (has_narrow_kv(p)) return 0;
  const auto has_tiles = [&](const std::optional<ScoreMask>& m) {
    return m && (is_copyable(*m, p) || is_worth_aligning(*m, p));
  };
  if (has_tiles(s.additive_mask)) return kernels::kTermAdditiveMask;
  if (has_tiles(s.boolean_mask)) return kernels::kTermBooleanMask;
  return 0;
}

constexpr int kPackedTileRows = 128;

/// Heads whose queries share tiles.
int pack_heads(const AttentionProblem& p) { return packed_heads(p, kPackedTileRows, mask_of_tiles(p) != 0); }

/// The mask whose tiles are copied, or 0: not those of packed rows.
int choose_copied_mask(const AttentionProblem& p) { return pack_heads(p) == 1 ? mask_of_tiles(p) : 0; }

/// Whether parts of the keys may have tiles of their own.
bool may_split(const AttentionProblem& p) {
  return !p.batch_invariant && !p.scores.modifier && choose_copied_mask(p) == 0;
}

bool has_whole_keys(const AttentionProblem& p) { return !may_split(p); }

/// The mask (AlignedTensors) that has to be copied for that, or 0.
int mask_to_align(const AttentionProblem& p) {
  const int flag = choose_copied_mask(p);
  if (flag == 0 || is_copyable(mask_of(p, flag), p)) return 0;
  return flag == kernels::kTermAdditiveMask ? kAlignedAdditiveMask : kAlignedBooleanMask;
}

/// Whether warps copy the rows of pages: those fit no box of the copy engine, or are small.
bool gathers(const AttentionProblem& p, const WgmmaTiles& tiles) {
  if (!p.paged_kv) return false;
  if (!has_whole_pages(p.paged_kv->page_size, tiles.block_n)) return true;
  if (has_narrow_kv(p) || p.scores.modifier) return false;
  // Rows of few keys a page are copied sooner by warps than by a box a page, if all warps do.
  const bool has_short_rows = std::max(padded_head_dim_qk(p), padded_head_dim_v(p)) <= 64;
  const bool needs_boxes = p.batch_invariant || choose_copied_mask(p) != 0;
  return p.paged_kv->page_size < (has_short_rows || needs_boxes ? 16 : 32);
}

/// Bytes of an element of the copied mask, 0 if there is none.
int copied_mask_bytes(const AttentionProblem& p) {
  const int flag = choose_copied_mask(p);
  return flag != 0 ? static_cast<int>(dtype_bytes(mask_of(p, flag).dtype, 1)) : 0;
}

/// Whether what is stored once would be copied for each of those that read it.
template <class Tensor>
bool is_broadcast(const Tensor& t, const TensorExtents& extents) {
  return (t.batch_stride == 0 && extents.outer > 1) || (t.seq_stride == 0 && extents.tokens > 1) ||
         (t.head_stride == 0 && extents.heads > 1);
}

/// Whether rows that the copy engine doesn't take may be copied to such as it does. Pages would all be, those
/// of others, too.
bool may_align(const AttentionProblem& p) {
  const TensorExtents kv = key_extents(p);
  return !p.paged_kv && !has_narrow_kv(p) && !is_broadcast(p.q, query_extents(p)) && !is_broadcast(p.k, kv) &&
         !is_broadcast(p.v, kv);
}

/// Of q, k and v those (AlignedTensors) that the copy engine doesn't take as they are.
int rows_to_align(const AttentionProblem& p) {
  if (!may_align(p)) return 0;
  const auto bit_of = [&](int bit, const auto& t, const TensorExtents& extents) {
    const auto has_stride = [&](std::int64_t stride, std::int64_t count) {
      return count <= 1 || stride * static_cast<std::int64_t>(dtype_bytes(t.dtype, 1)) % kMapAlignment == 0;
    };
    const bool is_taken =
        tensors_are_aligned(p) && has_map(t, extents) && has_stride(t.batch_stride, extents.outer) &&
        has_stride(t.seq_stride, extents.tokens) && has_stride(t.head_stride, extents.heads);
    return is_taken ? 0 : bit;
  };
  const TensorExtents kv = key_extents(p);
  return bit_of(kAlignedQ, p.q, query_extents(p)) | bit_of(kAlignedK, p.k, kv) | bit_of(kAlignedV, p.v, kv);
}

int tensors_to_align(const AttentionProblem& p) { return rows_to_align(p) | mask_to_align(p); }

/// Empty if the copy engine can bring q, k and v, or copies of them; otherwise why not.
std::string reason_against_rows(const AttentionProblem& p) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;  // align_rows.cu counts them in 32 bits
  if (!may_align(p)) return reason_against_tensors(p);
  const std::int64_t q_tokens = query_extents(p).tokens, kv_tokens = key_extents(p).tokens;
  if (q_tokens > 0 && kv_tokens > 0 && p.batch > 0 && std::max(q_tokens, kv_tokens) <= kMostTokens) return {};
  return fmt::format("it takes tensors that are not empty, of up to {} tokens", kMostTokens);
}

/// All of a choice but its module.
KernelChoice cut(const AttentionProblem& p, const DeviceProperties& device, const WgmmaTiles& tiles,
                 const AttentionConfig& forced = {}) {
  KernelChoice c;
  c.config = {tiles.block_m, tiles.block_n, kernels::wgmma_warps(tiles), tiles.num_stages, 1};
  c.shared_bytes = static_cast<std::size_t>(
      kernels::wgmma_shared_bytes(tiles, padded_head_dim_qk(p), padded_head_dim_v(p), copied_mask_bytes(p)));
  c.copied_mask = choose_copied_mask(p);
  if (tiles.block_m == kPackedTileRows) c.pack_heads = pack_heads(p);
  if (tiles.block_m == kPackedTileRows && may_split(p)) {
    cut_query_rows(p, c);
    cut_keys(p, forced, tiles.block_n, wanted_splits(p, device, c), c);
  }
  cut_query_tiles(p, device, c);
  if (p.batch_invariant) c.keys_per_segment = keys_per_segment(tiles.block_n);
  return c;
}

WgmmaTiles choose_tiles(const AttentionProblem& p, const AttentionConfig& forced) {
  // Under a short diagonal much of a wide tile is hidden, and few queries leave much of it empty; terms need
  // registers.
  const bool has_terms = scoring_flags(p.scores) != 0;
  const bool has_many = p.seq_len_q > (p.scores.diagonal ? kManyQueries - 1 : 2 * kPackedTileRows);
  const bool is_wide =
      has_many && !has_terms && !p.scores.modifier && pack_heads(p) == 1 && forced.num_splits <= 1;
  const auto tiles_for = [&](bool wide) {
    if (p.batch_invariant) return kernels::segment_wgmma_tiles(padded_head_dim_qk(p), padded_head_dim_v(p));
    if (has_narrow_kv(p))
      return kernels::widening_wgmma_tiles(padded_head_dim_qk(p), padded_head_dim_v(p), has_terms);
    return kernels::wgmma_tiles(padded_head_dim_qk(p), padded_head_dim_v(p), wide, has_terms,
                                copied_mask_bytes(p));
  };
  WgmmaTiles tiles = tiles_for(is_wide);
  const WgmmaTiles others = tiles_for(!is_wide);
  if (gathers(p, tiles)) {
    tiles = tiles_for(false);  // three warpgroups leave no registers for rows' addresses
  } else if (forced.block_m == others.block_m && !p.scores.modifier) {
    tiles = others;
  }
  require_tiles(forced, {tiles.block_m, tiles.block_n, kernels::wgmma_warps(tiles), tiles.num_stages},
                "Hopper's kernel");
  return tiles;
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const WgmmaTiles tiles = choose_tiles(p, forced);
  KernelChoice c = cut(p, device, tiles, forced);
  c.entry = "attention_wgmma";
  c.module = {"sm90/attention_wgmma.cu",
              {fmt::format("TESSERA_DTYPE={}", dtype_name(p.q.dtype)),
               fmt::format("TESSERA_KV_DTYPE={}", dtype_name(p.k.dtype)),
               define("HEAD_DIM_QK", padded_head_dim_qk(p)), define("HEAD_DIM_V", padded_head_dim_v(p)),
               define("BLOCK_M", tiles.block_m), define("BLOCK_N", tiles.block_n),
               define("STAGES", tiles.num_stages), define("Q_BUFFERS", tiles.num_q_buffers),
               define("TURNS", tiles.takes_turns ? 1 : 0), define("STORED", tiles.num_stored),
               define("PAGED", p.paged_kv ? 1 : 0), define("TERMS", scoring_flags(p.scores)),
               define("MASK_DTYPE", mask_dtype_flag(p.scores)), define("COPIED_MASK", c.copied_mask)}};
  if (gathers(p, tiles)) {
    c.module.defines.push_back(define("GATHERS", 1));
    c.note = fmt::format("warps copy keys and values row by row: {}",
                         has_whole_pages(p.paged_kv->page_size, tiles.block_n)
                             ? fmt::format("boxes of {} keys a page would be slower", p.paged_kv->page_size)
                             : fmt::format("boxes of pages of {} keys make up no tile of {}",
                                           p.paged_kv->page_size, tiles.block_n));
  }
  if (tiles.num_tile_slots != kernels::WgmmaTiles{}.num_tile_slots)
    c.module.defines.push_back(define("TILE_SLOTS", tiles.num_tile_slots));
  if (packs_rows(c)) c.module.defines.push_back(define("PACKS", 1));
  if (p.batch_invariant) c.module.defines.push_back(define("INVARIANT", 1));
  if (const int piece = output_alignment(p); piece < kMapAlignment)
    c.module.defines.push_back(define("O_PIECE", piece));
  return c;
}

/// Of batch-invariant problems it takes those that have the bits of the kernels which other numbers of
/// queries take: terms are computed otherwise there, and so are sums of large heads.
std::string reason_against_bits(const AttentionProblem& p) {
  if (!p.batch_invariant) return {};
  if (std::max(p.head_dim_qk, p.head_dim_v) > kMostInvariantHeadDim)
    return fmt::format("with batch_invariant it takes head_dims up to {}", kMostInvariantHeadDim);
  if (has_narrow_kv(p) || p.scores.modifier || term_flags(p.scores) != 0)
    return "with batch_invariant it takes keys of q's dtype without score terms";
  if (gathers(p, choose_tiles(p, {})))
    return "with batch_invariant it takes pages of 16, 32 or a multiple of 64 keys";
  return {};
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (std::string reason = reason_against_device(device); !reason.empty()) return reason;
  if (p.q.dtype == DType::kF32) return "it takes f16 and bf16, not f32";
  if (std::string reason = reason_against_head_dims(p); !reason.empty()) return reason;
  if (std::string reason = reason_against_bits(p); !reason.empty()) return reason;
  if (has_page_scales(p)) return "it takes scales of heads or of the tensor, not of pages";
  if (has_narrow_kv(p) && p.scores.modifier)
    return "it takes a modifier over keys of q's dtype, not over f8e4m3";
  if (std::string reason = reason_against_rows(p); !reason.empty()) return reason;
  const WgmmaTiles tiles = choose_tiles(p, {});
  if (has_narrow_kv(p) || p.scores.modifier) {  // whose pages are not gathered
    if (const std::string reason = reason_against_pages(p, tiles.block_n); !reason.empty())
      return fmt::format("{} {}", p.scores.modifier ? "with a modifier" : "of keys of 8 bits", reason);
  }
  return reason_against_tiles(p, device, cut(p, device, tiles));
}

std::string reason_to_yield(const AttentionProblem& p, const DeviceProperties& device) {
  const KernelChoice other = kSm80Prefill.choose(p, device, {});
  const KernelChoice own = cut(p, device, choose_tiles(p, {}));
  const int aligned = rows_to_align(p);
  if (!is_slower_than_sm80(p, device, own, aligned, other)) return {};
  if (aligned != 0)
    return fmt::format("it would have {} copied to aligned rows first, which takes longer than it saves",
                       names_of_tensors(aligned));
  if (own.pack_heads < other.pack_heads)
    return "here it doesn't pack so few queries with the heads of their group";
  if (own.config.num_splits < other.config.num_splits)
    return "so few tiles of queries leave most multiprocessors idle, and here it doesn't split keys";
  return "so few rows leave more of its tiles empty than of smaller ones";
}

/// Of few queries other splits, of many the tiles that its choice passes over, where there are two and
/// registers suffice for both.
std::vector<AttentionConfig> candidates(const AttentionProblem& p, const DeviceProperties& device) {
  const WgmmaTiles own = choose_tiles(p, {});
  const KernelChoice choice = cut(p, device, own);
  if (packs_rows(choice))
    return splits_around(choice.config.num_splits, divide_up(p.seq_len_kv, std::int64_t{own.block_n}));
  if (p.batch_invariant || has_narrow_kv(p) || scoring_flags(p.scores) != 0 || p.scores.modifier) return {};
  if (gathers(p, own)) return {};
  std::vector<AttentionConfig> configs;
  for (const bool is_wide : {false, true}) {
    const WgmmaTiles tiles = kernels::wgmma_tiles(padded_head_dim_qk(p), padded_head_dim_v(p), is_wide, false,
                                                  copied_mask_bytes(p));
    configs.push_back({.block_m = tiles.block_m});
  }
  return configs;
}

/// A mask: boxes of the rows of a warpgroup. What it is broadcast along it has one of.
MappedTensor mapped(const ScoreMask& m, const AttentionProblem& p) {
  if (reinterpret_cast<std::uintptr_t>(m.data) % kMapAlignment != 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("a mask is at {}; expected a multiple of {} bytes, as that which the plan was made "
                    "with, or a plan of its own",
                    m.data, kMapAlignment));
  return {
      m.data,
      m.dtype,
      {p.seq_len_kv, p.seq_len_q, m.head_stride != 0 ? p.num_heads : 1, m.batch_stride != 0 ? p.batch : 1},
      {m.q_stride, m.head_stride, m.batch_stride},
      kernels::kPanelRowBytes / static_cast<int>(dtype_bytes(m.dtype, 1)),
      kernels::kWarpgroupRows};
}

KernelArguments arguments(const kernels::AttentionParams& params, const AttentionProblem& p,
                          const KernelChoice& choice, std::byte* workspace) {
  kernels::WgmmaArguments a = wgmma_arguments(params, p, choice, workspace);
  if (choice.copied_mask != 0) encode_map(a.mask, mapped(mask_of(p, choice.copied_mask), p));
  return KernelArguments(a);
}

/// Pages as models have them, of q's dtype or another.
AttentionProblem usual_paged_problem(DType dtype, int head_dim, DType kv_dtype, int page_size) {
  AttentionProblem p = usual_problem(dtype, head_dim, kManyQueries);
  p.k.dtype = p.v.dtype = kv_dtype;
  use_pages(p, page_size);
  p.scores.diagonal = DiagonalMask::causal();
  return p;
}

std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int head_dim : {64, 128, 256}) {
      problems.push_back({usual_problem(dtype, head_dim, kManyQueries)});
      problems.push_back({usual_problem(dtype, head_dim, kManyQueries / 2)});
      problems.back().problem.scores.diagonal = DiagonalMask::causal();
      for (const int page_size : {1, 16, 64})  // as the engines that people use have them
        problems.push_back({usual_paged_problem(dtype, head_dim, dtype, page_size)});
      if (head_dim > 128) continue;
      problems.push_back({usual_paged_problem(dtype, head_dim, dtype, 16)});
      problems.back().problem.seq_len_q = kPackedTileRows / 4;
      if (head_dim == 128) problems.push_back({usual_problem(dtype, head_dim, kPackedTileRows / 4)});
      problems.push_back({usual_paged_problem(dtype, head_dim, DType::kF8E4M3, 16)});
      // What does rows again keeps some words in memory.
      problems.push_back({usual_problem(dtype, head_dim, kManyQueries), true});
      problems.back().problem.batch_invariant = true;
      problems.push_back({usual_paged_problem(dtype, head_dim, dtype, 16), true});
      problems.back().problem.batch_invariant = true;
    }
  }
  return problems;
}

}  // namespace

extern const AttentionKernel kSm90Prefill;
const AttentionKernel kSm90Prefill = {
    .name = "sm90/prefill",
    .merit = "multiplies tiles with Hopper's own instructions",
    .has_whole_keys = has_whole_keys,
    .tiles_suit_few_rows = true,
    .takes_modifiers = true,
    .classifies_tiles = true,
    .takes_narrow_kv = true,
    .reason_against = reason_against,
    .reason_to_yield = reason_to_yield,
    .choose = choose,
    .tensors_to_align = tensors_to_align,
    .candidates = candidates,
    .sequences_at_once = all_sequences_at_once,
    .shape = staying_shape,
    .arguments = arguments,
    .combine = combine_splits,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
