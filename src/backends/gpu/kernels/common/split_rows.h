#pragma once

#include "common/attention_params.h"
#include "common/traits.h"

// Arguments of split_rows.cu, and what it writes: the same bytes on host and device.

namespace tessera::kernels {

constexpr int kSplitThreads = 256;
constexpr int kSplitQueries = 64;   // of q that are split together, whatever the attention kernel's tile
constexpr int kSplitElements = 8;   // of a row, that a thread splits at once
constexpr int kSplitPanel = 64;     // a row's highs, and its lows, are filled up with zeros to a multiple
constexpr int kSplitLowShift = 11;  // lows are stored times 2^kSplitLowShift
// A tile's largest number is stored as one of [2^kSplitTop, 2^(kSplitTop + 1)).
constexpr int kSplitTop = 14;

/// Lanes that have a row together: a power of two.
TESSERA_TRAIT int split_lanes_of_row(int row_elements) {
  int lanes = kSplitPanel / kSplitElements;
  while (2 * lanes * kSplitElements < row_elements) lanes *= 2;
  return lanes;
}
/// Rows of a tile, of each of its threads. There are kernels for up to 4, 6, 8 and 10.
TESSERA_TRAIT int split_rows_of_thread(int rows_of_tile, int row_elements) {
  return parts_of(rows_of_tile * split_lanes_of_row(row_elements), kSplitThreads);
}

/// What rows of one head that were split together have in common.
struct alignas(16) SplitTile {
  float scale;  // a power of two: times this, what is stored is what was
  float least;  // of the largest magnitudes of its rows the least
  int loses;    // whether some number but 0 is stored with fewer bits than fp32 has
  int unused;
};

/// q, k or v. Stored as f16: (sequences, heads, tokens, row_elements), of which the first half of a row are
/// highs and the others lows. What comes from pages is stored as padded sequences are.
struct RowsToSplit {
  TensorArgument from;
  void* to;
  SplitTile* tiles;  // (batch, num_heads, tiles_of_head)
  int64 tokens;      // of a sequence, or all ragged ones
  int num_heads;
  int head_dim;
  int row_elements;   // 2 * head_dim rounded up to kSplitPanel
  int rows_of_tile;   // from the sequence's first on
  int tiles_of_head;  // of the longest sequence
  int piece;          // elements that are loaded at once: 1, 2 or 4; head_dim is a multiple
  int is_q;
};

struct SplitRowsParams {
  AttentionParams attention;  // sequences
  RowsToSplit tensors[3];
};

/// Of an attention kernel that takes what was split.
struct SplitTiles {
  const SplitTile* tiles;
  int tiles_of_head;
};

}  // namespace tessera::kernels
