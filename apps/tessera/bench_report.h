#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera::cli {

/// What a measurement needs beside it to be understood: version, commit, device, threads, SIMD target.
nlohmann::ordered_json bench_environment_json();

/// The same in one line.
std::string bench_environment_text();

}  // namespace tessera::cli
