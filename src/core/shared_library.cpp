#include "core/shared_library.h"

#include <dlfcn.h>
#include <fmt/core.h>

namespace tessera {

SharedLibrary::SharedLibrary(std::span<const char* const> names) {
  for (const char* name : names) {
    handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      name_ = name;
      error_.clear();
      return;
    }
    const char* reason = ::dlerror();
    error_ += fmt::format("{}{}", error_.empty() ? "" : "; ", reason != nullptr ? reason : name);
  }
}

void* SharedLibrary::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
}

}  // namespace tessera
