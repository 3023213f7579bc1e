#include "common/logits.cu"
#include "simt/kernel_table.h"

static const tessera::simt::AddKernels kernels({TESSERA_ENTRY(adjust_logits), TESSERA_ENTRY(logprobs)});
