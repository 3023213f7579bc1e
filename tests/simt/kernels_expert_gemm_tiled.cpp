#include "common/expert_gemm_tiled.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRY(expert_gemm_tiled)});
