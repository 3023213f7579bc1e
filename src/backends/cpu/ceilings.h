#pragma once

#include "tessera/attention.h"
#include "tessera/dtype.h"

namespace tessera {

/// The machine's highest rates as measured in about `seconds`, on all threads, with the best attainable
/// instructions whatever simd_target() says: multiply-adds of fp32; for kBF16 those of bf16 tiles or pairs
/// where the machine has them; for kF16 where there are tiles, a third of theirs, since each number is the
/// sum of two bf16; and reads of memory several times the last-level cache.
Ceilings measure_ceilings(DType dtype, double seconds);

/// measure_ceilings in about a tenth of a second on the first call for a dtype, remembered afterwards.
Ceilings cpu_ceilings(DType dtype);

}  // namespace tessera
