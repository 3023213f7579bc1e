#pragma once

#include <string>

#include "backends/gpu/runtime/compiler.h"

namespace tessera::cuda {

/// The run-time compiler, found once a process.
struct NvrtcState {
  std::string unavailable_reason;  ///< empty: usable
  std::string library;
  int version = 0;  ///< 1000 * major + 10 * minor
};
const NvrtcState& nvrtc_state();

/// Compiles for architectures as "sm_90a".
const gpu::KernelCompiler& nvrtc_compiler();

}  // namespace tessera::cuda
