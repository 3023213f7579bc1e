#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::cuda {

/// A source text and the name that #include finds it by.
struct SourceFile {
  std::string_view name;
  std::string_view text;
};

/// The run-time compiler, found once a process.
struct NvrtcState {
  std::string unavailable_reason;  ///< empty: usable
  std::string library;
  int version = 0;  ///< 1000 * major + 10 * minor
};
const NvrtcState& nvrtc_state();

/// Compiles `source` for `architecture` ("sm_90a") to machine code. `headers` are all that #include can
/// reach. Throws Error{kUnsupported} if there is no NVRTC, naming what to install; Error{kDevice} with the
/// compiler's log, source lines included, if the text does not compile.
std::vector<std::byte> compile_cuda(const SourceFile& source, std::span<const SourceFile> headers,
                                    std::span<const std::string> defines, const std::string& architecture);

}  // namespace tessera::cuda
