#include "backends/gpu/attention/cut_work.h"

#include <fmt/core.h>

#include <algorithm>

#include "attention/narrow.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/problem_params.h"
#include "core/rounding.h"
#include "tessera/error.h"

namespace tessera::gpu {
namespace {

/// The power of two, 16 at most, that divides the bytes of a row and all distances of rows.
template <class Tensor>
int alignment_of_rows(const Tensor& t, int head_dim) {
  const auto elements = static_cast<std::uint64_t>(t.batch_stride | t.seq_stride | t.head_stride | head_dim);
  const std::uint64_t bytes = (elements * dtype_bytes(t.dtype, 1)) | 16;
  return static_cast<int>(bytes & -bytes);
}

}  // namespace

int term_flags(const ScoreTerms& s) {
  return (s.softcap ? kernels::kTermSoftcap : 0) | (s.alibi ? kernels::kTermAlibi : 0) |
         (s.additive_mask ? kernels::kTermAdditiveMask : 0) |
         (s.boolean_mask ? kernels::kTermBooleanMask : 0) |
         (s.softmax_scale && *s.softmax_scale <= 0 ? kernels::kTermScale : 0) |
         (s.modifier ? kernels::kTermModifier : 0);
}

int mask_dtype_flag(const ScoreTerms& s) { return s.additive_mask ? mask_dtype(s.additive_mask->dtype) : 0; }

std::vector<std::string> common_defines(const AttentionProblem& p, int head_dim_multiple) {
  return {fmt::format("TESSERA_DTYPE={}", dtype_suffix(wide_dtype(p))),
          define("HEAD_DIM_QK", padded_head_dim_qk(p, head_dim_multiple)),
          define("HEAD_DIM_V", padded_head_dim_v(p, head_dim_multiple)),
          define("TERMS", term_flags(p.scores)),
          define("MASK_DTYPE", mask_dtype_flag(p.scores)),
          define("PAGED", p.paged_kv ? 1 : 0),
          define("VECTOR", has_aligned_rows(p) ? 1 : 0)};
}

std::string define(std::string_view name, int value) { return fmt::format("TESSERA_{}={}", name, value); }

int row_alignment(const AttentionProblem& p) {
  const auto element_bytes = static_cast<int>(dtype_bytes(p.k.dtype, 1));
  if (!tensors_are_aligned(p)) return element_bytes;
  return std::min({alignment_of_rows(p.q, p.head_dim_qk), alignment_of_rows(p.k, p.head_dim_qk),
                   alignment_of_rows(p.v, p.head_dim_v), alignment_of_rows(p.o, p.head_dim_v)});
}

bool has_aligned_rows(const AttentionProblem& p) { return row_alignment(p) == 16; }

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

std::int64_t splits_that_fill(const AttentionProblem& p, const DeviceProperties& device,
                              std::int64_t key_tile, const KernelChoice& c) {
  const std::int64_t key_tiles = divide_up(p.seq_len_kv, key_tile);
  const std::int64_t blocks = std::max<std::int64_t>(c.num_row_tiles * c.num_head_blocks * p.batch, 1);
  return std::min(device.num_multiprocessors / blocks, key_tiles / 4);
}

void cut_keys(const AttentionProblem& p, const AttentionConfig& forced, std::int64_t key_tile,
              std::int64_t wanted, KernelChoice& c) {
  if (p.batch_invariant && forced.num_splits > 1)
    reject_forced("num_splits", forced.num_splits, "1 with batch_invariant");
  if (forced.num_splits > kMaxSplits) reject_forced("num_splits", forced.num_splits, "at most 128");
  const std::int64_t key_tiles = std::max<std::int64_t>(divide_up(p.seq_len_kv, key_tile), 1);
  const std::int64_t splits = p.batch_invariant       ? 1
                              : forced.num_splits > 0 ? forced.num_splits
                                                      : std::clamp<std::int64_t>(wanted, 1, kMaxSplits);
  c.keys_per_split = divide_up(key_tiles, std::min(splits, key_tiles)) * key_tile;
  c.config.num_splits =
      static_cast<int>(std::max<std::int64_t>(divide_up(p.seq_len_kv, c.keys_per_split), 1));
  if (c.config.num_splits > 1) {
    c.combine_module = combine_module();
    c.combine_entry = combine_entry(wide_dtype(p));
    c.partial_bytes = static_cast<std::size_t>(c.config.num_splits * p.batch * p.num_heads * p.seq_len_q) *
                      static_cast<std::size_t>(p.head_dim_v + 1) * sizeof(float);
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
    return static_cast<int>(std::min(most / c.num_head_blocks, std::max<std::int64_t>(p.batch, 1)) *
                            c.num_head_blocks);
  auto heads = static_cast<int>(std::max<std::int64_t>(most, 1));
  while (c.num_head_blocks % heads != 0) --heads;
  return heads;
}

void cut_for_tiles(const AttentionProblem& p, const DeviceProperties& device, const AttentionConfig& forced,
                   KernelChoice& c) {
  cut_rows(p, c);
  cut_keys(p, forced, c.config.block_n, splits_that_fill(p, device, c.config.block_n, c), c);
  c.heads_at_once = choose_heads_at_once(p, device, c);
}

}  // namespace tessera::gpu
