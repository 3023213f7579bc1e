#include "common/attention_generic.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRIES(attention_generic),
                                                TESSERA_ENTRY(attention_generic_f32_f8e4m3),
                                                TESSERA_ENTRY(attention_generic_f16_f8e4m3),
                                                TESSERA_ENTRY(attention_generic_bf16_f8e4m3)});
