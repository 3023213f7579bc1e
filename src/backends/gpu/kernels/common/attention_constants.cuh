#pragma once

#include "common/visible_tiles.cuh"

// What every tiled attention kernel is compiled for, as the build defines it: the problem's dtypes,
// head_dims, terms and storage.

namespace tessera::kernels {

using f32 = float;
using T = TESSERA_DTYPE;  // of q and o
#if defined(TESSERA_KV_DTYPE)
using Kv = TESSERA_KV_DTYPE;  // of k and v as stored
#else
using Kv = T;
#endif

constexpr int kHeadDimQk = TESSERA_HEAD_DIM_QK;
constexpr int kHeadDimV = TESSERA_HEAD_DIM_V;
constexpr int kTerms = TESSERA_TERMS;  // ScoreTermFlags
constexpr bool kHasTerms = kTerms != 0;
/// Whether a modifier is a mask and nothing else is done to scores, which stay products.
constexpr bool kMasksOnly = kHidesTiles && !kHasTerms;
constexpr bool kIsNarrow = sizeof(Kv) < sizeof(T);
constexpr bool kPaged = TESSERA_PAGED != 0;
#if defined(TESSERA_VECTOR)  // not where tensor maps describe rows
constexpr bool kVector = TESSERA_VECTOR != 0;
#endif

}  // namespace tessera::kernels
