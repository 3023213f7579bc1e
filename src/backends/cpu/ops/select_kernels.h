#pragma once

// TESSERA_SELECT_KERNELS(kTable): in the part of a kernel file that is compiled once (HWY_ONCE), the table
// `kTable` of the namespace whose instructions simd_target() asks for.

#include "backends/cpu/highway_targets.h"
#include "backends/cpu/simd_target.h"
// After the list of targets.
#include <hwy/highway.h>

#if HWY_TARGETS & HWY_AVX3
#define TESSERA_IF_AVX3(expression) expression
#else
#define TESSERA_IF_AVX3(expression)
#endif
#if HWY_TARGETS & HWY_AVX2
#define TESSERA_IF_AVX2(expression) expression
#else
#define TESSERA_IF_AVX2(expression)
#endif

#define TESSERA_SELECT_KERNELS(table)                                         \
  [](SimdTarget target) -> const auto& {                                      \
    TESSERA_IF_AVX3(if (target >= SimdTarget::kAvx512) return N_AVX3::table;) \
    TESSERA_IF_AVX2(if (target >= SimdTarget::kAvx2) return N_AVX2::table;)   \
    return HWY_STATIC_DISPATCH(table);                                        \
  }                                                                           \
  (simd_target())
