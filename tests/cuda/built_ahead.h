#pragma once

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "backends/cuda/runtime/embedded.h"
#include "backends/gpu/runtime/kernel.h"
#include "tessera/dtype.h"

namespace tessera::cuda {

/// Whether the library brings the module's machine code for "sm_90a" or another architecture.
inline bool is_built_ahead(const gpu::ModuleSpec& module, std::string_view architecture) {
  const std::string defines = fmt::format("{}", fmt::join(module.defines, " "));
  return std::ranges::any_of(embedded_modules(), [&](const gpu::EmbeddedModule& m) {
    return m.source == module.source && m.defines == defines && m.architecture == architecture;
  });
}

/// Whether it brings any code of attention for queries of this type: builds may be asked for fewer types.
inline bool is_built_ahead(DType dtype, std::string_view architecture) {
  const std::string define = fmt::format("TESSERA_DTYPE={} ", dtype_name(dtype));
  return std::ranges::any_of(embedded_modules(), [&](const gpu::EmbeddedModule& m) {
    return m.architecture == architecture && m.defines.find(define) != m.defines.npos;
  });
}

}  // namespace tessera::cuda
