#include "common/causal_conv.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRIES(causal_conv_4),
                                                TESSERA_ENTRY(causal_conv_4_any),
                                                TESSERA_ENTRY(causal_conv_8_any)});
