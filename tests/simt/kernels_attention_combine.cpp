#include "common/attention_combine.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRIES(attention_combine),
                                                TESSERA_ENTRIES(attention_combine_rows)});
