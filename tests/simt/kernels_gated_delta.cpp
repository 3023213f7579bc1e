#include "common/gated_delta.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRIES(gated_delta_128),
                                                TESSERA_ENTRY(gated_delta_128_any),
                                                TESSERA_ENTRY(gated_delta_256_any)});
