#pragma once

#include <array>
#include <span>

#include "core/shared_library.h"

namespace tessera::cuda {

/// A library of the CUDA toolkit: the file that the environment variable `variable` names if that is set,
/// else the first of `sonames` that is found.
inline SharedLibrary find_toolkit_library(const char* variable, std::span<const char* const> sonames) {
  static constexpr std::array kVariables = {"CUDA_HOME", "CUDA_PATH"};
  static constexpr std::array kToolkits = {"/usr/local/cuda"};
  return find_library({variable, sonames, kVariables, kToolkits});
}

}  // namespace tessera::cuda
