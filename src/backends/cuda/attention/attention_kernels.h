#pragma once

#include "backends/gpu/attention/attention_kernel.h"

namespace tessera::cuda {

/// Attention's kernels for NVIDIA's GPUs.
gpu::AttentionKernels attention_kernels();

}  // namespace tessera::cuda
