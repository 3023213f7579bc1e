#pragma once

#include "backends/cuda/runtime/cublaslt.h"
#include "ops/arguments.h"
#include "tessera/device.h"

namespace tessera::cuda {

/// The product by cuBLASLt; false if it does not take these arguments.
bool library_gemm(CublasLt& cublaslt, const GemmArguments& arguments, Stream stream);

}  // namespace tessera::cuda
