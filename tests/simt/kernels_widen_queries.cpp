#include "common/widen_queries.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRIES(widen_queries)});
