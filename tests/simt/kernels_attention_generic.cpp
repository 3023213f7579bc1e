#include "common/attention_generic.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRIES(attention_generic)});
