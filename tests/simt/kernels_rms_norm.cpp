#include "common/rms_norm.cu"
#include "simt/kernel_table.h"

#define NORM_ENTRY(name, In, Residual, Out, W) TESSERA_ENTRY(rms_norm_##name),
#define SHORT_NORM_ENTRY(name, In, Residual, Out, W) TESSERA_ENTRY(rms_norm_short_##name),

static const tessera::simt::AddKernels kernels({TESSERA_NORMS(NORM_ENTRY)
                                                    TESSERA_SHORT_NORMS(SHORT_NORM_ENTRY)
                                                        TESSERA_ENTRY(rms_norm_any)});
