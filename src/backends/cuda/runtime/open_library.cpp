#include "backends/cuda/runtime/open_library.h"

#include <cstdlib>
#include <string>
#include <vector>

namespace tessera::cuda {

SharedLibrary open_library(const char* variable, std::span<const char* const> sonames, LibraryPlace place) {
  if (const char* named = std::getenv(variable); named != nullptr && *named != '\0') {
    return SharedLibrary({&named, 1});
  }
  std::vector<std::string> names(sonames.begin(), sonames.end());
  if (place == LibraryPlace::kLoaderAndToolkit) {
    std::vector<std::string> folders;
    for (const char* home : {"CUDA_HOME", "CUDA_PATH"}) {
      if (const char* value = std::getenv(home)) folders.push_back(std::string(value) + "/lib64/");
    }
    folders.emplace_back("/usr/local/cuda/lib64/");
    for (const std::string& folder : folders) {
      for (const char* soname : sonames) names.push_back(folder + soname);
    }
  }
  std::vector<const char*> pointers;
  for (const std::string& name : names) pointers.push_back(name.c_str());
  return SharedLibrary(pointers);
}

}  // namespace tessera::cuda
