#include "common/attention_tiled.cu"
#include "simt/kernel_table.h"

#define TESSERA_TEXT_OF(name) #name
#define TESSERA_NAME_OF(name) TESSERA_TEXT_OF(name)

// One of several objects: the build renames the entry.
static const tessera::simt::AddKernels tiled(
    {{TESSERA_NAME_OF(attention_tiled), ::tessera::simt::host_kernel(attention_tiled, TESSERA_WARP_SIZE)}});
