#pragma once

#include <string>
#include <string_view>

#include "tessera/error.h"
#include "tessera/tessera.h"

namespace tessera::c_api {

/// Thrown by callbacks that were asked to end what calls them.
struct Cancelled {
  std::string what;
};

tessera_status status_of(ErrorCode code) noexcept;

/// Keeps the text for this thread's tessera_last_error().
tessera_status fail(tessera_status status, std::string_view message) noexcept;

/// What the exception in flight comes to, its text kept.
tessera_status fail_with_current_exception() noexcept;

/// Calls `work`; exceptions become a status.
template <class Work>
tessera_status guarded(Work&& work) noexcept {
  try {
    work();
    return TESSERA_OK;
  } catch (...) {
    return fail_with_current_exception();
  }
}

/// Throws Error{kInvalidArgument} that names the argument if it is null.
template <class T>
T& required(T* argument, const char* name) {
  if (argument == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + " is null; expected a pointer");
  }
  return *argument;
}

}  // namespace tessera::c_api
