#pragma once

#include <cstdint>

#include "ops/arguments.h"

namespace tessera::cpu {

/// Whether gemm_byte_streams multiplies blocks of `weight`, on a processor that has AVX2.
bool has_byte_streams(DType weight);

/// gemm for one row of x and w of blocks, in whole numbers: a row of w at a time goes from memory to
/// registers as bytes; groups of 16 or 32 elements of x are whole numbers of 24 bits times a power of two,
/// off by at most 2^-23 of the group's largest, and not at all if they are 16-bit numbers of about its size.
/// Products of a group are exact, and sums of groups fp32. False, with nothing done: x has a number that is
/// not finite, or its largest is so small or large that steps might leave fp32's range.
bool gemm_byte_streams(const GemmArguments& a);

}  // namespace tessera::cpu
