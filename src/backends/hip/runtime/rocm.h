#pragma once

#include <array>
#include <span>

#include "core/shared_library.h"

namespace tessera::hip {

/// A library of ROCm: the file that the environment variable `variable` names if that is set, else the first
/// of `sonames` that is found.
inline SharedLibrary find_rocm_library(const char* variable, std::span<const char* const> sonames) {
  static constexpr std::array kVariables = {"ROCM_PATH", "HIP_PATH"};
  static constexpr std::array kToolkits = {"/opt/rocm"};
  return find_library({variable, sonames, kVariables, kToolkits});
}

}  // namespace tessera::hip
