#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "backends/gpu/attention/attention_kernel.h"

// Which modules of attention's kernels the build compiles ahead: those that the kernels themselves choose for
// the problems that they name (AttentionKernel::built_ahead) on the largest device of each architecture.

namespace tessera::gpu {

/// A dense or paged problem as models have them: 32 heads of 8 groups, 4096 keys, aligned rows, no terms.
AttentionProblem usual_problem(DType dtype, int head_dim, std::int64_t seq_len_q, bool is_paged = false);

/// Puts all keys of a problem of one sequence into pages.
void use_pages(AttentionProblem& problem, int page_size);

/// A line "source|architecture|defines|may_spill" for each module, in the kernels' order: definitions joined
/// by spaces, may_spill 0 or 1. A vendor's build reads them from a file beside its kernels, and a test
/// compares that with this.
std::string built_module_lines(AttentionKernels kernels, std::span<const DeviceProperties> largest_devices);

}  // namespace tessera::gpu
