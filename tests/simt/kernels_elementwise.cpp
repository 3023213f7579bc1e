#include "common/elementwise.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRIES(gated_activation),
                                                TESSERA_ENTRY(gated_activation_any), TESSERA_ENTRIES(scale),
                                                TESSERA_ENTRY(scale_any), TESSERA_ENTRIES(softcap),
                                                TESSERA_ENTRY(softcap_any), TESSERA_ENTRY(causal_mask_any),
                                                TESSERA_ENTRY(embedding_any)});
