#pragma once

#include <cstdint>

#include "ops/arguments.h"

namespace tessera::cpu {

/// Rows of x whose sums stay in registers beside a row of w.
inline constexpr std::int64_t kMostBlockStreamRows = 4;

/// Whether gemm_block_streams multiplies blocks of `weight`, on a processor that has what it is made of.
bool has_block_streams(DType weight);

/// Rows of x of k elements each, and what else of them products with blocks of `weight` need, that stay in
/// the first-level cache; 0 if there are no such products.
std::int64_t block_stream_rows_in_cache(DType weight, std::int64_t k);

/// gemm for a few rows of x of bf16 and w of blocks, by dot products of bf16 pairs (vdpbf16ps): a row of w at
/// a time goes from memory to registers as exact integers, for up to kMostBlockStreamRows rows of x; sums are
/// fp32, a group's times its step.
/// False, with nothing done: x has a number that is not finite, or so large or small that sums of integers'
/// products might overflow or lose bits where those of weights don't.
bool gemm_block_streams(const GemmArguments& a);

}  // namespace tessera::cpu
