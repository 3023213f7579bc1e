#pragma once

#include "tessera/attention.h"

namespace tessera::cuda {

/// Matrix rate for `dtype` (fp32: that of plain multiply-adds) and read rate of GPU `index`, measured once a
/// process in about a tenth of a second.
Ceilings measured_ceilings(int index, DType dtype);

}  // namespace tessera::cuda
