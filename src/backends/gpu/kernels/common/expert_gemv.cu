// Products of slots of a mixture of experts, each with its expert's weight, by gemv.cuh: bound by reading
// what the experts of few slots have.
//
// Grid: (groups of 4 rows of w, slots); those that combine: (groups of 4 rows of w, rows).

#include "common/expert_gemv_combined.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

/// The expert is known when the kernel before has ended.
TESSERA_DEVICE GemmParams product_of_block(const ExpertGemmParams& p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  return product_of_slot(p, block_y());
}

}  // namespace tessera::kernels

#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#define TESSERA_EXPERT_KERNEL(name, body, ...)                                 \
  TESSERA_KERNEL(expert_gemv_##name, kGemvThreads)(const ExpertGemmParams p) { \
    body<__VA_ARGS__, 1>(product_of_block(p));                                 \
  }
#define TESSERA_COMBINED_KERNEL(name, X, W)                                             \
  TESSERA_KERNEL(expert_gemv_combined_##name, kGemvThreads)(const ExpertGemmParams p) { \
    gemv_combined<X, W>(p);                                                             \
  }
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
TESSERA_EXPERT_KERNEL(f32_f32, gemv, float, float)
TESSERA_COMBINED_KERNEL(f32_f32, float, float)
TESSERA_KERNEL(expert_gemv_any, kGemvThreads)(const ExpertGemmParams p) { multiply_any(product_of_block(p)); }
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_EXPERT_KERNEL(f32_f16, gemv, float, f16)
TESSERA_COMBINED_KERNEL(f32_f16, float, f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 3
TESSERA_EXPERT_KERNEL(f32_bf16, gemv, float, bf16)
TESSERA_COMBINED_KERNEL(f32_bf16, float, bf16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 4
TESSERA_EXPERT_KERNEL(f32_q8_0, gemv_q8, float)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 5
TESSERA_EXPERT_KERNEL(f16_f16, gemv, f16, f16)
TESSERA_COMBINED_KERNEL(f16_f16, f16, f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 6
TESSERA_EXPERT_KERNEL(f16_q8_0, gemv_q8, f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 7
TESSERA_EXPERT_KERNEL(bf16_bf16, gemv, bf16, bf16)
TESSERA_COMBINED_KERNEL(bf16_bf16, bf16, bf16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 8
TESSERA_EXPERT_KERNEL(bf16_q8_0, gemv_q8, bf16)
#endif
