#pragma once

#include "common/decode_parts.h"
#include "common/split_rows.h"
#include "sm90/tensor_map.h"

// The arguments of Hopper's attention kernels, the same bytes on host and device: WgmmaArguments of prompts,
// DecodeArguments and LatentArguments of few queries.

namespace tessera::kernels {

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
  // Of attention_f32.cu, whose maps describe what split_rows.cu wrote: (sequences, heads, tiles).
  SplitTiles q_tiles, k_tiles, v_tiles;
};

struct DecodeArguments {
  // Dimensions, innermost first: 64 elements, tokens (of a sequence, of a page, or all ragged ones), panels
  // of 64 elements, heads, sequences or pages. Boxes are of a tile's rows and all panels, or of the rows of a
  // page that is smaller and one panel; swizzled by 128 bytes.
  TensorMap k, v;
  AttentionParams params;
  DecodeParts parts;
};

struct LatentArguments {
  // Keys, whose first elements are the values; dimensions as DecodeArguments'. Boxes are of 64 elements and
  // the rows of a tile, or of a page that is smaller.
  TensorMap k;
  AttentionParams params;
  DecodeParts parts;
  int row_groups;         // of 64 packed rows
  int blocks_of_cluster;  // 1, or 2 that have neighbouring groups of rows and bring tiles to each other
};

/// Of attention_decode_combine and attention_latent_combine.
struct DecodeCombineArguments {
  AttentionParams params;
  DecodeParts parts;
  int warps_of_row;  // 1, 2 or 4: that share its pieces out
};

}  // namespace tessera::kernels
