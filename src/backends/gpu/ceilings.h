#pragma once

#include "tessera/attention.h"

namespace tessera::cuda {

/// Matrix rate for `dtype` and read rate of GPU `index`, measured once a process in about a tenth of a
/// second. fp32: the rate of plain multiply-adds, or a third of the 16-bit matrix rate if that is more.
Ceilings measured_ceilings(int index, DType dtype);

}  // namespace tessera::cuda
