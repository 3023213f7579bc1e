#pragma once

// Which tiles matrix/gemm.hip and gemm_blocks.hip multiply by, for the kernels and for whoever launches them.
// Includes nothing: the run-time compiler has no headers but ours.

namespace tessera::kernels {

struct GemmTiles {
  int tiles_m, tiles_n;  // of a wave, 16 x 16 outputs each
  int waves_m, waves_n;  // of a block

  constexpr int waves() const { return waves_m * waves_n; }
  constexpr int rows_m() const { return 16 * tiles_m * waves_m; }  // of the block
  constexpr int rows_n() const { return 16 * tiles_n * waves_n; }
};

/// is_large: for many rows, as many as registers and LDS hold; else for few, which wait for w: those that
/// leave blocks for all compute units. is_split: x is fp32, as three parts in LDS.
constexpr GemmTiles gemm_tiles(bool is_large, bool is_q8, bool is_split, bool has_mfma) {
  if (!is_large) return {2, 1, 1, 4};
  if (is_split) return {2, 2, 2, 4};
  // A wave holds two operands of each row of x, which RDNA 3 has twice: not many fit beside the sums.
  if (is_q8) return has_mfma ? GemmTiles{2, 4, 4, 2} : GemmTiles{2, 2, 4, 2};
  return has_mfma ? GemmTiles{4, 4, 2, 2} : GemmTiles{4, 2, 2, 4};
}

constexpr int kBlockStepColumns = 128;  // of gemm_blocks.hip: four units of any format
constexpr int kMostBlockRows = 64;      // of x, in one of its tiles

/// Rows of x of gemm_blocks.hip's tiles, for a product of m. Of numbers in parts LDS holds 32.
constexpr int gemm_blocks_rows(long long m, bool is_split) {
  return m <= 16 ? 16 : m <= 32 || is_split ? 32 : kMostBlockRows;
}

/// Its tiles with so many rows of x. Few rows of w where it is read at memory's rate, so that there are many
/// blocks, and some of them at once on a compute unit.
constexpr GemmTiles gemm_blocks_tiles(int rows, bool is_split) {
  if (rows == kMostBlockRows) return {2, 2, 2, 2};
  // A compute unit has LDS for one block with 32 rows in parts, which more of w then share.
  if (rows == 32 && is_split) return {2, 1, 1, 4};
  return {rows / 16, 1, 1, 2};
}

}  // namespace tessera::kernels
