#include "common/attention_join.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRIES(attention_join),
                                                TESSERA_ENTRY(attention_join_f32_f8e4m3),
                                                TESSERA_ENTRY(attention_join_f16_f8e4m3),
                                                TESSERA_ENTRY(attention_join_bf16_f8e4m3)});
