#pragma once

#include "sm90/attention_wgmma_traits.h"

// attention_wide.cu's tiles, its threads, and what they take of shared memory.

namespace tessera::kernels {

constexpr int kWideBlockM = 64;
constexpr int kWideBlockN = 64;
constexpr int kWideColumnGroups = 2;  // warpgroups that compute, each with its columns of o
constexpr int kWideThreads = 128 * (1 + kWideColumnGroups);
constexpr int kMostWideHeadDim = 512;

constexpr int kWideSharedBytes = 227 * 1024;
constexpr int kWidePanelBytes = kWideBlockN * kPanelRowBytes;
constexpr int kWideWeightBytes = 2 * kWidePanelBytes;
constexpr int kWideStateBytes = 2304;  // what lies behind the tiles, at most

/// Panels of half a tile, as it is copied: of keys the first or the second half of a row, of values a
/// warpgroup's columns.
TESSERA_TRAIT int wide_half_panels(int head_dim_qk, int head_dim_v) {
  return parts_of(parts_of(larger_of(head_dim_qk, head_dim_v), kPanelElements), 2);
}

/// Buffers for those: as many as fit beside the queries and two tiles of weights, but not three or five. A
/// warpgroup waits for its halves alone: of the half before in the same buffer it has to know by other means
/// that it has come, else it takes that one's arrival for its own half's. With four, six or more buffers the
/// weights that it has waited for say so.
TESSERA_TRAIT int wide_buffers(int head_dim_qk, int head_dim_v) {
  const int queries = parts_of(head_dim_qk, kPanelElements) * kWidePanelBytes;
  const int half = wide_half_panels(head_dim_qk, head_dim_v) * kWidePanelBytes;
  const int buffers = (kWideSharedBytes - queries - kWideWeightBytes - kWideStateBytes) / half;
  return buffers >= 8 ? 8 : buffers == 5 ? 4 : buffers;
}

/// SharedStorage.
TESSERA_TRAIT int wide_shared_bytes(int head_dim_qk, int head_dim_v) {
  return parts_of(head_dim_qk, kPanelElements) * kWidePanelBytes + kWideWeightBytes + kWideStateBytes +
         wide_buffers(head_dim_qk, head_dim_v) * wide_half_panels(head_dim_qk, head_dim_v) * kWidePanelBytes;
}

}  // namespace tessera::kernels
