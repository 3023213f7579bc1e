#pragma once

#include "backends/gpu/platform.h"
#include "tessera/attention.h"

namespace tessera::gpu {

/// Matrix rate for `dtype` and read rate of GPU `index`, measured once a process in about a tenth of a
/// second. fp32: the rate of plain multiply-adds, or a third of the 16-bit matrix rate if that is more.
Ceilings measured_ceilings(Platform& platform, int index, DType dtype);

}  // namespace tessera::gpu
