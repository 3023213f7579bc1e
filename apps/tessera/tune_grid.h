#pragma once

#include <vector>

#include "problem_options.h"
#include "tessera/device.h"

namespace tessera::cli {

/// Shapes that models have, the most usual first: decoding of 1 to 64 sequences over 512 to 32k tokens, dense
/// and in pages, short and long prompts, with head_dims of 64, 128 and 256. Types and terms are those of
/// `base`.
std::vector<ProblemOptions> tuning_grid(const ProblemOptions& base, DeviceKind kind);

}  // namespace tessera::cli
