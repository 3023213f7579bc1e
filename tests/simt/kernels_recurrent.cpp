#include "common/recurrent.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRY(causal_conv_4), TESSERA_ENTRY(causal_conv_8),
                                                TESSERA_ENTRY(gated_delta_128),
                                                TESSERA_ENTRY(gated_delta_256)});
