#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "backends/cuda/attention/mapped_tokens.h"
#include "backends/cuda/runtime/driver.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "core/rounding.h"
#include "sm90/attention_arguments.h"
#include "sm90/attention_wgmma_traits.h"
#include "tessera/error.h"

// sm90/attention_wgmma.cu: Hopper's own products and copies, for f16 and bf16, also
// over keys and values of e4m3.

namespace tessera::cuda {

using namespace gpu;

namespace {

constexpr std::int64_t kMostTiles = std::int64_t{1} << 29;  // kernels count them in 32 bits
constexpr std::int64_t kFewestQueries = 128;
constexpr std::int64_t kManyQueries = 1536;
constexpr std::int64_t kMapAlignment = 16;  // bytes, of a tensor map's address and strides
constexpr std::size_t kTicketBytes = 16;    // the counter, and what keeps the rest aligned

using kernels::WgmmaTiles;

/// A modifier's mask alone leaves products in their own units.
int terms_of(const AttentionProblem& p) {
  const bool has_score = p.scores.modifier && !p.scores.modifier->score.empty();
  return term_flags(p.scores) & ~(has_score ? 0 : kernels::kTermModifier);
}

std::int64_t num_tiles(const KernelChoice& c, std::int64_t batch) {
  const std::int64_t heads = c.num_head_blocks * batch;
  return round_up(heads, c.heads_at_once) * c.num_row_tiles;
}

TokenStorage query_storage(const AttentionProblem& p) {
  if (p.ragged_q) return {p.ragged_q->total_tokens, 1};
  return {p.seq_len_q, p.batch};
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

/// The mask whose tiles are copied (of two the additive one), of kernels::ScoreTermFlags, or 0. Tiles that
/// have to be widened leave no room for it.
int choose_copied_mask(const AttentionProblem& p) {
  const ScoreTerms& s = p.scores;
  if (s.modifier) return 0;  // which leaves out tiles of keys
  if (has_narrow_kv(p)) return 0;
  if (s.additive_mask && is_copyable(*s.additive_mask, p)) return kernels::kTermAdditiveMask;
  if (s.boolean_mask && is_copyable(*s.boolean_mask, p)) return kernels::kTermBooleanMask;
  return 0;
}

const ScoreMask& mask_of(const AttentionProblem& p, int flag) {
  return flag == kernels::kTermAdditiveMask ? *p.scores.additive_mask : *p.scores.boolean_mask;
}

/// Bytes of an element of the copied mask, 0 if there is none.
int copied_mask_bytes(const AttentionProblem& p) {
  const int flag = choose_copied_mask(p);
  return flag != 0 ? static_cast<int>(dtype_bytes(mask_of(p, flag).dtype, 1)) : 0;
}

/// All of a choice but its module.
KernelChoice cut(const AttentionProblem& p, const DeviceProperties& device, const WgmmaTiles& tiles) {
  KernelChoice c;
  c.config = {tiles.block_m, tiles.block_n, kernels::wgmma_warps(tiles), tiles.num_stages, 1};
  c.shared_bytes = static_cast<std::size_t>(
      kernels::wgmma_shared_bytes(tiles, padded_head_dim_qk(p), padded_head_dim_v(p), copied_mask_bytes(p)));
  c.copied_mask = choose_copied_mask(p);
  cut_rows(p, c);
  c.keys_per_split = p.seq_len_kv;
  c.heads_at_once = choose_heads_at_once(p, device, c);
  // Tiles of one length are shared out evenly; of others each block takes the next when it has finished one.
  const bool varies = p.scores.diagonal || p.scores.modifier || p.ragged_q || p.ragged_kv || p.paged_kv ||
                      p.seq_lens_kv != nullptr;
  c.zeroed_bytes = varies ? sizeof(int) : 0;
  c.partial_bytes = kTicketBytes + static_cast<std::size_t>(num_tiles(c, p.batch)) *
                                       static_cast<std::size_t>(tiles.block_m / kernels::kWgmmaWarpRows) *
                                       sizeof(int);
  return c;
}

WgmmaTiles choose_tiles(const AttentionProblem& p, const AttentionConfig& forced) {
  // Under a short diagonal much of a wide tile is hidden; terms need registers.
  const bool has_terms = terms_of(p) != 0;
  const bool is_wide =
      (!p.scores.diagonal || p.seq_len_q >= kManyQueries) && !has_terms && !p.scores.modifier;
  const auto tiles_for = [&](bool wide) {
    if (has_narrow_kv(p))
      return kernels::widening_wgmma_tiles(padded_head_dim_qk(p), padded_head_dim_v(p), has_terms);
    return kernels::wgmma_tiles(padded_head_dim_qk(p), padded_head_dim_v(p), wide, has_terms,
                                copied_mask_bytes(p));
  };
  WgmmaTiles tiles = tiles_for(is_wide);
  const WgmmaTiles others = tiles_for(!is_wide);
  if (forced.block_m == others.block_m && !p.scores.modifier) tiles = others;
  const auto require = [](const char* field, int value, int expected) {
    if (value > 0 && value != expected)
      reject_forced(field, value, fmt::format("{} for Hopper's kernel", expected));
  };
  require("block_m", forced.block_m, tiles.block_m);
  require("block_n", forced.block_n, tiles.block_n);
  require("num_warps", forced.num_warps, kernels::wgmma_warps(tiles));
  require("num_stages", forced.num_stages, tiles.num_stages);
  require("num_splits", forced.num_splits, 1);
  return tiles;
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const WgmmaTiles tiles = choose_tiles(p, forced);
  KernelChoice c = cut(p, device, tiles);
  c.entry = "attention_wgmma";
  c.module = {
      "sm90/attention_wgmma.cu",
      {fmt::format("TESSERA_DTYPE={}", dtype_name(p.q.dtype)),
       fmt::format("TESSERA_KV_DTYPE={}", dtype_name(p.k.dtype)),
       define("HEAD_DIM_QK", padded_head_dim_qk(p)), define("HEAD_DIM_V", padded_head_dim_v(p)),
       define("BLOCK_M", tiles.block_m), define("BLOCK_N", tiles.block_n), define("STAGES", tiles.num_stages),
       define("Q_BUFFERS", tiles.num_q_buffers), define("TURNS", tiles.takes_turns ? 1 : 0),
       define("STORED", tiles.num_stored), define("PAGED", p.paged_kv ? 1 : 0), define("TERMS", terms_of(p)),
       define("MASK_DTYPE", mask_dtype_flag(p.scores)), define("COPIED_MASK", c.copied_mask)}};
  return c;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (device.compute_capability != 90 || !device.has_tensor_maps)
    return "it takes Hopper GPUs (compute capability 9.0) with a driver for CUDA 12.0 or later";
  if (p.q.dtype == DType::kF32) return "it takes f16 and bf16, not f32";
  if (std::string reason = reason_against_head_dims(p); !reason.empty()) return reason;
  if (p.batch_invariant) return "it isn't proven to be batch_invariant";
  if (has_page_scales(p)) return "it takes scales of heads or of the tensor, not of pages";
  if (has_narrow_kv(p) && p.scores.modifier)
    return "it takes a modifier over keys of q's dtype, not over f8e4m3";
  // Of narrow keys no other kernel has tiles.
  if (p.seq_len_q < kFewestQueries && !has_narrow_kv(p))
    return fmt::format("it takes at least {} queries, not {}", kFewestQueries, p.seq_len_q);
  const TokenStorage kv = key_storage(p);
  if (!has_aligned_rows(p) || !has_map(p.q, query_storage(p), p.num_heads) ||
      !has_map(p.k, kv, p.num_kv_heads) || !has_map(p.v, kv, p.num_kv_heads))
    return "it takes tensors that are not empty, of rows aligned to 16 bytes, with strides above 0";
  const KernelChoice c = cut(p, device, choose_tiles(p, {}));
  if (p.paged_kv && !has_whole_pages(p.paged_kv->page_size, c.config.block_n))
    return fmt::format(
        "it takes pages of a multiple of 8 keys that divides or is a multiple of {}, not of {}",
        c.config.block_n, p.paged_kv->page_size);
  if (num_tiles(c, p.batch) > kMostTiles)
    return fmt::format("it takes at most {} tiles of queries", kMostTiles);
  if (c.shared_bytes > device.shared_per_block_bytes) return "its tiles do not fit into shared memory";
  if (splits_that_fill(p, device, c.config.block_n, c) > 1 && !has_narrow_kv(p))
    return "so few tiles of queries leave most multiprocessors idle, and it doesn't split keys";
  return {};
}

std::int64_t sequences_at_once(const KernelChoice&) { return kMostTiles; }

LaunchShape shape(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size) {
  LaunchShape shape;
  const std::int64_t blocks =
      std::min<std::int64_t>(num_tiles(choice, sequences), choice.num_multiprocessors);
  shape.grid = {static_cast<unsigned>(blocks), 1, 1};
  shape.block = {static_cast<unsigned>(choice.config.num_warps) * warp_size, 1, 1};
  shape.shared_bytes = choice.shared_bytes;
  return shape;
}

/// What a map says of a tensor of four dimensions, innermost first, and of the boxes that are copied.
struct MappedTensor {
  const void* data;
  DType dtype;
  std::array<std::int64_t, 4> sizes;
  std::array<std::int64_t, 3> strides;  // elements, of all but the innermost
  int box_columns, box_rows;
};

void encode_map(kernels::TensorMap& map, const MappedTensor& t) {
  const int type = t.dtype == DType::kF16    ? kTensorMapFloat16
                   : t.dtype == DType::kBF16 ? kTensorMapBFloat16
                   : t.dtype == DType::kF32  ? kTensorMapFloat32
                                             : kTensorMapUint8;
  std::array<unsigned long long, 4> sizes;
  std::array<unsigned long long, 3> strides;
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = static_cast<unsigned long long>(t.sizes[i]);
  for (std::size_t i = 0; i < strides.size(); ++i) {
    // What there is one of may have any stride, which need not be one that a map takes.
    strides[i] = t.sizes[i + 1] > 1 ? static_cast<unsigned long long>(t.strides[i]) * dtype_bytes(t.dtype, 1)
                                    : static_cast<unsigned long long>(kMapAlignment);
  }
  const std::array<unsigned, 4> box = {static_cast<unsigned>(t.box_columns),
                                       static_cast<unsigned>(t.box_rows), 1, 1};
  const std::array<unsigned, 4> element_strides = {1, 1, 1, 1};
  check(driver().cuTensorMapEncodeTiled(&map, type, box.size(), const_cast<void*>(t.data), sizes.data(),
                                        strides.data(), box.data(), element_strides.data(), 0,
                                        kTensorMapSwizzle128B, kTensorMapL2Promotion256B, 0),
        "cuTensorMapEncodeTiled");
}

/// q, k or v: boxes of `rows` rows of one panel.
template <class Tensor>
MappedTensor mapped(const Tensor& t, int head_dim, std::int64_t tokens, int heads, std::int64_t sequences,
                    int rows) {
  return {t.data,
          t.dtype,
          {head_dim, tokens, heads, sequences},
          {t.seq_stride, t.head_stride, t.batch_stride},
          kernels::kPanelRowBytes / static_cast<int>(dtype_bytes(t.dtype, 1)),
          rows};
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
  kernels::WgmmaArguments a = {};
  a.params = params;
  const TokenStorage queries = query_storage(p);
  const TokenStorage kv = key_storage(p);
  const int key_rows =
      p.paged_kv ? std::min(p.paged_kv->page_size, choice.config.block_n) : choice.config.block_n;
  encode_map(
      a.q, mapped(p.q, p.head_dim_qk, queries.tokens, p.num_heads, queries.sequences, choice.config.block_m));
  encode_map(a.k, mapped(p.k, p.head_dim_qk, kv.tokens, p.num_kv_heads, kv.sequences, key_rows));
  encode_map(a.v, mapped(p.v, p.head_dim_v, kv.tokens, p.num_kv_heads, kv.sequences, key_rows));
  if (choice.copied_mask != 0) encode_map(a.mask, mapped(mask_of(p, choice.copied_mask), p));
  if (choice.zeroed_bytes > 0) a.tickets = reinterpret_cast<int*>(workspace);
  a.spoilt = reinterpret_cast<int*>(workspace + kTicketBytes);
  return KernelArguments(a);
}

/// Pages as models have them, of q's dtype or another.
AttentionProblem usual_paged_problem(DType dtype, int head_dim, DType kv_dtype) {
  AttentionProblem p = usual_problem(dtype, head_dim, kManyQueries, true);
  p.k.dtype = p.v.dtype = kv_dtype;
  p.paged_kv->page_size = 16;
  p.paged_kv->num_pages = p.seq_len_kv / p.paged_kv->page_size;
  p.k.batch_stride = p.v.batch_stride = p.paged_kv->page_size * p.k.seq_stride;
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
      problems.push_back({usual_paged_problem(dtype, head_dim, dtype)});
      if (head_dim <= 128) problems.push_back({usual_paged_problem(dtype, head_dim, DType::kF8E4M3)});
    }
  }
  return problems;
}

}  // namespace

extern const AttentionKernel kSm90Prefill;
const AttentionKernel kSm90Prefill = {
    .name = "sm90/prefill",
    .merit = "multiplies tiles with Hopper's own instructions",
    .takes_modifiers = true,
    .classifies_tiles = true,
    .takes_narrow_kv = true,
    .reason_against = reason_against,
    .choose = choose,
    .sequences_at_once = sequences_at_once,
    .shape = shape,
    .arguments = arguments,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
