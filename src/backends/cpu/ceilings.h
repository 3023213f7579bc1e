#pragma once

#include "tessera/attention.h"
#include "tessera/dtype.h"

namespace tessera {

/// The machine's highest rates as measured in about `seconds`, on all threads, with the best attainable
/// instructions whatever simd_target() says: multiply-adds of fp32, or of bf16 pairs for kBF16 where the
/// machine has them, and reads of memory several times the last-level cache.
Ceilings measure_ceilings(DType dtype, double seconds);

/// measure_ceilings in about a tenth of a second on the first call for a dtype, remembered afterwards.
Ceilings cpu_ceilings(DType dtype);

}  // namespace tessera
