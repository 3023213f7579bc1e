#pragma once

#include "backends/gpu/attention/attention_kernel.h"
#include "tessera/attention.h"

// What kernels take for problems whose keys have 8 bits and are widened on their way: models, fitted to an
// H200's times of 2 to 100 queries, by which these kernels are chosen (docs/kernels/cuda_attention.md).

namespace tessera::cuda {

/// sm90/prefill by its `choice`, in us.
double us_of_sm90_narrow_tiles(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                               const gpu::KernelChoice& choice);

/// sm80/prefill.
double us_of_sm80_narrow_tiles(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                               const gpu::KernelChoice& choice);

/// sm80/decode of more than 16 rows, whose tiles read keys once each.
double us_of_narrow_decode(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                           const gpu::KernelChoice& choice);

}  // namespace tessera::cuda
