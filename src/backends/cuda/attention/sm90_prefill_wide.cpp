#include <fmt/core.h>

#include <algorithm>

#include "backends/cuda/attention/key_parts.h"
#include "backends/cuda/attention/sm90_prefill_shares.h"
#include "backends/cuda/attention/wgmma_prefill.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "backends/gpu/attention/problem_params.h"
#include "core/rounding.h"
#include "sm90/attention_wide_traits.h"

// sm90/attention_wide.cu: heads above 256 elements by Hopper's own products and copies, for f16 and bf16.

namespace tessera::cuda {

using namespace gpu;

extern const AttentionKernel kSm80Prefill;

namespace {

using kernels::kPanelElements;

int padded_qk(const AttentionProblem& p) { return padded_head_dim_qk(p, kPanelElements); }
int padded_v(const AttentionProblem& p) { return padded_head_dim_v(p, kPanelElements); }

/// All of a choice but its module.
KernelChoice cut(const AttentionProblem& p, const DeviceProperties& device,
                 const AttentionConfig& forced = {}) {
  KernelChoice c;
  c.config = {kernels::kWideBlockM, kernels::kWideBlockN, kernels::kWideThreads / 32,
              kernels::wide_buffers(padded_qk(p), padded_v(p)), 1};
  c.shared_bytes = static_cast<std::size_t>(kernels::wide_shared_bytes(padded_qk(p), padded_v(p)));
  c.pack_heads = packed_heads(p, kernels::kWideBlockM, false);
  cut_query_rows(p, c);
  cut_keys(p, forced, kernels::kWideBlockN, wanted_splits(p, device, c, kWideTileUs), c);
  cut_query_tiles(p, device, c, kernels::kWideColumnGroups);
  return c;
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  KernelChoice c = cut(p, device, forced);
  require_tiles(forced, c.config, "Hopper's kernel of large heads");
  c.entry = "attention_wide";
  c.module = {"sm90/attention_wide.cu",
              {fmt::format("TESSERA_DTYPE={}", dtype_name(p.q.dtype)), define("HEAD_DIM_QK", padded_qk(p)),
               define("HEAD_DIM_V", padded_v(p)), define("BLOCK_M", kernels::kWideBlockM),
               define("BLOCK_N", kernels::kWideBlockN), define("COLUMN_GROUPS", kernels::kWideColumnGroups),
               define("STAGES", 1), define("Q_BUFFERS", 1), define("TURNS", 0), define("STORED", 0),
               define("PAGED", p.paged_kv ? 1 : 0), define("TERMS", scoring_flags(p.scores)),
               define("MASK_DTYPE", mask_dtype_flag(p.scores)), define("COPIED_MASK", 0)}};
  if (packs_rows(c)) c.module.defines.push_back(define("PACKS", 1));
  if (const int piece = output_alignment(p); piece < kMapAlignment)
    c.module.defines.push_back(define("O_PIECE", piece));
  return c;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  constexpr int kMostOfOthers = 256;
  if (std::string reason = reason_against_device(device); !reason.empty()) return reason;
  if (p.q.dtype == DType::kF32) return "it takes f16 and bf16, not f32";
  if (std::max(p.head_dim_qk, p.head_dim_v) <= kMostOfOthers)
    return fmt::format("it takes head_dims above {}, not {}", kMostOfOthers,
                       std::max(p.head_dim_qk, p.head_dim_v));
  if (std::max(p.head_dim_qk, p.head_dim_v) > kernels::kMostWideHeadDim ||
      std::min(p.head_dim_qk, p.head_dim_v) <= kPanelElements)
    return fmt::format("it takes head_dims from {} to {}, not {} and {}", kPanelElements + 1,
                       kernels::kMostWideHeadDim, p.head_dim_qk, p.head_dim_v);
  if (p.batch_invariant) return "it doesn't have the bits of the kernels that take few queries";
  if (has_narrow_kv(p)) return "it takes keys and values of q's dtype";
  if (p.scores.modifier) return "it takes no modifier";
  if (std::string reason = reason_against_tensors(p); !reason.empty()) return reason;
  if (std::string reason = reason_against_pages(p, kernels::kWideBlockN); !reason.empty()) return reason;
  return reason_against_tiles(p, device, cut(p, device));
}

// What a tile of sm80/prefill's takes, fitted to an H200's times (docs/kernels/hopper_wide.md).
constexpr double kSm80TileStart = 0.8, kSm80TileOf512Dims = 4.2;

double dims_of(const AttentionProblem& p) { return (padded_qk(p) + padded_v(p)) / 1024.0; }

/// Of sm80/prefill, which packs the heads of a group and splits keys.
double us_of_sm80_call(const AttentionProblem& p, const DeviceProperties& device, double share) {
  constexpr double kCombine = 11.5;
  const KernelChoice c = kSm80Prefill.choose(p, device, {});
  const auto blocks =
      static_cast<double>(c.num_row_tiles * c.num_head_blocks * p.batch * c.config.num_splits);
  const double rounds = std::max(1.0, share * blocks / device.num_multiprocessors);
  const auto tiles = static_cast<double>(
      divide_up(divide_up(p.seq_len_kv, std::int64_t{c.config.block_n}), std::int64_t{c.config.num_splits}));
  const double us_of_tile = (kSm80TileStart + kSm80TileOf512Dims * dims_of(p)) *
                            (0.3 + 0.7 * c.config.block_m / 64.0) * c.config.block_n / 64.0;
  return rounds * tiles * us_of_tile + (c.config.num_splits > 1 ? kCombine : 0);
}

std::string reason_to_yield(const AttentionProblem& p, const DeviceProperties& device) {
  constexpr double kSplitUs = 12;  // of splits, beside what their model says
  const KernelChoice own = cut(p, device);
  const double share = share_of_pairs(p);
  const double us = us_with_splits(p, device, own, kWideTileUs, share, own.config.num_splits) +
                    (own.config.num_splits > 1 ? kSplitUs : 0);
  if (us <= us_of_sm80_call(p, device, share)) return {};
  return "so few queries leave most of its tiles empty, or of its multiprocessors idle";
}

/// Of few queries other splits.
std::vector<AttentionConfig> candidates(const AttentionProblem& p, const DeviceProperties& device) {
  const KernelChoice choice = cut(p, device);
  if (!packs_rows(choice)) return {};
  return splits_around(choice.config.num_splits, divide_up(p.seq_len_kv, std::int64_t{kernels::kWideBlockN}));
}

KernelArguments arguments(const kernels::AttentionParams& params, const AttentionProblem& p,
                          const KernelChoice& choice, std::byte* workspace) {
  return KernelArguments(wgmma_arguments(params, p, choice, workspace));
}

std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const std::int64_t queries : {1, 4096}) {
      for (const bool is_paged : {false, true}) {
        problems.push_back({usual_problem(dtype, kernels::kMostWideHeadDim, queries)});
        AttentionProblem& p = problems.back().problem;
        if (is_paged) use_pages(p, kernels::kWideBlockN);
        p.scores.diagonal = DiagonalMask::causal();
      }
    }
  }
  return problems;
}

}  // namespace

extern const AttentionKernel kSm90PrefillWide;
const AttentionKernel kSm90PrefillWide = {
    .name = "sm90/prefill_wide",
    .merit = "multiplies tiles of large heads with Hopper's own instructions",
    .tiles_suit_few_rows = true,
    .reason_against = reason_against,
    .reason_to_yield = reason_to_yield,
    .choose = choose,
    .candidates = candidates,
    .sequences_at_once = all_sequences_at_once,
    .shape = staying_shape,
    .arguments = arguments,
    .combine = combine_splits,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
