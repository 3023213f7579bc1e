#pragma once

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/gpu/runtime/kernel.h"
#include "tessera/error.h"

namespace tessera::gpu {

/// Throws the Error{kUnsupported} of a kernel that is not built ahead where there is no compiler, for which
/// `unavailable_reason` is why.
[[noreturn]] void throw_not_compiled(const SourceFile& source, const std::string& architecture,
                                     const std::string& unavailable_reason);

/// The lines of `text` that the log points at ("name(12): error"), so that a message can be read without the
/// source. Nothing for a log that quotes them itself ("name:12:7: error").
std::string quoted_lines(const std::string& log, const SourceFile& source);

/// Texts as the C strings that an array of pointers leads to: views end where they say.
class CStrings {
 public:
  void add(std::string_view text) { texts_.emplace_back(text); }
  /// Valid until the next add().
  const char** data();
  int size() const { return static_cast<int>(texts_.size()); }

 private:
  std::vector<std::string> texts_;
  std::vector<const char*> pointers_;
};

/// What KernelCompiler::compile does, by a library with NVRTC's calls under names of its own. `Calls` names
/// them: kPrefix, "nvrtc", and as pointers to members of its table kCreate, kDestroy, kCompile, kCodeSize,
/// kCode, kLogSize, kLog, kErrorString; Program is its handle. `options` are the compiler's, definitions
/// included.
template <class Calls, class Api>
std::vector<std::byte> compile_program(const Api& api, const SourceFile& source,
                                       std::span<const SourceFile> headers,
                                       std::span<const std::string> options,
                                       const std::string& architecture) {
  struct OwnedProgram {
    const Api& api;
    typename Calls::Program handle = nullptr;
    ~OwnedProgram() { (api.*Calls::kDestroy)(&handle); }
  } program{api};
  const auto check = [&](auto result, const char* call) {
    if (result == 0) return;
    throw Error(ErrorCode::kDevice,
                fmt::format("{}{} failed: {}", Calls::kPrefix, call, (api.*Calls::kErrorString)(result)));
  };

  CStrings texts;
  CStrings names;
  for (const SourceFile& header : headers) {
    texts.add(header.text);
    names.add(header.name);
  }
  check((api.*Calls::kCreate)(&program.handle, std::string(source.text).c_str(),
                              std::string(source.name).c_str(), texts.size(), texts.data(), names.data()),
        "CreateProgram");
  CStrings given;
  for (const std::string& option : options) given.add(option);
  const auto result = (api.*Calls::kCompile)(program.handle, given.size(), given.data());
  std::size_t size = 0;
  if (result != 0) {
    std::string log = "(no log)";
    if ((api.*Calls::kLogSize)(program.handle, &size) == 0 && size != 0) {
      log.assign(size, '\0');
      (api.*Calls::kLog)(program.handle, log.data());
      log = log.substr(0, log.find('\0'));
    }
    throw Error(ErrorCode::kDevice, fmt::format("kernel {} does not compile for {} ({}; options: {}):\n{}{}",
                                                source.name, architecture, (api.*Calls::kErrorString)(result),
                                                fmt::join(options, " "), log, quoted_lines(log, source)));
  }
  check((api.*Calls::kCodeSize)(program.handle, &size), "'s size of the code");
  std::vector<std::byte> code(size);
  check((api.*Calls::kCode)(program.handle, reinterpret_cast<char*>(code.data())), "'s code");
  return code;
}

}  // namespace tessera::gpu
