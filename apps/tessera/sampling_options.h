#pragma once

#include <cstdint>
#include <optional>

#include "command.h"
#include "tessera/model.h"

namespace tessera::cli {

/// Adds the group of options that say how tokens are drawn.
void add_sampling_options(Command& command, SamplingOptions& sampling, std::optional<std::uint64_t>& seed);

}  // namespace tessera::cli
