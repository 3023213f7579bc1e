#include <fmt/core.h>

#include <algorithm>

#include "backends/cuda/attention/key_parts.h"
#include "backends/cuda/attention/wgmma_prefill.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/problem_params.h"
#include "backends/gpu/attention/split_rows.h"
#include "core/rounding.h"
#include "sm90/attention_f32_traits.h"

// sm90/attention_f32.cu: fp32 by Hopper's own products, three of fp16 for each.

namespace tessera::cuda {

using namespace gpu;

namespace {

using kernels::WgmmaTiles;

WgmmaTiles tiles_of(const AttentionProblem& p) {
  return kernels::split_wgmma_tiles(padded_head_dim_qk(p), padded_head_dim_v(p),
                                    p.scores.modifier.has_value());
}

/// All of a choice but its module.
KernelChoice cut(const AttentionProblem& p, const DeviceProperties& device) {
  const WgmmaTiles tiles = tiles_of(p);
  KernelChoice c;
  c.config = {tiles.block_m, tiles.block_n, kernels::wgmma_warps(tiles), tiles.num_stages, 1};
  c.shared_bytes = static_cast<std::size_t>(
      kernels::split_wgmma_shared_bytes(tiles, padded_head_dim_qk(p), padded_head_dim_v(p)));
  cut_query_tiles(p, device, c);
  return c;
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const WgmmaTiles tiles = tiles_of(p);
  KernelChoice c = cut(p, device);
  require_tiles(forced, c.config, "Hopper's kernel of f32");
  c.entry = "attention_f32";
  c.module = {
      "sm90/attention_f32.cu",
      {fmt::format("TESSERA_DTYPE={}", dtype_name(p.q.dtype)), define("HEAD_DIM_QK", padded_head_dim_qk(p)),
       define("HEAD_DIM_V", padded_head_dim_v(p)), define("BLOCK_M", tiles.block_m),
       define("BLOCK_N", tiles.block_n), define("STAGES", tiles.num_stages),
       define("Q_BUFFERS", tiles.num_q_buffers), define("TURNS", tiles.takes_turns ? 1 : 0),
       define("STORED", 0), define("PAGED", 0), define("TERMS", scoring_flags(p.scores)),
       define("MASK_DTYPE", mask_dtype_flag(p.scores)), define("COPIED_MASK", 0)}};
  if (const int piece = output_alignment(p); piece < kMapAlignment)
    c.module.defines.push_back(define("O_PIECE", piece));
  return c;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // kernels count in 32 bits
  constexpr std::int64_t kMostOfPages = 2;
  if (std::string reason = reason_against_device(device); !reason.empty()) return reason;
  if (p.q.dtype != DType::kF32) return fmt::format("it takes f32, not {}", dtype_name(p.q.dtype));
  if (std::string reason = reason_against_head_dims(p); !reason.empty()) return reason;
  if (p.batch_invariant) return "it doesn't have the bits of the kernels that take few queries";
  const KernelChoice c = cut(p, device);
  const auto [q, k, v] = split_tensors(p, c.config, nullptr);
  const std::int64_t q_tokens = q.extents.tokens, kv_tokens = k.extents.tokens;
  if (q_tokens == 0 || kv_tokens == 0 || p.batch == 0) return "it takes tensors that are not empty";
  if (p.paged_kv && p.batch * p.seq_len_kv > kMostOfPages * p.paged_kv->num_pages * p.paged_kv->page_size)
    return fmt::format(
        "{} sequences of up to {} keys, as they would be split, are more than {} times all pages", p.batch,
        p.seq_len_kv, kMostOfPages);
  if (std::max(q_tokens, kv_tokens) > kMost || num_split_blocks(p, c.config) > kMost)
    return fmt::format("it takes up to {} tokens, and tiles of those", kMost);
  return reason_against_tiles(p, device, c);
}

// Fitted to an H200's times of 17 to 256 queries (docs/kernels/hopper_f32.md), in us.
constexpr double kStartUs = 10;          // of both launches
constexpr double kUsOfTile = 5.4;        // 128 queries by 128 keys, head_dim 128
constexpr double kSplitBytesOfUs = 5e6;  // read and written
constexpr double kSm80StartUs = 26;
constexpr double kSm80FlopOfUs = 45e6;  // where there are few queries

double us_of_call(const AttentionProblem& p, const DeviceProperties& device, double share) {
  const KernelChoice c = cut(p, device);
  const double rounds =
      std::max(1.0, share * static_cast<double>(num_tiles(c, p.batch)) / device.num_multiprocessors);
  const double dims = std::max(padded_head_dim_qk(p), padded_head_dim_v(p)) / 128.0;
  const double keys = static_cast<double>(round_up(p.seq_len_kv, std::int64_t{c.config.block_n})) / 128;
  return kStartUs + rounds * keys * dims * kUsOfTile +
         2 * static_cast<double>(split_rows_bytes(p, c.config)) / kSplitBytesOfUs;
}

/// Of sm80/prefill_f32, which packs the heads of a group and splits keys.
double us_of_sm80_call(const AttentionProblem& p, double share) {
  constexpr std::int64_t kRowsOfTile = 64;
  const std::int64_t group = p.num_heads / p.num_kv_heads;
  const std::int64_t rows = round_up(p.seq_len_q * group, kRowsOfTile) * p.num_kv_heads * p.batch;
  const auto pairs = static_cast<double>(rows) * static_cast<double>(p.seq_len_kv);
  return kSm80StartUs + share * 2 * pairs * (p.head_dim_qk + p.head_dim_v) / kSm80FlopOfUs;
}

std::string reason_to_yield(const AttentionProblem& p, const DeviceProperties& device) {
  const double share = share_of_pairs(p);
  if (us_of_call(p, device, share) <= us_of_sm80_call(p, share)) return {};
  return "splitting q, k and v first takes longer than its products save, or so few queries leave most "
         "multiprocessors idle, and it doesn't split keys";
}

/// What split_rows.cu wrote of a tensor: boxes of `rows` rows of one panel.
MappedTensor mapped(const SplitTensor& t, int rows) {
  const auto& [outer, tokens, heads, head_dim] = t.extents;
  const std::int64_t head = tokens * t.row_elements;
  return {t.data,
          DType::kF16,
          {t.row_elements, tokens, heads, outer},
          {t.row_elements, head, heads * head},
          kernels::kPanelElements,
          rows};
}

KernelArguments arguments(const kernels::AttentionParams& params, const AttentionProblem& p,
                          const KernelChoice& choice, std::byte* workspace) {
  kernels::WgmmaArguments a = {};
  a.params = params;
  const auto [q, k, v] = split_tensors(p, choice.config, split_rows_of(choice, workspace));
  encode_map(a.q, mapped(q, choice.config.block_m));
  encode_map(a.k, mapped(k, choice.config.block_n));
  encode_map(a.v, mapped(v, choice.config.block_n));
  a.q_tiles = {q.tiles, q.tiles_of_head};
  a.k_tiles = {k.tiles, k.tiles_of_head};
  a.v_tiles = {v.tiles, v.tiles_of_head};
  set_workspace(a, choice, workspace);
  return KernelArguments(a);
}

std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  problems.push_back({usual_problem(DType::kF32, 64, 4096)});
  problems.push_back({usual_problem(DType::kF32, 128, 4096), true});  // a word, once a tile of keys
  return problems;
}

}  // namespace

extern const AttentionKernel kSm90PrefillF32;
const AttentionKernel kSm90PrefillF32 = {
    .name = "sm90/prefill_f32",
    .merit = "multiplies fp32 in parts with Hopper's own instructions",
    .has_whole_keys = always_whole_keys,
    .takes_modifiers = true,
    .classifies_tiles = true,
    .splits_rows = true,
    .reason_against = reason_against,
    .reason_to_yield = reason_to_yield,
    .choose = choose,
    .sequences_at_once = all_sequences_at_once,
    .shape = staying_shape,
    .arguments = arguments,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
