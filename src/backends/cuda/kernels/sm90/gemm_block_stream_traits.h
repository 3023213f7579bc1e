#pragma once

#include "sm80/gemm_blocks_traits.h"

// What sm90/gemm_block_stream.cu takes of shared memory.

namespace tessera::kernels {

constexpr int kSlotPieces = 8;  // of each row of w in a slot, a warp each
constexpr int kTeams = 2;       // of warps, each of which takes a slot
constexpr int kMostSlots = 12;  // a multiple of kTeams, as their number always is
static_assert(kMostSlots % kTeams == 0);
/// Asked for before the kernel waits for the one that makes x, whose copies would stand behind more of them.
constexpr int kEarlySlots = 2;
constexpr int kBlockStreamThreads = (kTeams * kSlotPieces + 1) * 32;  // at most; the last warp copies
constexpr int kMostBoxBytes = 2048;  // of a row: a box has at most 256 elements, of 8 bytes

/// A slot: neighbouring pieces of 16 rows of w as the copy engine brings them, in one box or two.
template <class Format>
struct WeightSlot {
  using Piece = WeightPiece<Format>;
  static TESSERA_TRAIT int stride_bytes(int pieces) {
    return padded_vectors(parts_of(pieces * Piece::kBytes, 16), Piece::kReadsPairs) * 16;
  }
  static constexpr int kBoxes = stride_bytes(kSlotPieces) <= kMostBoxBytes ? 1 : 2;
  static constexpr int kBoxPieces = kSlotPieces / kBoxes;
  static constexpr int kStrideBytes = stride_bytes(kBoxPieces);  // between rows
  static constexpr int kBoxBytes = kTileRows * kStrideBytes;
  static constexpr int kBytes = kBoxes * kBoxBytes;
  static_assert(kStrideBytes <= kMostBoxBytes && kBoxPieces * Piece::kBytes % 8 == 0);
};

}  // namespace tessera::kernels
