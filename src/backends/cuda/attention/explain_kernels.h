#pragma once

#include <string>
#include <vector>

#include "backends/cuda/attention/choose_kernel.h"

namespace tessera::cuda {

/// Why each kernel that choose_kernel passed over was: "not sm80/decode: …", a line each. Pure.
std::vector<std::string> reasons_against_other_kernels(const AttentionProblem& problem,
                                                       const DeviceProperties& device,
                                                       const KernelChoice& choice);

/// The modules that a choice takes its kernels from.
std::vector<ModuleSpec> modules_of(const KernelChoice& choice);

}  // namespace tessera::cuda
