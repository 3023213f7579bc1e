#pragma once

#include "common/traits.h"

// What gemv_blocks.cu and its host know: of each row of w a lane takes a unit at a time, a warp a step of as
// many units as it has lanes.

namespace tessera::kernels {

constexpr int kUnitColumns = 32;
constexpr int kMovedBytes = 16;  // at once, from memory to shared memory

TESSERA_TRAIT int step_columns(int warp_size) { return warp_size * kUnitColumns; }

/// 16-byte vectors that have a step of a row in blocks of so many elements and bytes. It may begin anywhere
/// in the first, unless all blocks begin one.
TESSERA_TRAIT int step_vectors(int elements, int bytes, int warp_size) {
  const int step_bytes = step_columns(warp_size) / elements * bytes;
  return parts_of(step_bytes + (bytes % kMovedBytes == 0 ? 0 : kMovedBytes - 1), kMovedBytes);
}

/// Vectors of shared memory that a warp has for steps of `rows` rows. One more, since bytes that do not stand
/// at a multiple of 4 are read by the words on both sides.
TESSERA_TRAIT int warp_vectors(int elements, int bytes, int rows, int warp_size) {
  return rows * step_vectors(elements, bytes, warp_size) + 1;
}

/// Warps of a block, a power of two: each has a step at least, if rows have so many.
TESSERA_TRAIT int gemv_blocks_warps(long long columns, int most, int warp_size) {
  int warps = 1;
  while (2 * warps <= most && 2 * warps * step_columns(warp_size) <= columns + step_columns(warp_size) - 1)
    warps *= 2;
  return warps;
}

}  // namespace tessera::kernels
