#pragma once

#include <span>

#include "backends/gpu/runtime/kernel.h"

namespace tessera::hip {

/// The kernels' sources as embedded in this binary, those for any GPU and AMD's; names are relative to the
/// kernels folders. Defined by the build.
std::span<const gpu::SourceFile> embedded_sources();

/// Code objects that the build made, for architectures as "gfx942". Defined by the build; empty without a
/// compiler for them.
std::span<const gpu::EmbeddedModule> embedded_modules();

}  // namespace tessera::hip
