#include "core/shared_library.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>
#include <vector>

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

SharedLibrary find_library(const LibrarySearch& search) {
  if (const char* named = std::getenv(search.variable); named != nullptr && *named != '\0') {
    return SharedLibrary({&named, 1});
  }
  std::vector<std::string> toolkits;
  for (const char* variable : search.toolkit_variables) {
    if (const char* value = std::getenv(variable)) toolkits.emplace_back(value);
  }
  toolkits.insert(toolkits.end(), search.toolkits.begin(), search.toolkits.end());
  std::vector<std::string> names(search.sonames.begin(), search.sonames.end());
  for (const std::string& toolkit : toolkits) {
    for (const char* folder : {"lib64", "lib"}) {  // CUDA's and ROCm's
      for (const char* soname : search.sonames)
        names.push_back(fmt::format("{}/{}/{}", toolkit, folder, soname));
    }
  }
  std::vector<const char*> pointers;
  for (const std::string& name : names) pointers.push_back(name.c_str());
  return SharedLibrary(pointers);
}

void* SharedLibrary::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
}

}  // namespace tessera
