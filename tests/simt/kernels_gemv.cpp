#include "common/gemv.cu"
#include "simt/kernel_table.h"

#define GEMV_ENTRIES(name)                                                                        \
  TESSERA_ENTRY(gemv_##name##_1), TESSERA_ENTRY(gemv_##name##_2), TESSERA_ENTRY(gemv_##name##_4), \
      TESSERA_ENTRY(gemv_##name##_8)

static const tessera::simt::AddKernels kernels({GEMV_ENTRIES(f32_f32), GEMV_ENTRIES(f32_f16),
                                                GEMV_ENTRIES(f32_bf16), GEMV_ENTRIES(f32_q8_0),
                                                GEMV_ENTRIES(f16_f16), GEMV_ENTRIES(f16_q8_0),
                                                GEMV_ENTRIES(bf16_bf16), GEMV_ENTRIES(bf16_q8_0),
                                                TESSERA_ENTRY(gemv_any)});
