#include "c_api/status.h"

#include <array>
#include <cstring>
#include <exception>
#include <new>

#include "tessera/engine.h"
#include "tessera/threads.h"
#include "tessera/version.h"

namespace tessera::c_api {
namespace {

thread_local std::string last_error;

}  // namespace

tessera_status status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return TESSERA_INVALID_ARGUMENT;
    case ErrorCode::kUnsupported:
      return TESSERA_UNSUPPORTED;
    case ErrorCode::kOutOfMemory:
      return TESSERA_OUT_OF_MEMORY;
    case ErrorCode::kDevice:
      return TESSERA_DEVICE;
    case ErrorCode::kIo:
      return TESSERA_IO;
    case ErrorCode::kCorruptFile:
      return TESSERA_CORRUPT_FILE;
    default:  // codes that tessera.h doesn't have
      break;
  }
  return TESSERA_INTERNAL;
}

tessera_status fail(tessera_status status, std::string_view message) noexcept {
  try {
    last_error.assign(message);
  } catch (...) {
    last_error.clear();  // no memory for the text; the status says enough
  }
  return status;
}

tessera_status fail_with_current_exception() noexcept {
  try {
    throw;
  } catch (const QueueFull& error) {
    return fail(TESSERA_QUEUE_FULL, error.message());
  } catch (const Error& error) {
    return fail(status_of(error.code()), error.message());
  } catch (const Cancelled& cancelled) {
    return fail(TESSERA_CANCELLED, cancelled.what);
  } catch (const std::bad_alloc&) {
    return fail(TESSERA_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return fail(TESSERA_INTERNAL, error.what());
  } catch (...) {
    return fail(TESSERA_INTERNAL, "an exception of an unknown type");
  }
}

}  // namespace tessera::c_api

extern "C" {

const char* tessera_last_error(void) { return tessera::c_api::last_error.c_str(); }

const char* tessera_status_name(tessera_status status) {
  constexpr std::array kNames = {"Ok", "InvalidArgument", "Unsupported", "OutOfMemory", "Device",
                                 "Io", "CorruptFile",     "Cancelled",   "Internal",    "QueueFull"};
  if (status < 0 || static_cast<std::size_t>(status) >= kNames.size()) return "Unknown";
  return kNames[static_cast<std::size_t>(status)];
}

// A literal, and so ended by a zero.
const char* tessera_version(void) { return tessera::version().data(); }

tessera_status tessera_num_threads(int32_t* count) {
  return tessera::c_api::guarded([&] { tessera::c_api::required(count, "count") = tessera::num_threads(); });
}

tessera_status tessera_set_num_threads(int32_t count) {
  return tessera::c_api::guarded([&] { tessera::set_num_threads(count); });
}

}  // extern "C"
