#pragma once

#include "common/ops_params.h"
#include "common/traits.h"
#include "sm90/tensor_map.h"

// expert_many_rows.cu's arguments, the same bytes on host and device, and what it takes of shared memory.

namespace tessera::kernels {

constexpr int kExpertRowsWarpgroups = 2;  // that multiply, each 64 rows of w
constexpr int kExpertRowsTile = 64 * kExpertRowsWarpgroups;
constexpr int kExpertRowsSlots = 256;  // of a tile, at most
constexpr int kExpertRowsStep = 64;    // columns of a step: a panel
constexpr int kExpertRowsStages = 4;
constexpr int kExpertRowsItems = 2;  // that are known at once
constexpr int kExpertRowsThreads = (kExpertRowsWarpgroups + 1) * 128;
/// Slots whose results a warpgroup brings to shared memory at once, in one of two buffers.
constexpr int kExpertStoredSlots = 64;
constexpr int kExpertStoredBuffers = 2;

TESSERA_TRAIT int expert_rows_stage_bytes() {
  return (kExpertRowsTile + kExpertRowsSlots) * kExpertRowsStep * 2;
}
/// The ring, the buffers of results, items and barriers.
TESSERA_TRAIT int expert_rows_shared_bytes() {
  return kExpertRowsStages * (expert_rows_stage_bytes() + 16) +
         kExpertRowsItems * (kExpertRowsSlots * 4 + 32) +
         kExpertRowsWarpgroups * kExpertStoredBuffers * kExpertStoredSlots * 64 * 2;
}

struct ExpertRowsParams {
  TensorMap weight;  // (rows of w of all experts, k): boxes of kExpertRowsTile rows and 64 columns
  ExpertGemmParams product;
  int w_tiles;  // of an expert
};

}  // namespace tessera::kernels
