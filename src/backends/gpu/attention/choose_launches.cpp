#include "backends/gpu/attention/choose_launches.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/rounding.h"

namespace tessera::gpu {
namespace {

constexpr std::int64_t kMostFewQueries = 16;
constexpr std::int64_t kMostPackedRows = 64;    // that decode kernels take
constexpr std::int64_t kMostFewRows = 1 << 16;  // of all heads, whose partial results lie in the workspace
constexpr std::int64_t kTileKeys = 128;         // of a prompt's tiles
constexpr std::int64_t kTilesWorthALaunch = 6;  // saved on each multiprocessor; one takes about 2 us

/// Keys that a query reads, about.
std::int64_t keys_of_query(const AttentionProblem& p) {
  std::int64_t keys = p.ragged_kv ? p.ragged_kv->total_tokens / p.batch : p.seq_len_kv;
  if (p.scores.diagonal && p.scores.diagonal->window_left)
    keys = std::min(keys, *p.scores.diagonal->window_left + 1);
  return keys;
}

/// Sequences that may have one query each, if as many as possible are as long as the longest.
std::int64_t single_queries(const AttentionProblem& p) {
  const std::int64_t more = std::max<std::int64_t>(p.ragged_q->total_tokens - p.batch, 0);
  return p.batch - std::max<std::int64_t>(divide_up(more, p.seq_len_q - 1), 1);
}

}  // namespace

AttentionProblem problem_of_launch(AttentionProblem problem, std::int64_t seq_len_q) {
  problem.seq_len_q = seq_len_q;
  return problem;
}

std::int64_t most_few_queries(const AttentionProblem& p, const DeviceProperties& device) {
  if (!p.ragged_q || p.batch < 2) return 0;
  // Sequences that attend to themselves: few queries have few keys.
  if (p.ragged_kv && p.ragged_kv->total_tokens == p.ragged_q->total_tokens) return 0;
  const std::int64_t group = p.num_heads / p.num_kv_heads;
  const std::int64_t most = std::min({kMostFewQueries, std::max<std::int64_t>(kMostPackedRows / group, 1),
                                      kMostFewRows / (p.batch * p.num_heads)});
  if (most < 1 || p.seq_len_q <= most) return 0;
  // A prompt's tile with one query of one head takes as long as a tile of decode's, which has all heads of a
  // group.
  const std::int64_t saved_heads = p.num_heads - p.num_kv_heads;
  const std::int64_t tiles = single_queries(p) * saved_heads * divide_up(keys_of_query(p), kTileKeys);
  return tiles >= kTilesWorthALaunch * device.num_multiprocessors ? most : 0;
}

std::vector<LaunchChoice> choose_launches(AttentionKernels kernels, const AttentionProblem& p,
                                          const DeviceProperties& device, const AttentionConfig& forced,
                                          const AttentionTunings& tunings) {
  std::vector<LaunchChoice> launches = {{p.seq_len_q, choose_kernel(kernels, p, device, forced, tunings)}};
  if (forced != AttentionConfig{}) return launches;
  KernelChoice& prompts = launches.front().choice;
  if (prompts.kernel->tiles_suit_few_rows && prompts.pack_heads > 1) return launches;
  const std::int64_t most_of_all = most_few_queries(p, device);
  const auto choose_few = [&](std::int64_t queries) -> LaunchChoice {
    return {queries, choose_kernel(kernels, problem_of_launch(p, queries), device, forced, tunings)};
  };
  // Where no decode kernel takes as many rows or fewer, tiles that have all heads of a group save as much.
  std::int64_t most = most_of_all;
  LaunchChoice few;
  for (; most > 0; most /= 2) {
    few = choose_few(most);
    if (few.choice.kernel->is_decode) break;
  }
  if (most == 0 && most_of_all > 0) few = choose_few(most = most_of_all);
  if (most == 0 || (!few.choice.kernel->is_decode && few.choice.pack_heads <= prompts.pack_heads))
    return launches;
  prompts.fewest_queries = static_cast<int>(most + 1);
  // Most sequences have no tiles there: those of one that has are found sooner where they stand together.
  prompts.heads_at_once = std::min(prompts.heads_at_once, static_cast<int>(prompts.num_head_blocks));
  few.choice.most_queries = static_cast<int>(most);
  launches.push_back(std::move(few));
  return launches;
}

std::string kernel_names(const std::vector<LaunchChoice>& launches) {
  std::string names;
  for (const LaunchChoice& launch : launches)
    names += fmt::format("{}{}", names.empty() ? "" : " + ", launch.choice.kernel->name);
  return names;
}

}  // namespace tessera::gpu
