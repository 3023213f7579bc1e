#pragma once

#include "common/attention_params.h"

// Arguments of align_rows.cu, the same bytes on host and device.

namespace tessera::kernels {

constexpr int kAlignRowsThreads = 256;
// Bytes. A thread writes kAlignedStep at once, and a row to the end of its last sector, which memory stores
// as one. Rows' distances are multiples of kAlignedRow: for copies 16 would do, but of rows that begin within
// a sector, or end in another line of the cache, the copy engine reads more.
constexpr int kAlignedStep = 16;
constexpr int kAlignedSector = 32;
constexpr int kAlignedRow = 64;
constexpr int kMostAlignedTensors = 4;

/// A tensor and its copy.
struct RowsToAlign {
  const void* from;
  void* to;  // (sequences, tokens, heads, row_bytes rounded up to kAlignedRow)
  // Of `from`, bytes.
  int64 sequence_stride;
  int64 token_stride;
  int64 head_stride;
  int64 sequences;
  int tokens;  // of a sequence
  int num_heads;
  int row_bytes;
  int piece;  // bytes that are loaded at once: 1, 2, 4, 8 or 16; all of the above are multiples
  int tokens_of_block;
};

struct AlignRowsParams {
  RowsToAlign tensors[kMostAlignedTensors];
};

}  // namespace tessera::kernels
