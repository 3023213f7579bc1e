#pragma once

#include "common/attention_params.h"

// Arguments of align_rows.cu, the same bytes on host and device.

namespace tessera::kernels {

constexpr int kAlignRowsThreads = 256;
// In elements of 2 bytes. A thread writes kAlignedElements at once, and a row to the end of its last sector,
// which memory stores as one. Rows' distances are multiples of kAlignedRow: for copies 8 would do, but of
// rows that begin within a sector, or end in another line of the cache, the copy engine reads more.
constexpr int kAlignedElements = 8;
constexpr int kAlignedSector = 16;
constexpr int kAlignedRow = 32;
constexpr int kMostAlignedTensors = 3;

/// A tensor of 16-bit elements and its copy.
struct RowsToAlign {
  TensorArgument from;
  void* to;  // (sequences, tokens, heads, head_dim rounded up to kAlignedRow)
  int64 sequences;
  int tokens;  // of a sequence
  int num_heads;
  int head_dim;
  int piece;  // elements that are loaded at once: 1, 2, 4 or 8; head_dim is a multiple
  int tokens_of_block;
};

struct AlignRowsParams {
  RowsToAlign tensors[kMostAlignedTensors];
};

}  // namespace tessera::kernels
