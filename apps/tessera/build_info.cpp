#include "build_info.h"

#include "tessera/version.h"

namespace tessera::cli {

std::string compiler_text() {
#if defined(__clang__)
  return std::string("clang++ ") + __clang_version__;
#else
  return std::string("g++ ") + __VERSION__;
#endif
}

std::string version_text() {
  std::string text(version());
  if (*build_commit() != '\0') text += std::string(" (") + build_commit() + ")";
  return text;
}

}  // namespace tessera::cli
