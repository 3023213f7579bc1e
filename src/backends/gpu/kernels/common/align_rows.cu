// Rows that begin anywhere, copied to rows at multiples of 16 bytes: for attention kernels
// whose copies take no others. Behind a row's end come zeros up to the end of its last sector.
//
// Grid: (groups of tokens of a sequence, tensors).

#include "common/align_rows.h"
#include "common/types.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

/// Copies tokens [begin, end) of a sequence, of all heads, 16 bytes of a row after the other, kPiece of type
/// Unit at once.
template <class Unit, int kPiece>
TESSERA_DEVICE void align_tokens(const RowsToAlign& r, int64 sequence, int begin, int end) {
  constexpr int kUnits = kAlignedStep / sizeof(Unit);
  using Piece = Vector<Unit, kPiece>;
  using Step = Vector<Unit, kUnits>;
  constexpr int kStepsOfSector = kAlignedSector / kAlignedStep;
  constexpr int kStepsOfUnit = kAlignedRow / kAlignedStep;
  const int steps = (r.row_bytes + kAlignedSector - 1) / kAlignedSector * kStepsOfSector;  // of a row
  const int distance = (r.row_bytes + kAlignedRow - 1) / kAlignedRow * kStepsOfUnit;       // of rows
  const int steps_of_token = r.num_heads * steps;
  const unsigned char* const from = static_cast<const unsigned char*>(r.from) + sequence * r.sequence_stride;
  Step* const to = static_cast<Step*>(r.to) + (sequence * r.tokens + begin) * r.num_heads * distance;
  for (int n = thread_x(); n < (end - begin) * steps_of_token; n += block_size()) {
    const int row = n / steps;
    const int token = row / r.num_heads;
    const int step_of_row = n - row * steps;
    const int byte = step_of_row * kAlignedStep;
    const unsigned char* const source =
        from + (begin + token) * r.token_stride + (row - token * r.num_heads) * r.head_stride + byte;
    Step step;
    TESSERA_UNROLL
    for (int first = 0; first < kUnits; first += kPiece) {
      const int offset = first * int{sizeof(Unit)};
      Piece piece = {};
      if (byte + offset < r.row_bytes) piece = *reinterpret_cast<const Piece*>(source + offset);
      TESSERA_UNROLL
      for (int e = 0; e < kPiece; ++e) step.element[first + e] = piece.element[e];
    }
    to[row * distance + step_of_row] = step;
  }
}

}  // namespace tessera::kernels

TESSERA_KERNEL(align_rows, kAlignRowsThreads)(TESSERA_GRID_CONSTANT AlignRowsParams p) {
  const RowsToAlign& r = p.tensors[block_y()];
  const int groups = (r.tokens + r.tokens_of_block - 1) / r.tokens_of_block;
  const int64 sequence = block_x() / groups;
  if (sequence >= r.sequences) return;
  const int begin = (block_x() - static_cast<int>(sequence) * groups) * r.tokens_of_block;
  const int end = minimum(begin + r.tokens_of_block, r.tokens);
  if (r.piece == 16) align_tokens<unsigned short, 8>(r, sequence, begin, end);
  if (r.piece == 8) align_tokens<unsigned short, 4>(r, sequence, begin, end);
  if (r.piece == 4) align_tokens<unsigned short, 2>(r, sequence, begin, end);
  if (r.piece == 2) align_tokens<unsigned short, 1>(r, sequence, begin, end);
  if (r.piece == 1) align_tokens<unsigned char, 1>(r, sequence, begin, end);
}
