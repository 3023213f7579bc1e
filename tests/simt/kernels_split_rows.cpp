#include "common/split_rows.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRY(split_rows_4), TESSERA_ENTRY(split_rows_6),
                                                TESSERA_ENTRY(split_rows_8), TESSERA_ENTRY(split_rows_10)});
