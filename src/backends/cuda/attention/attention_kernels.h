#pragma once

#include <span>

#include "backends/gpu/attention/attention_kernel.h"

namespace tessera::cuda {

/// Attention's kernels for NVIDIA's GPUs.
gpu::AttentionKernels attention_kernels();

/// Of each architecture that the build compiles them for, the device with most shared memory and
/// multiprocessors.
std::span<const gpu::DeviceProperties> largest_devices();

}  // namespace tessera::cuda
