#include "backends/gpu/attention/launch_arguments.h"

#include <fmt/core.h>

#include <algorithm>

#include "attention/narrow.h"
#include "backends/gpu/attention/modifier_module.h"
#include "backends/gpu/attention/problem_params.h"
#include "core/rounding.h"

namespace tessera::gpu {
namespace {

/// Of a block of attention_combine.cu, for a row: few splits want many rows at once, many splits a thread for
/// each few, unless so many large blocks would have to take turns.
unsigned combine_threads(const KernelChoice& choice, std::int64_t rows) {
  constexpr int kManySplits = 8;
  constexpr std::int64_t kLargeBlocksAtOnce = 4;  // of a multiprocessor
  const bool is_large =
      choice.config.num_splits > kManySplits && rows <= kLargeBlocksAtOnce * choice.num_multiprocessors;
  return is_large ? kernels::kMostCombineThreads : 128;
}

/// Whether a warp merges a row's few splits, which suits many rows.
bool combines_by_warps(const AttentionProblem& p, int num_splits) {
  constexpr std::int64_t kManyRows = 1024;
  return num_splits <= kernels::kMostRowsSplits && p.batch * p.num_heads * p.seq_len_q >= kManyRows;
}

/// A warp a row; few rows on multiprocessors of their own.
LaunchShape join_shape(const AttentionProblem& p, const KernelChoice& choice, std::int64_t sequences,
                       unsigned warp_size) {
  constexpr std::int64_t kWarpsOfMultiprocessor = 4;
  const std::int64_t rows = p.seq_len_q * p.num_heads;
  const bool are_few = rows * sequences <= kWarpsOfMultiprocessor * choice.num_multiprocessors;
  const unsigned threads = are_few ? warp_size : kernels::kJoinThreads;
  return {{static_cast<unsigned>(divide_up(rows, std::int64_t{threads / warp_size})), 1,
           static_cast<unsigned>(sequences)},
          {threads, 1, 1},
          0,
          true};
}

}  // namespace

kernels::AttentionParams attention_params(const AttentionProblem& p, const KernelChoice& choice,
                                          std::byte* partials) {
  kernels::AttentionParams a = problem_params(p);
  a.fewest_q = choice.fewest_queries;
  a.most_q = choice.most_queries;
  a.pack_heads = choice.pack_heads;
  a.heads_at_once = choice.heads_at_once;
  a.num_splits = choice.config.num_splits;
  a.keys_per_split = static_cast<int>(std::min<std::int64_t>(choice.keys_per_split, 1 << 30));
  a.keys_per_segment = static_cast<int>(choice.keys_per_segment);
  if (choice.config.num_splits > 1 && choice.partial_bytes > 0) {
    a.o_partial = reinterpret_cast<float*>(partials);
    const std::int64_t rows = p.batch * p.num_heads * p.seq_len_q;
    a.lse_partial = a.o_partial + choice.num_partials(p.seq_len_kv) * rows * p.head_dim_v;
  }
  return a;
}

KernelArguments kernel_arguments(const kernels::AttentionParams& params, const AttentionProblem& problem,
                                 const KernelChoice& choice, std::byte* workspace) {
  const auto arguments_of = choice.kernel->arguments;
  KernelArguments arguments =
      arguments_of != nullptr ? arguments_of(params, problem, choice, workspace) : KernelArguments(params);
  add_modifier_arguments(problem, arguments, modifier_blocks_of(choice, workspace));
  return arguments;
}

kernels::MergeStatesParams merge_states_arguments(const MergeStatesProblem& p) {
  kernels::MergeStatesParams a = {};
  a.o_a = tensor_argument(p.o_a);
  a.o_b = tensor_argument(p.o_b);
  a.o = tensor_argument(p.o);
  a.lse_a = lse_argument(p.lse_a);
  a.lse_b = lse_argument(p.lse_b);
  if (p.lse) a.lse = lse_argument(*p.lse);
  a.head_dim = p.head_dim;
  return a;
}

LaunchShape tiled_shape(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size) {
  LaunchShape shape;
  shape.grid = {static_cast<unsigned>(choice.num_row_tiles * choice.heads_at_once),
                static_cast<unsigned>(divide_up(choice.num_head_blocks * sequences, choice.heads_at_once)),
                static_cast<unsigned>(choice.config.num_splits)};
  shape.block = {static_cast<unsigned>(choice.config.num_warps) * warp_size, 1, 1};
  shape.shared_bytes = choice.shared_bytes;
  return shape;
}

std::int64_t tiled_sequences_at_once(const KernelChoice& choice) {
  // Whole groups of heads: one that spans sequences never spans launches.
  const std::int64_t sequences_of_group =
      std::max<std::int64_t>(choice.heads_at_once / choice.num_head_blocks, 1);
  return kMaxGridYz / divide_up(choice.num_head_blocks, choice.heads_at_once) * sequences_of_group;
}

LaunchShape row_shape(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size) {
  LaunchShape shape;
  shape.grid = {static_cast<unsigned>(choice.num_row_tiles), static_cast<unsigned>(choice.num_head_blocks),
                static_cast<unsigned>(sequences * choice.config.num_splits)};
  shape.block = {static_cast<unsigned>(choice.config.num_warps) * warp_size, 1, 1};
  shape.shared_bytes = choice.shared_bytes;
  return shape;
}

LaunchShape early_row_shape(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size) {
  LaunchShape shape = row_shape(choice, sequences, warp_size);
  shape.overlaps_prior = true;
  return shape;
}

std::int64_t row_sequences_at_once(const KernelChoice& choice) {
  return kMaxGridYz / choice.config.num_splits;
}

ModuleSpec combine_module() { return {"common/attention_combine.cu", {}}; }

std::string combine_entry(const AttentionProblem& p, int num_splits) {
  return fmt::format("attention_combine_{}{}", combines_by_warps(p, num_splits) ? "rows_" : "",
                     dtype_suffix(wide_dtype(p)));
}

ModuleSpec join_module() { return {"common/attention_join.cu", {}}; }

std::string join_entry(const AttentionProblem& p) { return "attention_join_" + types_suffix(p); }

bool combines_with_modifier(const KernelChoice& choice) {
  return choice.combine_module.source == choice.module.source ||
         choice.combine_module.source == join_module().source;
}

LaunchShape combine_shape(const AttentionProblem& p, const KernelChoice& choice, std::int64_t sequences,
                          unsigned warp_size) {
  if (choice.keys_per_segment > 0) return join_shape(p, choice, sequences, warp_size);
  if (combines_by_warps(p, choice.config.num_splits)) {
    const std::int64_t rows_of_block = kernels::kCombineRowsThreads / warp_size;
    return {{static_cast<unsigned>(divide_up(p.seq_len_q * p.num_heads, rows_of_block)), 1,
             static_cast<unsigned>(sequences)},
            {kernels::kCombineRowsThreads, 1, 1},
            0,
            true};
  }
  return {{static_cast<unsigned>(p.seq_len_q), static_cast<unsigned>(p.num_heads),
           static_cast<unsigned>(sequences)},
          {combine_threads(choice, p.seq_len_q * p.num_heads * sequences), 1, 1},
          0,
          true};
}

CombineLaunch combine_launch(const kernels::AttentionParams& params, const AttentionProblem& problem,
                             const KernelChoice& choice, std::byte* workspace, std::int64_t sequences,
                             unsigned warp_size) {
  const auto combine = choice.kernel->combine;
  CombineLaunch launch =
      combine != nullptr
          ? combine(params, problem, choice, workspace, sequences)
          : CombineLaunch{combine_shape(problem, choice, sequences, warp_size), KernelArguments(params)};
  if (combines_with_modifier(choice)) add_modifier_arguments(problem, launch.arguments);
  return launch;
}

LaunchShape merge_states_shape(const MergeStatesProblem& p) {
  return {{static_cast<unsigned>(p.seq_len_q), static_cast<unsigned>(p.num_heads),
           static_cast<unsigned>(p.batch)},
          {kernels::kMergeThreads, 1, 1},
          0};
}

}  // namespace tessera::gpu
