#pragma once

#include <string>

namespace tessera::cli {

/// The commit that the program was built from, "-dirty" behind it if files were changed; empty if unknown.
const char* build_commit() noexcept;

/// The compiler that built the program: "g++ 12.2.0".
std::string compiler_text();

/// "0.1.0 (4f3a2b1)".
std::string version_text();

}  // namespace tessera::cli
