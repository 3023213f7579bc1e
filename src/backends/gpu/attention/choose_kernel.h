#pragma once

#include <string>
#include <vector>

#include "backends/gpu/attention/attention_kernel.h"

namespace tessera::gpu {

/// The first of `kernels` that takes a supported problem. Throws Error{kInvalidArgument} for a forced
/// value that it doesn't have.
KernelChoice choose_kernel(AttentionKernels kernels, const AttentionProblem& problem,
                           const DeviceProperties& device, const AttentionConfig& forced);

/// One kernel's choice for a problem that it takes. Throws likewise.
KernelChoice choose_with(const AttentionKernel& kernel, const AttentionProblem& problem,
                         const DeviceProperties& device, const AttentionConfig& forced);

/// Why each of `kernels` that choose_kernel passed over was: "not sm80/decode: …", a line each.
std::vector<std::string> reasons_against_other_kernels(AttentionKernels kernels,
                                                       const AttentionProblem& problem,
                                                       const DeviceProperties& device,
                                                       const KernelChoice& choice);

/// The modules that a choice takes its kernels from.
std::vector<ModuleSpec> modules_of(const KernelChoice& choice);

}  // namespace tessera::gpu
