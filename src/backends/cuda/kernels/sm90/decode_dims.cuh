#pragma once

#include "common/attention_constants.cuh"

// What all decode kernels of Hopper are compiled with.

namespace tessera::kernels {

constexpr int kBlockN = 128 / sizeof(Kv);  // keys of a tile

#ifdef TESSERA_MODIFIER
constexpr bool kHasModifier = true;
#else
constexpr bool kHasModifier = false;
#endif

/// Bytes of a mask's element, 0 if there is none. A modifier has them looked up score by score.
constexpr int kAdditiveBytes = kHasModifier || (kTerms & kTermAdditiveMask) == 0 ? 0
                               : TESSERA_MASK_DTYPE == kMaskF32                  ? 4
                                                                                 : 2;
constexpr int kBooleanBytes = kHasModifier || (kTerms & kTermBooleanMask) == 0 ? 0 : 1;

}  // namespace tessera::kernels
