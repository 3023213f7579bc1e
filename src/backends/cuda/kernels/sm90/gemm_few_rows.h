#pragma once

#include "common/ops_params.h"
#include "common/traits.h"
#include "sm90/few_rows_tiles.h"
#include "sm90/tensor_map.h"

// gemm_few_rows.cu's arguments, the same bytes on host and device, and what it takes of shared memory.

namespace tessera::kernels {

constexpr int kFewRowsTile = kRowsOfWarpgroup;  // rows of w in a tile
constexpr int kFewRowsStep = 128;               // columns of a step, two panels of 64
constexpr int kMostFewRows = 64;                // of x
constexpr int kLeastSplitSteps = 4;             // of a block's share of a tile that several have

/// Rows of x that a kernel is made for: 16, 32 or 64.
TESSERA_TRAIT int few_rows_columns(long long m) { return m <= 16 ? 16 : m <= 32 ? 32 : 64; }

/// A warpgroup that multiplies, a warp that asks for copies, one for 16 rows' places and angles.
TESSERA_TRAIT int few_rows_threads(int columns) { return 160 + columns * 2; }

TESSERA_TRAIT int few_rows_stage_bytes(int columns) { return (kFewRowsTile + columns) * kFewRowsStep * 2; }
/// More than keep a second block off the multiprocessor (two of a product on one while another has none would
/// take twice as long, and that is where they go when the kernel before leaves multiprocessors at different
/// times), as measured: all of them are asked for at once, which the kernel before waits for.
TESSERA_TRAIT int few_rows_stages(int columns) { return columns <= 16 ? 8 : columns <= 32 ? 7 : 5; }
/// The ring, at a multiple of 1024 bytes; its barriers and a flag; a tile's sums; places and angles, or
/// another block's sums, and their barriers.
TESSERA_TRAIT int few_rows_shared_bytes(int columns) {
  return 1024 + few_rows_stages(columns) * (few_rows_stage_bytes(columns) + 16) + 16 +
         columns * few_rows_sum_stride(kFewRowsTile) * 4 + 32 + columns * (kFewRowsTile * 4 + 8);
}

static_assert(few_rows_shared_bytes(16) > 114 * 1024 && few_rows_shared_bytes(32) > 114 * 1024 &&
                  few_rows_shared_bytes(64) > 114 * 1024,
              "two blocks fit a multiprocessor");

struct FewRowsParams {
  // w in boxes of 64 columns by a tile's rows, in the order of the tile: 16 a group, see StreamParams'
  // group_shift in sm80/gemm_blocks.h. Dimensions, innermost first: columns, rows; or, where a group's halves
  // stand apart, columns, 8 rows, 2 halves, groups of a block of rows, blocks.
  TensorMap weight;
  TensorMap x;  // 64 columns by the rows that the kernel is made for; zeros beyond the last
  StreamParams product;
  FewRowsParts parts;
};

}  // namespace tessera::kernels
