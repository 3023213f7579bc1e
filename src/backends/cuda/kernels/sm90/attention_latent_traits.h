#pragma once

#include "common/traits.h"

// attention_latent.cu's tiles, threads and shared memory: multi-head latent attention of DeepSeek-V2 (2024).

namespace tessera::kernels {

constexpr int kLatentHeadDimQk = 576;
constexpr int kLatentHeadDimV = 512;
constexpr int kLatentRows = 64;  // packed rows of a block
constexpr int kLatentTileKeys = 64;
constexpr int kLatentPair = 2;  // blocks of a cluster, if there are groups of rows for both
constexpr int kLatentBuffers = 2;          // tiles of keys
constexpr int kLatentThreads = 256 + 128;  // two warpgroups that compute, and one that copies
constexpr int kLatentPanels = kLatentHeadDimQk / 64;
constexpr int kLatentPanelBytes = 64 * 128;  // 64 elements of 64 rows

/// SharedStorage: queries, tiles, barriers and what the warpgroups tell each other of rows.
constexpr int kLatentSharedBytes =
    (1 + kLatentBuffers) * kLatentPanels * kLatentPanelBytes + 3 * kLatentRows * 4 + kLatentRows * 8 + 128;

}  // namespace tessera::kernels
