#include "common/experts.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRY(route_experts), TESSERA_ENTRY(route_few_rows),
                                                TESSERA_ENTRY(group_slots), TESSERA_ENTRY(combine_experts)});
