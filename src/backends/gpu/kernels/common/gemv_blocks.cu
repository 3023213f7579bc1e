// Products of few rows of x with weights in blocks of one format (TESSERA_BLOCKS): gemv_blocks.cuh.

#include "common/gemv_blocks.cuh"

using namespace tessera::kernels;

#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#define TESSERA_BLOCKS_KERNEL(name, X, kM)                                      \
  TESSERA_KERNEL(gemv_blocks_##name##_##kM, kGemvThreads)(const GemmParams p) { \
    gemv_blocks<tessera::formats::TESSERA_BLOCKS, X, kM>(p);                    \
  }
#define TESSERA_BLOCKS_KERNELS(name, X) \
  TESSERA_BLOCKS_KERNEL(name, X, 1)     \
  TESSERA_BLOCKS_KERNEL(name, X, 2)     \
  TESSERA_BLOCKS_KERNEL(name, X, 4)     \
  TESSERA_BLOCKS_KERNEL(name, X, 8)
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
TESSERA_BLOCKS_KERNELS(f32, float)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_BLOCKS_KERNELS(f16, f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 3
TESSERA_BLOCKS_KERNELS(bf16, bf16)
#endif
#undef TESSERA_BLOCKS_KERNEL
#undef TESSERA_BLOCKS_KERNELS
