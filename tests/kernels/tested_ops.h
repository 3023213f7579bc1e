#pragma once

#include <memory>
#include <string_view>

#include "ops/backend.h"

namespace tessera {

/// The backend that takes the CPU's place where the tests of the CPU's ops are compiled for another one: a
/// GPU's, with arguments in host memory.
std::unique_ptr<OpsBackend> make_tested_ops();

/// True where that takes so much longer than the CPU that tests take fewer and smaller shapes.
bool tested_ops_are_slow();

/// make_ops_backend with that one for "cpu".
std::unique_ptr<OpsBackend> make_tested_ops_backend(std::string_view name);

}  // namespace tessera
