#pragma once

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "backends/cuda/runtime/embedded.h"
#include "backends/gpu/runtime/kernel.h"

namespace tessera::cuda {

/// Whether the library brings the module's machine code for "sm_90a" or another architecture.
inline bool is_built_ahead(const gpu::ModuleSpec& module, std::string_view architecture) {
  const std::string defines = fmt::format("{}", fmt::join(module.defines, " "));
  return std::ranges::any_of(embedded_modules(), [&](const gpu::EmbeddedModule& m) {
    return m.source == module.source && m.defines == defines && m.architecture == architecture;
  });
}

}  // namespace tessera::cuda
