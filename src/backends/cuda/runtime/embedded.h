#pragma once

#include <span>

#include "backends/gpu/runtime/kernel.h"

namespace tessera::cuda {

/// The kernels' sources as embedded in this binary, those for any GPU and NVIDIA's; names are relative to the
/// kernels folders. Defined by the build.
std::span<const gpu::SourceFile> embedded_sources();

/// Machine code (or PTX, architecture "compute_…") that the build made. Defined by the build; empty without
/// nvcc.
std::span<const gpu::EmbeddedModule> embedded_modules();

}  // namespace tessera::cuda
