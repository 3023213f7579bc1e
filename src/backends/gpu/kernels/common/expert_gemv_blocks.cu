// Products of slots of a mixture of experts with weights in blocks of one format (TESSERA_BLOCKS):
// gemv_blocks.cuh.
//
// Grid: (groups of 4 rows of w, slots); those that combine: (groups of 4 rows of w, rows).

#include "common/expert_gemv_blocks_combined.cuh"

using namespace tessera::kernels;

#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#define TESSERA_EXPERT_BLOCKS_KERNEL(name, X)                                                  \
  TESSERA_KERNEL(expert_gemv_blocks_##name, kGemvThreads)(const ExpertGemmParams p) {          \
    allow_next_kernel();                                                                       \
    wait_for_prior_kernels();                                                                  \
    gemv_blocks<tessera::formats::TESSERA_BLOCKS, X, 1>(product_of_slot(p, block_y()));        \
  }                                                                                            \
  TESSERA_KERNEL(expert_gemv_blocks_combined_##name, kGemvThreads)(const ExpertGemmParams p) { \
    gemv_blocks_combined<tessera::formats::TESSERA_BLOCKS, X>(p);                              \
  }
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
TESSERA_EXPERT_BLOCKS_KERNEL(f32, float)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_EXPERT_BLOCKS_KERNEL(f16, f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 3
TESSERA_EXPERT_BLOCKS_KERNEL(bf16, bf16)
#endif
#undef TESSERA_EXPERT_BLOCKS_KERNEL
