#include "common/sample.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRY(sample_largest), TESSERA_ENTRY(sample_measure),
                                                TESSERA_ENTRY(sample_gather), TESSERA_ENTRY(sample_draw)});
