#pragma once

#include <string>
#include <vector>

#include "backends/gpu/attention/attention_kernel.h"
#include "backends/gpu/attention/tuned_kernel.h"

namespace tessera::gpu {

/// What was measured to be the quickest for a supported problem's class of shapes (tuned_kernel.h), else the
/// first of `kernels` that takes it, splits its keys if `forced` wants splits, and doesn't yield to another.
/// Throws Error{kInvalidArgument} for a forced value that it doesn't have.
KernelChoice choose_kernel(AttentionKernels kernels, const AttentionProblem& problem,
                           const DeviceProperties& device, const AttentionConfig& forced,
                           const AttentionTunings& tunings = {});

/// Empty unless `kernel`, which takes the problem, yields to another of its list.
std::string reason_to_yield(const AttentionKernel& kernel, const AttentionProblem& problem,
                            const DeviceProperties& device);

/// One kernel's choice for a problem that it takes. Throws likewise.
KernelChoice choose_with(const AttentionKernel& kernel, const AttentionProblem& problem,
                         const DeviceProperties& device, const AttentionConfig& forced);

/// Why each of `kernels` that choose_kernel passed over was: "not sm80/decode: …", a line each. is_tuned: a
/// measurement chose.
std::vector<std::string> reasons_against_other_kernels(AttentionKernels kernels,
                                                       const AttentionProblem& problem,
                                                       const DeviceProperties& device,
                                                       const AttentionConfig& forced,
                                                       const KernelChoice& choice, bool is_tuned = false);

/// The modules that a choice takes its kernels from.
std::vector<ModuleSpec> modules_of(const KernelChoice& choice);

}  // namespace tessera::gpu
