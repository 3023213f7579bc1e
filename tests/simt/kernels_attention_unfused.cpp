#include "common/attention_unfused.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels(
    {TESSERA_ENTRIES(unfused_gather_q), TESSERA_ENTRY(unfused_gather_q_f8e4m3),
     TESSERA_ENTRIES(unfused_gather_kv), TESSERA_ENTRY(unfused_scale), TESSERA_ENTRY(unfused_mask),
     TESSERA_ENTRIES(unfused_softmax), TESSERA_ENTRIES(unfused_store),
     TESSERA_ENTRY(unfused_gather_q_f32_f8e4m3), TESSERA_ENTRY(unfused_gather_q_f16_f8e4m3),
     TESSERA_ENTRY(unfused_gather_q_bf16_f8e4m3), TESSERA_ENTRY(unfused_gather_kv_f32_f8e4m3),
     TESSERA_ENTRY(unfused_gather_kv_f16_f8e4m3), TESSERA_ENTRY(unfused_gather_kv_bf16_f8e4m3),
     TESSERA_ENTRY(unfused_store_f32_f8e4m3), TESSERA_ENTRY(unfused_store_f16_f8e4m3),
     TESSERA_ENTRY(unfused_store_bf16_f8e4m3)});
