#pragma once

// Included before hwy/highway.h and hwy/foreach_target.h: the one list of targets that the kernels are
// compiled for. Fewer targets keep the build short; what is left out gains little over what is kept.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
