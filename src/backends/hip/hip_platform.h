#pragma once

#include <set>
#include <string>

#include "backends/gpu/platform.h"

namespace tessera::hip {

/// AMD's GPUs, by the HIP runtime, hipRTC and rocBLAS, which are looked for when first asked for.
gpu::Platform& platform();

/// Empty, or why the kernels do not run on such a GPU: neither machine code that it takes is among that for
/// `built_for` nor is there a compiler, `no_compiler` saying why not. For users.
std::string reason_against(const gpu::DeviceProperties& device, const std::set<std::string>& built_for,
                           const std::string& no_compiler);

}  // namespace tessera::hip
