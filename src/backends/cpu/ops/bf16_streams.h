#pragma once

#include <cstdint>

#include "ops/arguments.h"

namespace tessera::cpu {

/// Rows of x whose sums stay in registers beside a row of w.
inline constexpr std::int64_t kMostBf16StreamRows = 4;

/// gemm for up to kMostBf16StreamRows rows of x and w of bf16, by dot products of pairs (vdpbf16ps): a row of
/// w at a time, for all rows of x. Only where SimdTarget::kAvx512Bf16 is attainable.
/// False, with nothing done: x has a number that is not finite or very large, or only such small ones that
/// products might lose bits, since what is below fp32's normal numbers counts as 0.
bool gemm_bf16_streams(const GemmArguments& a);

}  // namespace tessera::cpu
