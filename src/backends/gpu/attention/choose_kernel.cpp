#include "backends/gpu/attention/choose_kernel.h"

#include <fmt/core.h>

#include "backends/gpu/attention/align_rows.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/modifier_module.h"
#include "backends/gpu/attention/split_rows.h"
#include "backends/gpu/attention/tuned_kernel.h"
#include "backends/gpu/attention/widen_queries.h"
#include "core/rounding.h"
#include "tessera/error.h"

namespace tessera::gpu {
namespace {

bool lacks_splits(const AttentionKernel& kernel, const AttentionProblem& p, const AttentionConfig& forced) {
  return forced.num_splits > 1 && kernel.has_whole_keys != nullptr &&
         kernel.has_whole_keys(problem_of_kernel(kernel, p));
}

/// Empty unless splits are forced of a kernel that has none.
std::string reason_against_splits(const AttentionKernel& kernel, const AttentionProblem& p,
                                  const AttentionConfig& forced) {
  if (!lacks_splits(kernel, p, forced)) return {};
  return fmt::format("it splits no keys, and config.num_splits is {}", forced.num_splits);
}

}  // namespace

std::string reason_against_kernel(const AttentionKernel& kernel, const AttentionProblem& p,
                                  const DeviceProperties& device) {
  if (has_narrow_kv(p) && !kernel.takes_narrow_kv) {
    return fmt::format("it takes keys and values of o's dtype, {}, not {}", dtype_name(wide_dtype(p)),
                       dtype_name(p.k.dtype));
  }
  if (p.scores.modifier && !kernel.takes_modifiers) return "it has no place for scores.modifier";
  return kernel.reason_against(problem_of_kernel(kernel, p), device);
}

KernelChoice choose_with(const AttentionKernel& kernel, const AttentionProblem& given,
                         const DeviceProperties& device, const AttentionConfig& forced) {
  if (lacks_splits(kernel, given, forced))
    reject_forced("num_splits", forced.num_splits, fmt::format("1 for {}", kernel.name));
  const AttentionProblem p = problem_of_kernel(kernel, given);
  KernelChoice choice = kernel.choose(p, device, forced);
  choice.kernel = &kernel;
  if (combines_with_modifier(choice)) add_modifier(p, choice.combine_module);
  add_modifier(p, choice.module);
  if (kernel.classifies_tiles) choice.modifier_block_bytes = modifier_block_bytes(p);
  if (choice.modifier_block_bytes > 0)
    choice.partial_bytes = round_up(choice.partial_bytes, std::size_t{64}) + choice.modifier_block_bytes;
  if (widens_queries(kernel, given)) {
    choice.wide_queries_begin = round_up(choice.partial_bytes, std::size_t{256});
    choice.wide_queries_bytes = wide_queries_bytes(given);
  }
  if (kernel.tensors_to_align != nullptr) choice.aligned_tensors = kernel.tensors_to_align(p);
  if (choice.aligned_tensors != 0) {
    choice.aligned_rows_begin = round_up(choice.workspace_bytes(), std::size_t{256});
    choice.aligned_rows_bytes = aligned_rows_bytes(p, choice.aligned_tensors);
  }
  if (kernel.splits_rows) {
    choice.split_rows_begin = round_up(choice.workspace_bytes(), std::size_t{256});
    choice.split_rows_bytes = split_rows_bytes(p, choice.config);
  }
  choice.num_multiprocessors = device.num_multiprocessors;
  return choice;
}

std::string reason_to_yield(const AttentionKernel& kernel, const AttentionProblem& p,
                            const DeviceProperties& device) {
  if (kernel.reason_to_yield == nullptr) return {};
  return kernel.reason_to_yield(problem_of_kernel(kernel, p), device);
}

KernelChoice choose_kernel(AttentionKernels kernels, const AttentionProblem& p,
                           const DeviceProperties& device, const AttentionConfig& forced,
                           const AttentionTunings& tunings) {
  if (TunedKernel tuned = tuned_kernel(kernels, p, device, forced, tunings); tuned.choice)
    return *std::move(tuned.choice);
  std::string reasons;
  for (const AttentionKernel* kernel : kernels) {
    std::string reason = reason_against_kernel(*kernel, p, device);
    if (reason.empty()) reason = reason_against_splits(*kernel, p, forced);
    if (reason.empty()) reason = reason_to_yield(*kernel, p, device);
    if (reason.empty()) return choose_with(*kernel, p, device, forced);
    reasons += fmt::format("\n  {}: {}", kernel->name, reason);
  }
  throw Error(ErrorCode::kUnsupported, fmt::format("no kernel takes {}:{}", to_string(p), reasons));
}

std::vector<std::string> reasons_against_other_kernels(AttentionKernels kernels, const AttentionProblem& p,
                                                       const DeviceProperties& device,
                                                       const AttentionConfig& forced,
                                                       const KernelChoice& choice, bool is_tuned) {
  std::vector<std::string> lines;
  for (const AttentionKernel* kernel : kernels) {
    if (kernel == choice.kernel) continue;
    std::string reason = reason_against_kernel(*kernel, p, device);
    if (reason.empty()) reason = reason_against_splits(*kernel, p, forced);
    if (reason.empty() && is_tuned)
      reason = fmt::format("it could, but {} was measured to be quicker", choice.kernel->name);
    if (reason.empty()) reason = reason_to_yield(*kernel, p, device);
    if (reason.empty())
      reason =
          fmt::format("it could, but {} is preferred, which {}", choice.kernel->name, choice.kernel->merit);
    lines.push_back(fmt::format("not {}: {}", kernel->name, reason));
  }
  return lines;
}

std::vector<ModuleSpec> modules_of(const KernelChoice& choice) {
  std::vector<ModuleSpec> modules = {choice.module};
  if (!choice.combine_entry.empty() && choice.combine_module != choice.module)
    modules.push_back(choice.combine_module);
  if (choice.wide_queries_bytes > 0) modules.push_back(widen_queries_module());
  if (choice.aligned_rows_bytes > 0) modules.push_back(align_rows_module());
  if (choice.split_rows_bytes > 0) modules.push_back(split_rows_module());
  if (choice.modifier_block_bytes > 0) modules.push_back(modifier_blocks_module());
  return modules;
}

}  // namespace tessera::gpu
