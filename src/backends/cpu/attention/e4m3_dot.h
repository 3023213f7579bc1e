#pragma once

#include "backends/cpu/attention/kernels.h"

namespace tessera::cpu {

/// The steps on e4m3 keys and values beside bf16; null if the program is for another architecture or the
/// processor lacks their permutations of bytes (AVX512_VBMI). To be called only where
/// SimdTarget::kAvx512Bf16 is attainable.
const E4m3DotKernels* avx512_e4m3_dot_kernels();

}  // namespace tessera::cpu
