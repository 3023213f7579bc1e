#pragma once

#include <span>

#include "backends/gpu/attention/attention_kernel.h"

namespace tessera::hip {

/// Attention's kernels for AMD's GPUs.
gpu::AttentionKernels attention_kernels();

/// Of each architecture that the build compiles them for, the device with most compute units (of RDNA, pairs
/// of them, as HIP counts).
std::span<const gpu::DeviceProperties> largest_devices();

}  // namespace tessera::hip
