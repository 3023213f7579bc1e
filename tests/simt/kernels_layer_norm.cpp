#include "common/layer_norm.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRY(layer_norm_any)});
