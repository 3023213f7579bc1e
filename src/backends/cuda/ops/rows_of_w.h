#pragma once

#include <cstdint>
#include <span>

#include "backends/cuda/ops/block_rows_products.h"
#include "common/ops_params.h"
#include "core/rounding.h"
#include "sm80/gemm_blocks_traits.h"
#include "tessera/dtype.h"

// The weights of a product with blocks, as the kernels for few rows of x share them out.

namespace tessera::cuda {

inline constexpr std::int64_t kSystemSharedBytes = 1024;  ///< of each block of a grid

/// WeightPiece and WeightSlot of a format; zeros if the kernels do not take it.
struct PieceBytes {
  std::int64_t row = 0;       ///< of a piece
  std::int64_t unit = 0;      ///< of a buffer
  int stages = 0;             ///< of gemm_blocks.cu's warps
  int bits_stages = 0;        ///< of gemm_block_bits.cu's, at most
  std::int64_t slot = 0;      ///< of gemm_block_stream.cu
  std::int64_t slot_row = 0;  ///< of a row of w in a box of it
};

PieceBytes piece_bytes(DType weight);

/// All rows of w, or those of one of its two types.
struct RowsOfW {
  kernels::StreamParams stream;  ///< whose groups of rows are set
  DType dtype;

  PieceBytes piece = piece_bytes(dtype);
  /// Of w, that a group makes.
  std::int64_t out_rows = stream.gemm.gated == 0 ? kernels::kTileRows : kernels::kTileRows / 2;
  std::int64_t columns = stream.gemm.gated == 0 ? stream.gemm.n : stream.gemm.n / 2;
  std::int64_t groups = divide_up(columns, out_rows);

  bool is_taken() const { return has_pieces(stream, piece.row) && columns >= out_rows; }
  std::int64_t pieces() const { return stream.gemm.k / kernels::kPieceColumns; }  ///< of a row
  std::int64_t row_bytes() const { return pieces() * piece.row; }
  bool is_normed() const { return stream.norm_weight.data != nullptr; }
  /// Of a head, that are rotated.
  std::int64_t num_pairs() const { return stream.rope.num_heads == 0 ? 0 : stream.rope.rotation.num_pairs; }
  /// Whether a block's threads can norm rows of x and make their turns; true if they needn't.
  bool can_be_normed_by(std::int64_t threads) const {
    return !is_normed() || (stream.gemm.k <= threads * kernels::kNormedRowGroups * kernels::kGroupSize &&
                            num_pairs() <= threads);
  }
};

std::int64_t count_groups(std::span<const RowsOfW> w);

/// How many of a block's groups share what a warp holds of x: all in as few rounds of equal sizes as fit,
/// fits(at_once); one if none do.
template <class Fits>
std::int64_t groups_at_once(std::int64_t groups, const Fits& fits) {
  constexpr std::int64_t kMostAtOnce = 16;
  std::int64_t at_once = 1;
  for (std::int64_t rounds = divide_up(groups, kMostAtOnce); rounds <= groups; ++rounds) {
    at_once = divide_up(groups, rounds);
    if (fits(at_once)) break;
  }
  return at_once;
}

/// How many of `blocks`, two or more, take the upper rows, so that the last to end ends soonest. A group's
/// time is taken to be as its bytes. There are groups for all blocks.
std::int64_t blocks_of_upper(const RowsOfW& upper, const RowsOfW& lower, std::int64_t blocks);

}  // namespace tessera::cuda
