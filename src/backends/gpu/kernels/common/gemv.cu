// Products of few rows of x (gemv.cuh).

#include "common/gemv.cuh"

using namespace tessera::kernels;

#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#define TESSERA_GEMV_KERNELS(name, body, ...)                                                    \
  TESSERA_KERNEL(gemv_##name##_1, kGemvThreads)(const GemmParams p) { body<__VA_ARGS__, 1>(p); } \
  TESSERA_KERNEL(gemv_##name##_2, kGemvThreads)(const GemmParams p) { body<__VA_ARGS__, 2>(p); } \
  TESSERA_KERNEL(gemv_##name##_4, kGemvThreads)(const GemmParams p) { body<__VA_ARGS__, 4>(p); } \
  TESSERA_KERNEL(gemv_##name##_8, kGemvThreads)(const GemmParams p) { body<__VA_ARGS__, 8>(p); }
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
TESSERA_GEMV_KERNELS(f32_f32, gemv, float, float)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_GEMV_KERNELS(f32_f16, gemv, float, f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 3
TESSERA_GEMV_KERNELS(f32_bf16, gemv, float, bf16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 4
TESSERA_GEMV_KERNELS(f32_q8_0, gemv_q8, float)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 5
TESSERA_GEMV_KERNELS(f16_f16, gemv, f16, f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 6
TESSERA_GEMV_KERNELS(f16_q8_0, gemv_q8, f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 7
TESSERA_GEMV_KERNELS(bf16_bf16, gemv, bf16, bf16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 8
TESSERA_GEMV_KERNELS(bf16_q8_0, gemv_q8, bf16)
#endif

TESSERA_KERNEL(gemv_any, kGemvThreads)(const GemmParams p) { multiply_any(p); }
