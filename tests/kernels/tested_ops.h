#pragma once

#include <memory>
#include <string_view>

#include "ops/backend.h"

namespace tessera {

// The tests of the CPU's ops are compiled once and linked with one of these: cpu_tested_ops.cpp, or
// tested_ops.cpp and a file that defines the first two for another backend, a GPU's with arguments in host
// memory.

/// The backend that is tested.
std::unique_ptr<OpsBackend> make_tested_ops();

/// True where that takes so much longer than the CPU that tests take fewer and smaller shapes.
bool tested_ops_are_slow();

/// Whether it is the CPU's.
bool tested_ops_are_the_cpus();

/// make_ops_backend with the tested one for "cpu".
std::unique_ptr<OpsBackend> make_tested_ops_backend(std::string_view name);

}  // namespace tessera
