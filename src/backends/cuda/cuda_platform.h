#pragma once

#include "backends/gpu/platform.h"

namespace tessera::cuda {

/// NVIDIA's GPUs, by the driver, NVRTC and cuBLASLt, which are looked for when first asked for.
gpu::Platform& platform();

}  // namespace tessera::cuda
