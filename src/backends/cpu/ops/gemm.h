#pragma once

#include "ops/arguments.h"

namespace tessera::cpu {

/// Runs valid arguments: chooses the kernel by the number of rows and splits the columns over the threads.
void gemm(const GemmArguments& arguments);

}  // namespace tessera::cpu
