#include "common/attention_tiled.cu"
#include "simt/kernel_table.h"

// One of several objects: the build renames the entry.
static const tessera::simt::AddKernels tiled({TESSERA_ENTRY(attention_tiled)});
