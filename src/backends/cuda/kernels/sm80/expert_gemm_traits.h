#pragma once

#include "common/traits.h"

// The tiles of products of slots of a mixture of experts on the tensor cores (expert_gemm.cu).

namespace tessera::kernels {

constexpr int kExpertThreads = 256;
constexpr int kExpertTileM = 64;   // slots
constexpr int kExpertTileN = 128;  // rows of w
constexpr int kExpertTileK = 64;   // columns of a stage
constexpr int kExpertStages = 3;   // under way together

TESSERA_TRAIT int expert_shared_bytes() {
  return kExpertStages * (kExpertTileM + kExpertTileN) * kExpertTileK * 2;
}

}  // namespace tessera::kernels
