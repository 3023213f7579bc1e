#include "tessera/error.h"

#include <fmt/core.h>

namespace tessera {
namespace {

std::string_view base_name(std::string_view path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace

std::string_view error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgument";
    case ErrorCode::kUnsupported:
      return "Unsupported";
    case ErrorCode::kOutOfMemory:
      return "OutOfMemory";
    case ErrorCode::kDevice:
      return "Device";
    case ErrorCode::kIo:
      return "Io";
    case ErrorCode::kCorruptFile:
      return "CorruptFile";
  }
  return "Unknown";
}

Error::Error(ErrorCode code, const std::string& message, const char* file, int line)
    : std::runtime_error(fmt::format("{} [{}:{}]", message, base_name(file), line)),
      code_(code),
      message_(message) {}

}  // namespace tessera
