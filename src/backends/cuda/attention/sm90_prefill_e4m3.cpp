#include <fmt/core.h>

#include "backends/cuda/attention/key_parts.h"
#include "backends/cuda/attention/wgmma_prefill.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "core/rounding.h"
#include "sm90/attention_e4m3_traits.h"

// sm90/attention_e4m3.cu: Hopper's own products of e4m3, for queries, keys and values of 8 bits.

namespace tessera::cuda {

using namespace gpu;

namespace {

using kernels::WgmmaTiles;

constexpr std::int64_t kFewestQueries = 128;

/// The tensor cores keep 13 bits behind the first one of each sum of 32 products and what was added before.
/// This many keys make up 2^10 such sums: of values that have one sign they may lose as much as the rounding
/// of a weight, 2^-4.
constexpr std::int64_t kMostKeys = 32768;

int head_dim_of(const AttentionProblem& p) { return kernels::narrow_head_dim(p.head_dim_qk, p.head_dim_v); }

WgmmaTiles tiles_of(const AttentionProblem& p) {
  const WgmmaTiles tiles = kernels::narrow_wgmma_tiles(head_dim_of(p), false);
  const bool has_boxes = !p.paged_kv || has_whole_pages(p.paged_kv->page_size, tiles.block_n);
  return has_boxes ? tiles : kernels::narrow_wgmma_tiles(head_dim_of(p), true);
}

/// All of a choice but its module.
KernelChoice cut(const AttentionProblem& p, const DeviceProperties& device) {
  const int head_dim = head_dim_of(p);
  const WgmmaTiles tiles = tiles_of(p);
  KernelChoice c;
  c.config = {tiles.block_m, tiles.block_n, kernels::narrow_wgmma_warps(tiles), tiles.num_stages, 1};
  c.shared_bytes = static_cast<std::size_t>(kernels::narrow_wgmma_shared_bytes(tiles, head_dim, head_dim));
  cut_query_tiles(p, device, c);
  return c;
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const int head_dim = head_dim_of(p);
  const WgmmaTiles tiles = tiles_of(p);
  KernelChoice c = cut(p, device);
  require_tiles(forced, c.config, "Hopper's kernel of e4m3");
  c.entry = "attention_e4m3";
  c.module = {"sm90/attention_e4m3.cu",
              {fmt::format("TESSERA_DTYPE={}", dtype_name(p.o.dtype)),
               fmt::format("TESSERA_Q_DTYPE={}", dtype_name(p.q.dtype)),
               fmt::format("TESSERA_KV_DTYPE={}", dtype_name(p.k.dtype)), define("HEAD_DIM_QK", head_dim),
               define("HEAD_DIM_V", head_dim), define("BLOCK_M", tiles.block_m),
               define("BLOCK_N", tiles.block_n), define("STAGES", tiles.num_stages),
               define("Q_BUFFERS", tiles.num_q_buffers), define("TURNS", tiles.takes_turns ? 1 : 0),
               define("STORED", tiles.num_stored), define("PAGED", p.paged_kv ? 1 : 0), define("TERMS", 0),
               define("MASK_DTYPE", 0), define("COPIED_MASK", 0)}};
  return c;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (std::string reason = reason_against_device(device); !reason.empty()) return reason;
  if (!has_narrow_q(p)) return fmt::format("it takes queries of f8e4m3, not {}", dtype_name(p.q.dtype));
  if (p.o.dtype == DType::kF32) return "it writes f16 and bf16, not f32";
  if (std::string reason = reason_against_head_dims(p); !reason.empty()) return reason;
  if (p.batch_invariant) return "it isn't proven to be batch_invariant";
  if (term_flags(p.scores) != 0) return "its scores have no terms but a diagonal and a scale above 0";
  if (has_page_scales(p)) return "it takes scales of heads, sequences or the tensor, not of pages";
  if (p.seq_len_q < kFewestQueries)
    return fmt::format("it takes at least {} queries, not {}", kFewestQueries, p.seq_len_q);
  if (p.seq_len_kv > kMostKeys)
    return fmt::format("it takes at most {} keys, not {}: sums of products of 8 bits lose too much over more",
                       kMostKeys, p.seq_len_kv);
  if (std::string reason = reason_against_tensors(p); !reason.empty()) return reason;
  const KernelChoice c = cut(p, device);
  if (std::string reason = reason_against_pages(p, c.config.block_n); !reason.empty()) return reason;
  return reason_against_tiles(p, device, c);
}

KernelArguments arguments(const kernels::AttentionParams& params, const AttentionProblem& p,
                          const KernelChoice& choice, std::byte* workspace) {
  return KernelArguments(wgmma_arguments(params, p, choice, workspace));
}

std::vector<BuiltProblem> built_ahead() {
  constexpr std::int64_t kQueries = 4096;
  std::vector<BuiltProblem> problems;
  for (const int head_dim : {64, 128, 256}) {
    AttentionProblem p = usual_problem(DType::kBF16, head_dim, kQueries);
    p.q.dtype = p.k.dtype = p.v.dtype = DType::kF8E4M3;
    problems.push_back({p});
    use_pages(p, 16);
    problems.push_back({p});
  }
  return problems;
}

}  // namespace

extern const AttentionKernel kSm90PrefillE4M3;
const AttentionKernel kSm90PrefillE4M3 = {
    .name = "sm90/prefill_e4m3",
    .merit = "multiplies queries, keys and values of 8 bits as they are",
    .has_whole_keys = always_whole_keys,
    .takes_narrow_kv = true,
    .takes_narrow_q = true,
    .narrow_weights = true,
    .reason_against = reason_against,
    .choose = choose,
    .sequences_at_once = all_sequences_at_once,
    .shape = staying_shape,
    .arguments = arguments,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
