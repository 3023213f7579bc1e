#pragma once

#include "backends/gpu/attention/attention_kernel.h"

namespace tessera::hip {

/// Attention's kernels for AMD's GPUs.
gpu::AttentionKernels attention_kernels();

}  // namespace tessera::hip
