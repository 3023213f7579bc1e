#pragma once

#include <cstdint>

#include "ops/arguments.h"

namespace tessera::cpu {

/// products = x w[begin, end)^T for x and w of bf16, by dot products of pairs (vdpbf16ps); (x.rows, end -
/// begin), contiguous. An element is a sum in one vector over k, then over the lanes, so its bits depend on
/// its own rows only. Only where SimdTarget::kAvx512Bf16 is attainable.
void bf16_dot_tiles(const Matrix& x, const Weight& w, std::int64_t begin, std::int64_t end, float* products);

}  // namespace tessera::cpu
