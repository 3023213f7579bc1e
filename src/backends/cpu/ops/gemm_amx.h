#pragma once

#include "ops/arguments.h"

namespace tessera::cpu {

/// Whether gemm_amx multiplies these dtypes: x of any activation dtype; w of bf16, f16 or blocks. It runs
/// only where SimdTarget::kAmxBf16 is attainable.
bool amx_takes(DType x, DType weight);

/// gemm for 1 to kMostTileRows rows, in fp32 sums of exact products. The bits of a row depend on its own row
/// of x and on w only. False, with nothing done, if x has a number that is not finite and x or w consists of
/// parts, or w has offsets: sums of these can't hold it.
bool gemm_amx(const GemmArguments& arguments);

}  // namespace tessera::cpu
