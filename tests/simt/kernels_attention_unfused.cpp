#include "common/attention_unfused.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels(
    {TESSERA_ENTRIES(unfused_gather_q), TESSERA_ENTRIES(unfused_gather_kv), TESSERA_ENTRY(unfused_scale),
     TESSERA_ENTRY(unfused_mask), TESSERA_ENTRIES(unfused_softmax), TESSERA_ENTRIES(unfused_store)});
