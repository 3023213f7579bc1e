#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "backends/gpu/runtime/kernel.h"

namespace tessera::gpu {

/// How a GPU takes code for some architecture. The greater, the better.
enum class CodeFit {
  kNone,
  kTranslated,  ///< by the driver, when loaded
  kRuns,        ///< on this GPU and on others
  kExact,       ///< made for this GPU's own architecture
};

/// What makes code into kernels: a GPU's driver. Safe to use from several threads.
class ModuleLoader {
 public:
  virtual ~ModuleLoader() = default;

  virtual CodeFit fit_of(std::string_view architecture) const = 0;

  /// Loads `image`, which stays where it is, for the life of the process: drivers may read it later. `what`
  /// names it in errors. Throws Error{kDevice}.
  virtual void* load_module(std::span<const std::byte> image, std::string_view what) = 0;

  /// The kernel `entry` of a loaded module. `fit` is that of the module's code. Throws Error{kDevice}.
  virtual Kernel find_function(void* module, const std::string& entry, CodeFit fit,
                               std::string_view what) = 0;

  /// Lets launches of `kernel` ask for so much dynamic shared memory. Throws Error{kDevice}.
  virtual void allow_shared(Kernel& kernel, std::size_t dynamic_bytes, std::string_view what) = 0;
};

}  // namespace tessera::gpu
