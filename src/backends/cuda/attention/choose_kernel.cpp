#include "backends/cuda/attention/choose_kernel.h"

#include <fmt/core.h>

#include <algorithm>

#include "backends/cuda/attention/launch_arguments.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

constexpr std::int64_t kMaxSeqLen = std::int64_t{1} << 29;  // kernels count tokens and packed rows in 32 bits

}  // namespace

std::string unsupported_problem(const AttentionProblem& p, const DeviceProperties& device) {
  if (p.q.dtype == DType::kF64) return "dtype f64 has no GPU kernel; use the reference";
  if (p.scores.additive_mask && p.scores.additive_mask->dtype == DType::kF64)
    return "an additive mask of f64 has no GPU kernel";
  if (device.compute_capability < 80) {
    return fmt::format("{} has compute capability {}.{}; the kernels need 8.0 or later", device.name,
                       device.compute_capability / 10, device.compute_capability % 10);
  }
  const std::int64_t longest = std::max({p.seq_len_q * (p.num_heads / p.num_kv_heads), p.seq_len_kv});
  if (longest > kMaxSeqLen)
    return fmt::format("a sequence has {} tokens (times grouped heads); at most {} are supported", longest,
                       kMaxSeqLen);
  if (p.num_heads > kMaxGridYz)
    return fmt::format("num_heads is {}; at most {} are supported", p.num_heads, kMaxGridYz);
  return {};
}

KernelChoice choose_with(const AttentionKernel& kernel, const AttentionProblem& p,
                         const DeviceProperties& device, const AttentionConfig& forced) {
  KernelChoice choice = kernel.choose(p, device, forced);
  choice.kernel = &kernel;
  choice.num_multiprocessors = device.num_multiprocessors;
  return choice;
}

KernelChoice choose_kernel(const AttentionProblem& p, const DeviceProperties& device,
                           const AttentionConfig& forced) {
  std::string reasons;
  for (const AttentionKernel* kernel : attention_kernels()) {
    const std::string reason = kernel->reason_against(p, device);
    if (reason.empty()) return choose_with(*kernel, p, device, forced);
    reasons += fmt::format("\n  {}: {}", kernel->name, reason);
  }
  throw Error(ErrorCode::kUnsupported, fmt::format("no kernel takes {}:{}", to_string(p), reasons));
}

std::vector<std::string> reasons_against_other_kernels(const AttentionProblem& p,
                                                       const DeviceProperties& device,
                                                       const KernelChoice& choice) {
  std::vector<std::string> lines;
  for (const AttentionKernel* kernel : attention_kernels()) {
    if (kernel == choice.kernel) continue;
    std::string reason = kernel->reason_against(p, device);
    if (reason.empty())
      reason =
          fmt::format("it could, but {} is preferred, which {}", choice.kernel->name, choice.kernel->merit);
    lines.push_back(fmt::format("not {}: {}", kernel->name, reason));
  }
  return lines;
}

std::vector<ModuleSpec> modules_of(const KernelChoice& choice) {
  std::vector<ModuleSpec> modules = {choice.module};
  if (choice.config.num_splits > 1) modules.push_back(combine_module());
  return modules;
}

}  // namespace tessera::cuda
