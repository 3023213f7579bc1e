#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera {

enum class ErrorCode {
  kInvalidArgument,  ///< the caller passed something that is wrong by itself
  kUnsupported,      ///< valid, but no kernel or backend here can do it
  kOutOfMemory,      ///< memory, KV pages or another bounded resource ran out
  kDevice,           ///< a device or its driver failed
  kIo,               ///< a file or stream could not be read or written
  kCorruptFile,      ///< a file's content contradicts its format
};

/// The name of a code as it stands in this header, without the `k`: "InvalidArgument".
std::string_view error_code_name(ErrorCode code) noexcept;

/// The only exception this library throws. what() says what is wrong, what was expected and what to do, and
/// ends with the file:line that raised it; message() is the same without that ending, for showing to users.
class Error : public std::runtime_error {
 public:
  /// `file` and `line` are those of the call. (clang 14 has no std::source_location.)
  Error(ErrorCode code, const std::string& message, const char* file = __builtin_FILE(),
        int line = __builtin_LINE());

  ErrorCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }

 private:
  ErrorCode code_;
  std::string message_;
};

}  // namespace tessera
