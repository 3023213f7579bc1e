#pragma once

#include "common/traits.h"
#include "core/formats/all.h"

// What gemm_blocks.cu takes of shared memory, and how rows of blocks lie there.

namespace tessera::kernels {

constexpr int kTileRows = 16;  // rows of w that one instruction multiplies
constexpr int kTileM = 8;      // rows of x

constexpr int kPieceColumns = 256;  // of w, that a warp takes at once
constexpr int kPieceGroups = kPieceColumns / 32;
constexpr int kMostPieceWarps = 16;
constexpr int kLeastStages = 2;      // a warp's buffers
constexpr int kMostNormedRows = 2;   // of x
constexpr int kNormedRowGroups = 2;  // of 8 columns, that a thread norms

TESSERA_TRAIT int greatest_divisor_of_16(int bytes) {
  int divisor = 16;
  while (bytes % divisor != 0) divisor /= 2;
  return divisor;
}

/// Whether gemm_blocks.cu takes a format apart: not TQ1_0, whose integers are digits to the base 3, nor those
/// of codebooks, whose integers are looked up eight or four at a time.
template <class Format>
struct HasFragment {
  static constexpr bool kValue = !Format::kHasCodebook;
};
template <>
struct HasFragment<formats::TQ1_0> {
  static constexpr bool kValue = false;
};

/// Between rows of so many vectors of 16 bytes in shared memory, so that what lanes 4 g + t read of row g
/// falls into banks of their own: word t, or the pair of words t.
TESSERA_TRAIT int padded_vectors(int vectors, bool reads_pairs) {
  if (!reads_pairs) return vectors | 1;
  const int over = vectors % 8;
  return vectors - over + (over <= 2 ? 2 : over <= 6 ? 6 : 10);
}

/// A piece of a row of blocks, as 16-byte copies bring it: with the bytes around it that complete them.
template <class Format>
struct WeightPiece {
  static constexpr int kBlocks = kPieceColumns / Format::kElements;
  static constexpr int kBytes = kBlocks * Format::kBytes;
  static constexpr bool kIsAligned = kBytes % 16 == 0;
  /// Pieces begin at multiples of this, from a multiple of 16 on: rows of small blocks needn't be whole
  /// pieces.
  static constexpr int kStep = kIsAligned || kBlocks == 1 ? greatest_divisor_of_16(kBytes) : 1;
  static constexpr int kVectors = parts_of(kBytes + 16 - kStep, 16);
  /// Lanes read pairs of words where whole K blocks are multiples of 16 bytes.
  static constexpr bool kReadsPairs = Format::kElements == 256 && Format::kBytes % 16 == 0;
  static constexpr int kStrideBytes = padded_vectors(kVectors, kReadsPairs) * 16;
  static constexpr int kUnitBytes = kTileRows * kStrideBytes;
  /// A warp's buffers: some 8 KB under way, as the memory's latency asks for.
  static constexpr int kStages = larger_of(2, 9216 / kUnitBytes);
  /// Of gemm_block_bits.cu, at most; kLeastStages where rows of x take the place.
  static constexpr int kBitsStages = kUnitBytes * 3 > 9216 ? kLeastStages : 3;
};

/// Rows of x that gemm_block_bits.cu and gemm_block_stream.cu are compiled for (TESSERA_X_ROWS).
TESSERA_TRAIT int compiled_x_rows(int rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : 8; }
/// Floats that a warp of these keeps in shared memory of x in a piece: sums of 16 or 32 columns; from three
/// rows on the rows, too, as fp16, which lie so that two fall into different banks; of three or four also
/// four groups' zeros.
constexpr int kXPieceRowBytes = kPieceColumns * 2 + 64;
constexpr int kXZerosBytes = kPieceColumns / 2 * 2;  // half of the columns, as fp16
TESSERA_TRAIT int x_sums_of_piece(int x_rows) { return kPieceColumns / 16 * x_rows; }
TESSERA_TRAIT int x_floats_of_piece(int x_rows) {
  return x_sums_of_piece(x_rows) +
         (x_rows <= 2 ? 0 : (x_rows * kXPieceRowBytes + (x_rows == 4 ? kXZerosBytes : 0)) / 4);
}

/// What a warp has (buffers, and gemm_block_bits.cu's sums of x); sums of `groups_at_once` groups, fp32 of 16
/// rows of w and `x_rows` of x, or one more if that is odd; x that a block holds; cosines and sines.
TESSERA_TRAIT long long block_gemm_shared_bytes(long long warp_bytes, long long warps,
                                                long long groups_at_once, long long x_rows, long long x_bytes,
                                                long long num_pairs) {
  const long long sums = groups_at_once * kTileRows * ((x_rows + 1) / 2 * 2) * 4;
  return warps * (warp_bytes + sums) + x_bytes + 4 * 2 * num_pairs * kMostNormedRows;
}

}  // namespace tessera::kernels
