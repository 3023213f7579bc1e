#include "common/rope.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRIES(rope_append), TESSERA_ENTRY(rope_append_any),
                                                TESSERA_ENTRY(rope_any)});
