#include "backends/gpu/attention/prepared_launch.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "backends/gpu/attention/align_rows.h"
#include "backends/gpu/attention/choose_kernel.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/modifier_module.h"
#include "backends/gpu/attention/problem_params.h"
#include "backends/gpu/attention/split_rows.h"
#include "backends/gpu/attention/stage_tensors.h"
#include "backends/gpu/attention/widen_queries.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "core/rounding.h"
#include "tessera/error.h"

namespace tessera::gpu {

namespace {

constexpr std::size_t kWorkspaceAlignment = 256;

/// As the kernel sees them: a q that is widened is aligned.
bool are_aligned(const AttentionProblem& p, const KernelChoice& choice) {
  if (choice.wide_queries_bytes == 0) return tensors_are_aligned(p);
  return tensors_are_aligned(with_wide_queries(p, nullptr));
}

}  // namespace

PreparedLaunch::PreparedLaunch(const AttentionProblem& problem, KernelChoice choice, Gpu& device)
    : choice_(std::move(choice)),
      device_(device),
      is_aligned_(are_aligned(problem, choice_)),
      widen_queries_entry_(widen_queries_entry(problem)),
      split_rows_entry_(choice_.split_rows_bytes > 0 ? split_rows_entry(problem, choice_.config) : "") {}

void PreparedLaunch::load() const {
  std::call_once(loaded_, [this] {
    KernelLibrary& library = device_.kernels();
    if (!choice_.combine_entry.empty())
      combine_ = &library.find(choice_.combine_module, choice_.combine_entry);
    if (choice_.wide_queries_bytes > 0) widen_ = &library.find(widen_queries_module(), widen_queries_entry_);
    if (choice_.aligned_rows_bytes > 0) align_ = &library.find(align_rows_module(), kAlignRowsEntry);
    if (choice_.split_rows_bytes > 0) split_ = &library.find(split_rows_module(), split_rows_entry_);
    if (choice_.modifier_block_bytes > 0)
      blocks_ = &library.find(modifier_blocks_module(), "modifier_blocks");
    kernel_ = &library.find(choice_.module, choice_.entry, choice_.shared_bytes);
  });
}

void PreparedLaunch::check_alignment(const AttentionProblem& p) const {
  if (!is_aligned_ || are_aligned(p, choice_)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("q, k, v and o are at {}, {}, {} and {}; expected multiples of {} bytes, as those that "
                  "the plan was made with, or a plan of their own",
                  p.q.data, p.k.data, p.v.data, static_cast<const void*>(p.o.data), kTensorAlignment));
}

void PreparedLaunch::launch(const AttentionProblem& p, std::byte* workspace, Stream stream) const {
  load();
  try {
    if (widen_ != nullptr) {
      launch_kernels(widen(p, workspace, stream), workspace, stream);
    } else if (align_ != nullptr) {
      launch_kernels(align(p, workspace, stream), workspace, stream);
    } else {
      launch_kernels(p, workspace, stream);
    }
  } catch (const Error& error) {
    // Describing the problem takes longer than launching it: only an error is worth that.
    throw Error(error.code(), fmt::format("{} of {}", error.message(), to_string(p)));
  }
}

AttentionProblem PreparedLaunch::widen(const AttentionProblem& p, std::byte* workspace, Stream stream) const {
  std::byte* const wide = wide_queries_of(choice_, workspace);
  const WidenQueriesLaunch launch = widen_queries_launch(p, wide);
  launch_kernel(device_, *widen_, launch.shape, stream, "attention", launch.params);
  return with_wide_queries(p, wide);
}

AttentionProblem PreparedLaunch::align(const AttentionProblem& p, std::byte* workspace, Stream stream) const {
  std::byte* const copies = aligned_rows_of(choice_, workspace);
  const AlignRowsLaunch launch = align_rows_launch(p, choice_.aligned_tensors, copies);
  launch_kernel(device_, *align_, launch.shape, stream, "attention", launch.params);
  return with_aligned_rows(p, choice_.aligned_tensors, copies);
}

void PreparedLaunch::launch_kernels(const AttentionProblem& p, std::byte* workspace, Stream stream) const {
  const AttentionKernel& attention = *choice_.kernel;
  const auto warp_size = static_cast<unsigned>(device_.properties().warp_size);
  kernels::AttentionParams params = attention_params(p, choice_, workspace);
  const std::int64_t at_once = attention.sequences_at_once(choice_);
  if (split_ != nullptr) {
    const SplitRowsLaunch split = split_rows_launch(params, p, choice_, split_rows_of(choice_, workspace));
    launch_kernel(device_, *split_, split.shape, stream, "attention", split.params);
  }
  if (blocks_ != nullptr) {
    const ModifierBlocksLaunch blocks =
        modifier_blocks_launch(p, modifier_blocks_of(choice_, workspace), device_.properties().warp_size);
    launch_kernel(device_, *blocks_, blocks.shape, stream, "attention", blocks.params);
  }
  for (std::int64_t begin = 0; begin < p.batch; begin += at_once) {
    const std::int64_t sequences = std::min(at_once, p.batch - begin);
    params.batch_begin = static_cast<int>(begin);
    KernelArguments arguments = kernel_arguments(params, p, choice_, workspace);
    if (choice_.zeroed_bytes > 0) device_.fill(workspace, 0, choice_.zeroed_bytes, stream);
    void* const pointer = arguments.data();
    device_.launch(*kernel_, attention.shape(choice_, sequences, warp_size), {&pointer, 1}, stream,
                   "attention");
    if (combine_ == nullptr) continue;
    CombineLaunch combine = combine_launch(params, p, choice_, workspace, sequences, warp_size);
    void* const combine_pointer = combine.arguments.data();
    device_.launch(*combine_, combine.shape, {&combine_pointer, 1}, stream, "attention");
  }
}

PreparedLaunches::PreparedLaunches(const AttentionProblem& p, const std::vector<LaunchChoice>& choices,
                                   Gpu& device)
    : device_(device) {
  for (const LaunchChoice& c : choices) {
    parts_.push_back({c.seq_len_q, workspace_bytes_,
                      std::make_unique<PreparedLaunch>(problem_of_launch(p, c.seq_len_q), c.choice, device)});
    workspace_bytes_ = round_up(workspace_bytes_ + c.choice.workspace_bytes(), kWorkspaceAlignment);
    const std::vector<ModuleSpec> modules = modules_of(c.choice);
    modules_.insert(modules_.end(), modules.begin(), modules.end());
  }
}

void PreparedLaunches::load_modules() const {
  if (modules_.size() < 2) return;
  std::call_once(modules_loaded_, [this] { device_.kernels().prepare(modules_); });
}

void PreparedLaunches::load() const {
  load_modules();
  for (const Part& part : parts_) part.launch->load();
}

void PreparedLaunches::run(const AttentionProblem& p, std::span<std::byte> workspace, Stream stream) const {
  const std::int64_t tokens_q = p.ragged_q ? p.ragged_q->total_tokens : p.seq_len_q;
  if (p.batch == 0 || p.seq_len_q == 0 || tokens_q == 0) return;
  for (const Part& part : parts_) part.launch->check_alignment(p);
  if (p.device.kind == DeviceKind::kCpu) {
    run_staged(p, device_, workspace, stream,
               [&](const AttentionProblem& staged) { launch(staged, workspace.data(), stream); });
  } else {
    launch(p, workspace.data(), stream);
  }
}

void PreparedLaunches::launch(const AttentionProblem& p, std::byte* workspace, Stream stream) const {
  load_modules();
  if (parts_.size() == 1) return parts_.front().launch->launch(p, workspace, stream);
  for (const Part& part : parts_) {
    part.launch->launch(problem_of_launch(p, part.seq_len_q), workspace + part.workspace_begin, stream);
  }
}

}  // namespace tessera::gpu
