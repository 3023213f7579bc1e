#include "common/rms_norm.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRIES(rms_norm), TESSERA_ENTRY(rms_norm_any)});
