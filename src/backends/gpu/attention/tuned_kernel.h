#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention/tuning.h"
#include "backends/gpu/attention/attention_kernel.h"

namespace tessera::gpu {

/// What measurements say of a problem.
struct TunedKernel {
  std::optional<KernelChoice> choice;  ///< none: the order of the kernels decides
  std::string why;                     ///< for explain; empty: nothing was measured of its class of shapes
};

/// The choice that was measured to be the quickest for a problem's class of shapes (find_tuned), unless its
/// kernel doesn't take the problem or no longer has its config.
TunedKernel tuned_kernel(AttentionKernels kernels, const AttentionProblem& problem,
                         const DeviceProperties& device, const AttentionConfig& forced,
                         const AttentionTunings& tunings);

/// Ways to compute a supported problem that are worth measuring on a device, each another choice; the first
/// is that of the order of the kernels. The plain kernel is one only where it is the first.
std::vector<AttentionCandidate> attention_candidates(AttentionKernels kernels,
                                                     const AttentionProblem& problem,
                                                     const DeviceProperties& device);

/// A candidate's choice. Throws Error{kInvalidArgument} for a kernel that is not in the list or doesn't take
/// the problem, and for a config that it doesn't have.
KernelChoice choose_candidate(AttentionKernels kernels, const AttentionProblem& problem,
                              const DeviceProperties& device, const AttentionCandidate& candidate);

}  // namespace tessera::gpu
