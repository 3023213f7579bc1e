#pragma once

#include "common/ops_params.h"
#include "common/traits.h"
#include "sm80/gemm_blocks_traits.h"
#include "sm90/few_rows_tiles.h"

// gemm_few_rows_blocks.cu's arguments, the same bytes on host and device, and what it takes of shared memory.

namespace tessera::kernels {

constexpr int kMostBlockRows = 64;  // of x

/// What the kernel has to know of a format.
struct BlockRowsFormat {
  int piece_bytes;  // of a row
  int unit_bytes;   // of 16, as they are in shared memory
  bool has_offsets;
};
template <class Format>
constexpr BlockRowsFormat kBlockRowsFormat = {WeightPiece<Format>::kBytes, WeightPiece<Format>::kUnitBytes,
                                              Format::kHasOffset};

/// Rows of x that a kernel is made for: 16, 32 or 64.
TESSERA_TRAIT int block_rows_columns(long long m) { return m <= 16 ? 16 : m <= 32 ? 32 : 64; }
/// Whether a kernel before makes x ready: of more rows each block would take longer for it than for w.
TESSERA_TRAIT bool block_rows_are_prepared(int columns) { return columns > 32; }
/// Warpgroups that multiply, each 64 rows of w by all of x: as many as registers allow.
TESSERA_TRAIT int block_rows_warpgroups(int columns) { return columns <= 16 ? 4 : columns <= 32 ? 3 : 2; }
TESSERA_TRAIT int block_rows_tile(int columns) { return block_rows_warpgroups(columns) * kRowsOfWarpgroup; }
/// With those that bring w and x.
TESSERA_TRAIT int block_rows_threads(int columns) {
  return (block_rows_warpgroups(columns) + (block_rows_are_prepared(columns) ? 1 : 2)) * 128;
}

/// A piece of 256 columns of x, made ready: panels of 64 columns, one more for sums of x where blocks have
/// offsets; what its rows were divided by.
TESSERA_TRAIT int block_rows_panels(const BlockRowsFormat& format) {
  return kPieceColumns / 64 + (format.has_offsets ? 1 : 0);
}
TESSERA_TRAIT int block_rows_panel_bytes(const BlockRowsFormat& format, int columns) {
  return block_rows_panels(format) * columns * 128;
}
TESSERA_TRAIT int block_rows_x_bytes(const BlockRowsFormat& format, int columns) {
  return block_rows_panel_bytes(format, columns) + columns * 4;
}
/// A step: a piece of x, and of a tile's rows of w in units of 16 rows.
TESSERA_TRAIT int block_rows_step_bytes(const BlockRowsFormat& format, int columns) {
  const int bytes =
      block_rows_panel_bytes(format, columns) + block_rows_tile(columns) / 16 * format.unit_bytes;
  return (bytes + 1023) / 1024 * 1024;
}
/// Steps of the ring, at most.
constexpr int kMostBlockStages = 6;
/// Barriers and x's factors of the steps, and a tile's sums.
TESSERA_TRAIT int block_rows_other_bytes(int columns) {
  return kMostBlockStages * (16 + columns * 4) + 16 +
         columns * few_rows_sum_stride(block_rows_tile(columns)) * 4;
}
/// Steps of the ring: as many as fit.
TESSERA_TRAIT int block_rows_stages(const BlockRowsFormat& format, int columns) {
  constexpr int kMostBytes = 227 * 1024 - 1024;  // of a multiprocessor of sm_90, from a multiple of 1024 on
  const int fit = (kMostBytes - block_rows_other_bytes(columns)) / block_rows_step_bytes(format, columns);
  return fit < kMostBlockStages ? fit : kMostBlockStages;
}
TESSERA_TRAIT int block_rows_shared_bytes(const BlockRowsFormat& format, int columns) {
  return 1024 + block_rows_other_bytes(columns) +
         block_rows_stages(format, columns) * block_rows_step_bytes(format, columns);
}

struct BlockRowsParams {
  /// Rows of w in groups of 16, see StreamParams' group_shift in sm80/gemm_blocks.h.
  StreamParams product;
  FewRowsParts parts;
  unsigned char* prepared;  // (pieces, block_rows_x_bytes)
};

/// Of the kernel that makes x ready; each warp takes four rows of a piece.
constexpr int kPrepareThreads = 128;
constexpr int kRowsOfWarp = 4;
constexpr int kLanesOfRow = 32 / kRowsOfWarp;

}  // namespace tessera::kernels
