#pragma once

#include <span>
#include <string_view>

namespace tessera::cuda {

/// Tables of tuned shapes that the library brings, a GPU each, as `tessera tune attention --output` writes
/// them.
std::span<const std::string_view> shipped_tunings();

}  // namespace tessera::cuda
