#pragma once

#include "common/types.cuh"

// What all decode kernels of Hopper are compiled with.

namespace tessera::kernels {

using T = TESSERA_DTYPE;
#if defined(TESSERA_KV_DTYPE)
using Kv = TESSERA_KV_DTYPE;
#else
using Kv = T;
#endif

constexpr int kHeadDimQk = TESSERA_HEAD_DIM_QK;
constexpr int kHeadDimV = TESSERA_HEAD_DIM_V;
constexpr int kBlockN = 128 / sizeof(Kv);  // keys of a tile
constexpr bool kHasTerms = TESSERA_TERMS != 0;
constexpr bool kPaged = TESSERA_PAGED != 0;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

}  // namespace tessera::kernels
