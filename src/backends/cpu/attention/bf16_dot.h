#pragma once

#include "backends/cpu/attention/kernels.h"

namespace tessera::cpu {

/// The steps with AVX-512's dot products of bf16 pairs; null if the program is for another architecture. To
/// be called only where SimdTarget::kAvx512Bf16 is attainable. Its row_block is 48, its column_block 8.
const Bf16DotKernels* avx512_bf16_dot_kernels();

}  // namespace tessera::cpu
