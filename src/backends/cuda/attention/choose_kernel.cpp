#include "backends/cuda/attention/choose_kernel.h"

#include <fmt/core.h>

#include <algorithm>

#include "backends/cuda/attention/launch_arguments.h"
#include "backends/gpu/attention/problem_params.h"
#include "tessera/error.h"

namespace tessera::cuda {

std::string unsuitable_device(const DeviceProperties& device) {
  if (device.compute_capability >= 80) return {};
  return fmt::format("{} has compute capability {}.{}; the kernels need 8.0 or later", device.name,
                     device.compute_capability / 10, device.compute_capability % 10);
}

std::string unsupported_problem(const AttentionProblem& p, const DeviceProperties& device) {
  const std::string reason = gpu::unsupported_problem(p);
  return reason.empty() ? unsuitable_device(device) : reason;
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
