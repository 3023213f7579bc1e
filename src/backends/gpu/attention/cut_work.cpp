#include "backends/gpu/attention/cut_work.h"

#include <fmt/core.h>

#include <algorithm>

#include "attention/narrow.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/problem_params.h"
#include "core/rounding.h"
#include "tessera/error.h"

namespace tessera::gpu {

int term_flags(const ScoreTerms& s) {
  return (s.softcap ? kernels::kTermSoftcap : 0) | (s.alibi ? kernels::kTermAlibi : 0) |
         (s.additive_mask ? kernels::kTermAdditiveMask : 0) |
         (s.boolean_mask ? kernels::kTermBooleanMask : 0) |
         (s.softmax_scale && *s.softmax_scale <= 0 ? kernels::kTermScale : 0) |
         (s.modifier ? kernels::kTermModifier : 0);
}

int scoring_flags(const ScoreTerms& s) {
  const bool has_score = s.modifier && !s.modifier->score.empty();
  return term_flags(s) & ~(has_score ? 0 : kernels::kTermModifier);
}

int mask_dtype_flag(const ScoreTerms& s) { return s.additive_mask ? mask_dtype(s.additive_mask->dtype) : 0; }

std::vector<std::string> common_defines(const AttentionProblem& p, int terms, int head_dim_multiple) {
  return {fmt::format("TESSERA_DTYPE={}", dtype_suffix(wide_dtype(p))),
          define("HEAD_DIM_QK", padded_head_dim_qk(p, head_dim_multiple)),
          define("HEAD_DIM_V", padded_head_dim_v(p, head_dim_multiple)),
          define("TERMS", terms),
          define("MASK_DTYPE", mask_dtype_flag(p.scores)),
          define("PAGED", p.paged_kv ? 1 : 0),
          define("VECTOR", has_aligned_rows(p) ? 1 : 0)};
}

std::string define(std::string_view name, int value) { return fmt::format("TESSERA_{}={}", name, value); }

int row_alignment(const AttentionProblem& p) {
  const auto element_bytes = static_cast<int>(dtype_bytes(p.k.dtype, 1));
  if (!tensors_are_aligned(p)) return element_bytes;
  return piece_bytes(joined_row_bytes(p.q, p.head_dim_qk) | joined_row_bytes(p.k, p.head_dim_qk) |
                     joined_row_bytes(p.v, p.head_dim_v) | joined_row_bytes(p.o, p.head_dim_v));
}

int output_alignment(const AttentionProblem& p) {
  if (!tensors_are_aligned(p)) return static_cast<int>(dtype_bytes(p.o.dtype, 1));
  return piece_bytes(joined_row_bytes(p.o, p.head_dim_v));
}

bool has_aligned_rows(const AttentionProblem& p) { return row_alignment(p) == 16; }

void add_piece_define(const AttentionProblem& p, ModuleSpec& module) {
  if (!has_aligned_rows(p)) module.defines.push_back(define("PIECE_BYTES", row_alignment(p)));
}

std::int64_t packed_rows(const AttentionProblem& p) { return p.seq_len_q * (p.num_heads / p.num_kv_heads); }

std::int64_t key_bytes(const AttentionProblem& p) {
  return static_cast<std::int64_t>(
      dtype_bytes(p.k.dtype, static_cast<std::size_t>(p.head_dim_qk + p.head_dim_v)));
}

int padded_head_dim_qk(const AttentionProblem& p, int multiple) { return round_up(p.head_dim_qk, multiple); }
int padded_head_dim_v(const AttentionProblem& p, int multiple) { return round_up(p.head_dim_v, multiple); }

void reject_forced(const char* field, int value, std::string_view expected) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("config.{} is {}; expected {} on the GPU", field, value, expected));
}

void require_mergeable(const AttentionConfig& forced) {
  if (forced.num_splits > kMaxSplits)
    reject_forced("num_splits", forced.num_splits, fmt::format("at most {}", kMaxSplits));
}

void reject_large_tiles(std::size_t shared_bytes, const DeviceProperties& device) {
  if (shared_bytes <= device.shared_per_block_bytes) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the tiles need {} bytes of shared memory and a block has {}; expected a smaller "
                          "block_m or block_n",
                          shared_bytes, device.shared_per_block_bytes));
}

std::string reason_against_head_dims(const AttentionProblem& p) {
  constexpr int kMostTunedHeadDim = 256;
  const int head_dim = std::max(p.head_dim_qk, p.head_dim_v);
  if (head_dim <= kMostTunedHeadDim) return {};
  return fmt::format("it takes head_dims up to {}, not {}", kMostTunedHeadDim, head_dim);
}

int pack_short_prompts(const AttentionProblem& p, int block_m) {
  return p.seq_len_q < block_m ? p.num_heads / p.num_kv_heads : 1;
}

void cut_rows(const AttentionProblem& p, KernelChoice& c) {
  const std::int64_t rows = p.seq_len_q * c.pack_heads;
  c.num_row_tiles = divide_up(std::max<std::int64_t>(rows, 1), c.config.block_m);
  c.num_head_blocks = c.pack_heads == 1 ? p.num_heads : p.num_kv_heads;
}

std::int64_t keys_per_segment(std::int64_t key_tile) {
  return std::max(kernels::kKeysPerSegment / key_tile, std::int64_t{1}) * key_tile;
}

namespace {

/// Of workspace, for the results of as many splits or segments.
std::size_t partial_bytes(const AttentionProblem& p, std::int64_t partials) {
  return static_cast<std::size_t>(partials * p.batch * p.num_heads * p.seq_len_q) *
         static_cast<std::size_t>(p.head_dim_v + 1) * sizeof(float);
}

/// As many splits as fill a device that rows and heads would not.
std::int64_t splits_that_fill(const AttentionProblem& p, const DeviceProperties& device,
                              std::int64_t key_tile, const KernelChoice& c) {
  const std::int64_t key_tiles = divide_up(p.seq_len_kv, key_tile);
  const std::int64_t blocks = std::max<std::int64_t>(c.num_row_tiles * c.num_head_blocks * p.batch, 1);
  return std::min(device.num_multiprocessors / blocks, key_tiles / 4);
}

/// In us, what blocks take that read `bytes` each, by rounds of as many as fit: memory's rate is shared, and
/// few blocks don't reach it.
double us_of_blocks(std::int64_t blocks, double bytes, const DeviceProperties& device,
                    const BlockRates& rates) {
  const double all = rates.share * device.num_multiprocessors;
  const std::int64_t at_once = std::int64_t{2} * device.num_multiprocessors;
  const double fastest = blocks <= device.num_multiprocessors ? rates.alone : rates.of_two;
  const auto us_of_round = [&](std::int64_t count) {
    return bytes * std::max(static_cast<double>(count) / all, 1 / fastest);
  };
  const std::int64_t rest = blocks % at_once;
  return static_cast<double>(blocks / at_once) * us_of_round(at_once) + (rest > 0 ? us_of_round(rest) : 0);
}

/// Splits of a batch-invariant problem, whose bits don't depend on them: those that are over first by a model
/// in us (docs/kernels/cuda_attention.md). Each segment has partial results then, however many a split has.
std::int64_t splits_of_segments(const AttentionProblem& p, const DeviceProperties& device,
                                std::int64_t key_tile, const KernelChoice& c, const BlockRates& rates) {
  constexpr double kSplit = 1.06;           // of the model's time
  constexpr double kWorthMore = 0.98;       // splits, of the time with fewer
  constexpr double kJoin = 2;               // another kernel
  constexpr double kJoinedBytesOfUs = 3e6;  // partial results, written and read
  constexpr double kBytesOfFlop = 0.01;     // what memory brings meanwhile
  constexpr std::size_t kMostPartialBytes = std::size_t{128} << 20;
  const std::int64_t keys = keys_per_segment(key_tile);
  const std::int64_t segments = divide_up(p.seq_len_kv, keys);
  const std::size_t bytes = partial_bytes(p, segments);
  if (segments <= 1 || bytes > kMostPartialBytes) return 1;
  const std::int64_t blocks = std::max<std::int64_t>(c.num_row_tiles * c.num_head_blocks * p.batch, 1);
  const double flop_of_key = 2.0 * c.config.block_m * (p.head_dim_qk + p.head_dim_v);
  const double bytes_of_segment =
      static_cast<double>(keys) * std::max(static_cast<double>(key_bytes(p)), kBytesOfFlop * flop_of_key);
  std::int64_t best = 1;
  double least = us_of_blocks(blocks, static_cast<double>(segments) * bytes_of_segment, device, rates);
  for (std::int64_t splits = 2; splits <= std::min(segments, kMaxGridYz); ++splits) {
    const std::int64_t of_split = divide_up(segments, splits);
    if (divide_up(segments, of_split) != splits) continue;  // as many with fewer
    const double us = kSplit * us_of_blocks(blocks * splits, static_cast<double>(of_split) * bytes_of_segment,
                                            device, rates) +
                      kJoin + static_cast<double>(bytes) / kJoinedBytesOfUs;
    if (us >= kWorthMore * least) continue;
    least = us;
    best = splits;
  }
  return best;
}

/// cut_keys() of a batch-invariant problem: a split has whole segments.
void cut_segments(const AttentionProblem& p, const AttentionConfig& forced, std::int64_t key_tile,
                  std::int64_t wanted, KernelChoice& c) {
  c.keys_per_segment = keys_per_segment(key_tile);
  const std::int64_t segments = std::max<std::int64_t>(c.num_partials(p.seq_len_kv), 1);
  const std::int64_t splits = std::clamp<std::int64_t>(forced.num_splits > 0 ? forced.num_splits : wanted, 1,
                                                       std::min(segments, kMaxGridYz));
  const std::int64_t segments_of_split = divide_up(segments, splits);
  c.keys_per_split = segments_of_split * c.keys_per_segment;
  c.config.num_splits = static_cast<int>(divide_up(segments, segments_of_split));
  if (c.config.num_splits > 1) {
    c.combine_module = join_module();
    c.combine_entry = join_entry(p);
    c.partial_bytes = partial_bytes(p, segments);
  }
}

}  // namespace

std::int64_t wanted_splits(const AttentionProblem& p, const DeviceProperties& device, std::int64_t key_tile,
                           const KernelChoice& c, const BlockRates& rates) {
  return p.batch_invariant ? splits_of_segments(p, device, key_tile, c, rates)
                           : splits_that_fill(p, device, key_tile, c);
}

void cut_keys(const AttentionProblem& p, const AttentionConfig& forced, std::int64_t key_tile,
              std::int64_t wanted, KernelChoice& c) {
  if (p.batch_invariant) return cut_segments(p, forced, key_tile, wanted, c);
  require_mergeable(forced);
  const std::int64_t key_tiles = std::max<std::int64_t>(divide_up(p.seq_len_kv, key_tile), 1);
  const std::int64_t splits =
      forced.num_splits > 0 ? forced.num_splits : std::clamp<std::int64_t>(wanted, 1, kMaxSplits);
  c.keys_per_split = divide_up(key_tiles, std::min(splits, key_tiles)) * key_tile;
  c.config.num_splits =
      static_cast<int>(std::max<std::int64_t>(divide_up(p.seq_len_kv, c.keys_per_split), 1));
  if (c.config.num_splits > 1) {
    c.combine_module = combine_module();
    c.combine_entry = combine_entry(p, c.config.num_splits);
    c.partial_bytes = partial_bytes(p, c.config.num_splits);
  }
}

std::vector<AttentionConfig> splits_around(std::int64_t modelled, std::int64_t key_tiles) {
  const std::int64_t most = std::min<std::int64_t>(kMaxSplits, key_tiles);
  std::vector<AttentionConfig> configs;
  for (const std::int64_t splits : {std::int64_t{1}, modelled / 2, modelled * 3 / 4, modelled, modelled + 1,
                                    modelled * 3 / 2, modelled * 2, modelled * 4}) {
    if (splits < 1 || splits > most) continue;
    const AttentionConfig config = {.num_splits = static_cast<int>(splits)};
    if (std::ranges::find(configs, config) == configs.end()) configs.push_back(config);
  }
  return configs;
}

namespace {

/// As many of `batch` sequences as may be together, or fewer that leave less of the last group empty.
std::int64_t sequences_at_once(std::int64_t batch, std::int64_t most) {
  most = std::min(most, std::max<std::int64_t>(batch, 1));
  const auto missing = [&](std::int64_t sequences) { return round_up(batch, sequences) - batch; };
  std::int64_t best = most;
  for (std::int64_t sequences = most - 1; 2 * sequences > most; --sequences) {
    if (missing(sequences) < missing(best)) best = sequences;
  }
  return best;
}

}  // namespace

// Under a causal mask the blocks of a head's last rows take longest. Heads take turns, so that short blocks
// are left for the end, and as many do as have their keys and values in the cache together: more read them
// from memory again and again. Measured in docs/kernels/cuda_attention.md.
int choose_heads_at_once(const AttentionProblem& p, const DeviceProperties& device, const KernelChoice& c) {
  constexpr double kShareOfCache = 0.6;
  constexpr std::int64_t kMostBlocks = 1 << 20;
  if (c.config.num_splits > 1) return 1;
  const bool may_be_causal = p.scores.modifier && !p.scores.modifier->visible.empty();
  if (!may_be_causal && !(p.scores.diagonal && p.scores.diagonal->window_right)) return 1;
  const int sharing = c.pack_heads == 1 ? p.num_heads / p.num_kv_heads : 1;  // heads with the same keys
  const auto row_bytes = static_cast<double>(key_bytes(p));
  const double head_bytes = row_bytes * (static_cast<double>(p.seq_len_kv) / sharing +
                                         c.config.block_m);  // queries and results too
  const double fitting = kShareOfCache * static_cast<double>(device.l2_bytes) / head_bytes;
  const std::int64_t most = std::min<std::int64_t>(static_cast<std::int64_t>(std::min(fitting, 1e6)),
                                                   kMostBlocks / c.num_row_tiles);
  if (most >= c.num_head_blocks)
    return static_cast<int>(sequences_at_once(p.batch, most / c.num_head_blocks) * c.num_head_blocks);
  auto heads = static_cast<int>(std::max<std::int64_t>(most, 1));
  while (c.num_head_blocks % heads != 0) --heads;
  return heads;
}

void cut_for_tiles(const AttentionProblem& p, const DeviceProperties& device, const AttentionConfig& forced,
                   KernelChoice& c) {
  cut_rows(p, c);
  cut_keys(p, forced, c.config.block_n, wanted_splits(p, device, c.config.block_n, c), c);
  c.heads_at_once = choose_heads_at_once(p, device, c);
}

}  // namespace tessera::gpu
