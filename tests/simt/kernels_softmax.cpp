#include "common/softmax.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRIES(softmax), TESSERA_ENTRY(softmax_any)});
