#pragma once

#include "ops/arguments.h"

namespace tessera::cpu {

/// Runs valid arguments: chooses the kernel by the number of rows and splits the columns over the threads.
void gemm(const GemmArguments& arguments);

/// Whether simd_target() multiplies x of bf16 by blocks as bf16 rather than fp32.
bool multiplies_bf16_blocks();

}  // namespace tessera::cpu
