#pragma once

// Included before hwy/highway.h and hwy/foreach_target.h: the one list of targets that the kernels are
// compiled for. Fewer targets keep the build short; what is left out gains little over what is kept.
// Sanitized kernels take twice as long to compile: there, of x86, the narrowest vectors and the widest will
// do.
#if defined(TESSERA_SANITIZE_ADDRESS) || defined(TESSERA_SANITIZE_THREAD)
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#else
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif

// The baseline is one number at a time whatever the compiler, as Highway has it for GCC up to 12.2. The
// vectors that it imitates elsewhere know no infinity in fp16 and convert NaN to integers.
#define HWY_BROKEN_EMU128 1
