#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "backends/gpu/runtime/kernel.h"

namespace tessera::gpu {

/// A run-time compiler of kernels. Safe to use from several threads, which compile at the same time.
class KernelCompiler {
 public:
  virtual ~KernelCompiler() = default;

  /// Empty if it can be used; otherwise what is missing, in words for the user.
  virtual std::string unavailable_reason() const = 0;

  /// "nvrtc 12090". Part of the keys of cached code: another compiler makes other code.
  virtual std::string version() const = 0;

  /// Machine code of `source` for `architecture`. `headers` are all that #include can reach. Throws
  /// Error{kUnsupported} if unavailable, naming what to install; Error{kDevice} with the compiler's log,
  /// source lines included, if the text does not compile.
  virtual std::vector<std::byte> compile(const SourceFile& source, std::span<const SourceFile> headers,
                                         std::span<const std::string> defines,
                                         const std::string& architecture) const = 0;
};

}  // namespace tessera::gpu
