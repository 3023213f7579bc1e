#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tessera/tessera.h"

namespace tessera::c_api {

/// Each makes a copy of `values`, with a zero behind it, that the struct's function frees. Throws
/// std::bad_alloc, and leaves `out` as it was then.
void give(tessera_text& out, const std::string& values);
void give(tessera_tokens& out, std::span<const std::int32_t> values);
void give(tessera_floats& out, std::span<const float> values);

}  // namespace tessera::c_api
