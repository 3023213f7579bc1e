#pragma once

#include "common/attention_params.h"

// The argument of sm90/attention_wgmma.cu, the same bytes on host and device.

namespace tessera::kernels {

/// What cuTensorMapEncodeTiled writes: how a tensor of up to five dimensions lies in memory, and in which
/// boxes it is copied. Part of a kernel's argument (__grid_constant__), whose address the copies take.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

struct WgmmaArguments {
  // Dimensions, innermost first: head_dim, tokens (of a sequence, or all ragged ones), heads, sequences.
  // Boxes are panels: 64 elements, 128 bytes, of a tile's rows, swizzled by 128 bytes; zeros outside of the
  // tensor.
  TensorMap q, k, v;
  AttentionParams params;
  int* tickets;  // null: each block takes every grid-th tile. Else 0 at the start; blocks draw their tiles
                 // from it
  int* spoilt;   // (tiles, warps that compute): lists of what has to be done again; uninitialised
  // The mask that is copied: keys, queries, heads, sequences, of which those that it is broadcast along are
  // one. Boxes are 128 bytes of the rows of a warpgroup.
  TensorMap mask;
};

}  // namespace tessera::kernels
