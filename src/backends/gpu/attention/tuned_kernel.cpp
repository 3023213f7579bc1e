#include "backends/gpu/attention/tuned_kernel.h"

#include <fmt/core.h>

#include <algorithm>

#include "backends/gpu/attention/choose_kernel.h"
#include "backends/gpu/attention/widen_queries.h"
#include "tessera/error.h"

namespace tessera::gpu {

KernelChoice choose_candidate(AttentionKernels kernels, const AttentionProblem& p,
                              const DeviceProperties& device, const AttentionCandidate& candidate) {
  const auto found = std::ranges::find(kernels, candidate.kernel, [](const auto* k) { return k->name; });
  if (found == kernels.end())
    throw Error(ErrorCode::kInvalidArgument, fmt::format("there is no kernel '{}'", candidate.kernel));
  if (const std::string reason = reason_against_kernel(**found, p, device); !reason.empty())
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", candidate.kernel, reason));
  return choose_with(**found, p, device, candidate.config);
}

TunedKernel tuned_kernel(AttentionKernels kernels, const AttentionProblem& p, const DeviceProperties& device,
                         const AttentionConfig& forced, const AttentionTunings& tunings) {
  const TunedCandidate tuned = find_tuned(p, forced, tunings);
  if (!tuned.candidate) return {std::nullopt, tuned.why};
  try {
    return {choose_candidate(kernels, p, device, *tuned.candidate), tuned.why};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    return {std::nullopt, tuned.why + not_used(error.message())};
  }
}

std::vector<AttentionCandidate> attention_candidates(AttentionKernels kernels, const AttentionProblem& p,
                                                     const DeviceProperties& device) {
  const KernelChoice untuned = choose_kernel(kernels, p, device, {});
  std::vector<AttentionCandidate> candidates = {{std::string(untuned.kernel->name), {}}};
  std::vector<KernelChoice> choices = {untuned};
  const auto consider = [&](const AttentionKernel& kernel, const AttentionConfig& config) {
    try {
      const KernelChoice choice = choose_with(kernel, p, device, config);
      if (std::ranges::find(choices, choice) != choices.end()) return;
      choices.push_back(choice);
      candidates.push_back({std::string(kernel.name), config});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
    }
  };
  for (const AttentionKernel* kernel : kernels) {
    if (!reason_against_kernel(*kernel, p, device).empty()) continue;
    if (kernel->is_plain && untuned.kernel != kernel) continue;
    consider(*kernel, {});
    if (kernel->candidates == nullptr || p.batch_invariant) continue;
    const std::vector<AttentionConfig> configs = kernel->candidates(problem_of_kernel(*kernel, p), device);
    for (const AttentionConfig& config : configs) consider(*kernel, config);
  }
  return candidates;
}

}  // namespace tessera::gpu
