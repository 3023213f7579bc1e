#pragma once

#include <string>

#include "backends/gpu/runtime/compiler.h"

namespace tessera::hip {

/// The run-time compiler, found once a process.
struct HiprtcState {
  std::string unavailable_reason;  ///< empty: usable
  std::string library;
  std::string version;  ///< "6.3"
};
const HiprtcState& hiprtc_state();

/// Compiles for architectures as "gfx942".
const gpu::KernelCompiler& hiprtc_compiler();

}  // namespace tessera::hip
