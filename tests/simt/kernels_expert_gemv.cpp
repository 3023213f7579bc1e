#include "common/expert_gemv.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels(
    {TESSERA_ENTRY(expert_gemv_f32_f32), TESSERA_ENTRY(expert_gemv_f32_f16),
     TESSERA_ENTRY(expert_gemv_f32_bf16), TESSERA_ENTRY(expert_gemv_f32_q8_0),
     TESSERA_ENTRY(expert_gemv_f16_f16), TESSERA_ENTRY(expert_gemv_f16_q8_0),
     TESSERA_ENTRY(expert_gemv_bf16_bf16), TESSERA_ENTRY(expert_gemv_bf16_q8_0),
     TESSERA_ENTRY(expert_gemv_any), TESSERA_ENTRY(expert_gemv_combined_f32_f32),
     TESSERA_ENTRY(expert_gemv_combined_f32_f16), TESSERA_ENTRY(expert_gemv_combined_f32_bf16),
     TESSERA_ENTRY(expert_gemv_combined_f16_f16), TESSERA_ENTRY(expert_gemv_combined_bf16_bf16)});
