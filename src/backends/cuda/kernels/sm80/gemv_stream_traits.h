#pragma once

#include "common/ops_params.h"
#include "common/traits.h"

// gemv_stream.cu's steps, and what they take of shared memory.

namespace tessera::kernels {

constexpr int kStreamWarps = 8;
constexpr int kStreamThreads = kStreamWarps * 32;
constexpr int kStreamRows = 4;                 // of w in a step
constexpr int kStreamChunk = 32 * kGroupSize;  // columns of a step
constexpr int kStreamLaneBytes = 16;           // of a row in a step
constexpr int kStreamStepBytes = kStreamRows * 32 * kStreamLaneBytes;
constexpr int kStreamGroupsAtOnce = 32;  // of a block, whose sums meet at once
constexpr int kMostStreamBlocks = 2;     // a multiprocessor
constexpr int kMostStreamRows = 2;       // of x

/// Of a warp's ring, for m rows of x: two blocks fit a multiprocessor of an H100 with x of 14336 columns.
TESSERA_TRAIT int stream_stages(int m) { return m == 1 ? 4 : 3; }

/// Groups of columns that a thread norms: as many as registers hold.
TESSERA_TRAIT int stream_norm_groups(int m) { return m == 1 ? 4 : 2; }
TESSERA_TRAIT int most_normed_columns(int m) { return stream_norm_groups(m) * kStreamThreads * kGroupSize; }

/// Shared memory: the rings; x, 16-bit; the sums; cosines and sines of each row of x, if the result is
/// rotated.
TESSERA_TRAIT long long stream_shared_bytes(int m, long long chunks, long long num_pairs) {
  const long long ring = kStreamWarps * stream_stages(m) * kStreamStepBytes;
  const long long x = m * chunks * kStreamChunk * 2;
  const long long sums = 4 * kStreamGroupsAtOnce * kStreamWarps * kStreamRows * m;
  return ring + x + sums + 4 * 2 * num_pairs * m;
}

}  // namespace tessera::kernels
