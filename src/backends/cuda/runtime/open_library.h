#pragma once

#include <span>

#include "core/shared_library.h"

namespace tessera::cuda {

/// Where open_library looks for a soname.
enum class LibraryPlace {
  kLoader,            ///< where the dynamic loader finds libraries
  kLoaderAndToolkit,  ///< then in lib64 of $CUDA_HOME, $CUDA_PATH and /usr/local/cuda
};

/// Opens the library that the environment variable `variable` names if that is set, else the first of
/// `sonames` that is found.
SharedLibrary open_library(const char* variable, std::span<const char* const> sonames, LibraryPlace place);

}  // namespace tessera::cuda
