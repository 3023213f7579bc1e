#pragma once

#include <span>

#include "backends/hip/runtime/targets.h"
#include "matrix/attention_prefill_traits.h"

namespace tessera::hip {

/// How matrix/attention_prefill.hip may cut its work for a shape, the preferred first.
std::span<const kernels::MatrixPrefillTiles> prefill_tiles(MatrixUnit unit,
                                                           const kernels::MatrixPrefillShape& shape);

}  // namespace tessera::hip
