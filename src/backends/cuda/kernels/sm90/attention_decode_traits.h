#pragma once

#include "common/traits.h"

// The tiles of Hopper's attention_decode.cu and attention_decode_e4m3.cu, their threads, and what they take
// of shared memory.

namespace tessera::kernels {

constexpr int kDecodeQueryRows = 64;         // packed rows of a block
constexpr int kDecodeHalfRows = 8;           // of a warp's 16: a thread has one of each half
constexpr int kNarrowDecodeQueryRows = 16;   // of keys and values of 8 bits
constexpr int kNarrowDecodeTileRows = 8;     // of them that a product takes
constexpr int kDecodeThreads = 256;          // the warpgroup that copies, and the one that computes
constexpr int kDecodeWarps = 4;              // that compute
constexpr int kDecodeShared = 228 * 1024;    // of a multiprocessor
constexpr int kDecodeSharedReserved = 1024;  // of a block
constexpr int kMostDecodeHeadDim = 256;      // o's columns in registers
constexpr int kMostDecodeSlots = 14;
constexpr int kDecodeMaskTiles = 2;  // of masks' elements, of which one is filled while the other is read
constexpr int kDecodeMaskWarps = 3;  // that fill them

/// Blocks that a multiprocessor runs at once.
TESSERA_TRAIT int decode_blocks(int head_dim_qk, int head_dim_v) {
  return larger_of(head_dim_qk, head_dim_v) <= 128 ? 2 : 1;
}

/// Of a tile: as many bytes whatever the elements.
TESSERA_TRAIT int decode_tile_keys(int element_bytes) { return 128 / element_bytes; }

/// Elements of a row that are copied side by side, a panel: 128 bytes, or 64 that are all of a row.
TESSERA_TRAIT int decode_panel_elements(int element_bytes, int head_dim) {
  return element_bytes == 1 && head_dim > 64 ? 128 : 64;
}

/// That a row has, the last filled up with zeros.
TESSERA_TRAIT int decode_panels(int element_bytes, int head_dim) {
  const int elements = decode_panel_elements(element_bytes, head_dim);
  return (head_dim + elements - 1) / elements;
}

/// A tile of keys or of values: decode_tile_keys() rows of whole panels.
TESSERA_TRAIT int decode_slot_bytes(int element_bytes, int head_dim_qk, int head_dim_v) {
  const int head_dim = larger_of(head_dim_qk, head_dim_v);  // whose panels are not smaller
  return decode_panels(element_bytes, head_dim) * decode_panel_elements(element_bytes, head_dim) * 128;
}

/// The queries of a block that has a multiprocessor for itself, for which there are no registers then.
TESSERA_TRAIT int decode_query_bytes(int element_bytes, int head_dim_qk, int head_dim_v) {
  return element_bytes == 1 || decode_blocks(head_dim_qk, head_dim_v) == 2
             ? 0
             : decode_panels(element_bytes, head_dim_qk) * kDecodeQueryRows * 128;
}

/// Columns of o that the lanes of a warp share out.
TESSERA_TRAIT int decode_merged_columns(int head_dim_v) { return (head_dim_v + 63) / 64 * 64; }

/// Where the warps that have keys of 8 bits leave their results to one another: a tile's rows, and of all
/// rows the maximum and the sum.
TESSERA_TRAIT int decode_merge_bytes(int element_bytes, int head_dim_v) {
  return element_bytes == 1
             ? kDecodeWarps *
                   (kNarrowDecodeTileRows * decode_merged_columns(head_dim_v) + kNarrowDecodeQueryRows * 2) *
                   4
             : 0;
}

/// A row of a mask's elements beside a tile of keys, so that rows that follow one another lie in other banks.
/// mask_bytes: of an element, 0 if there is no such mask.
TESSERA_TRAIT int decode_mask_row_bytes(int element_bytes, int mask_bytes) {
  return mask_bytes == 0 ? 0 : decode_tile_keys(element_bytes) * mask_bytes + 16;
}

/// Of an additive and a boolean mask: kDecodeMaskTiles tiles, and two barriers of each.
TESSERA_TRAIT int decode_masks_bytes(int element_bytes, int additive_bytes, int boolean_bytes) {
  const int rows = element_bytes == 1 ? kNarrowDecodeQueryRows : kDecodeQueryRows;
  const int row_bytes = decode_mask_row_bytes(element_bytes, additive_bytes) +
                        decode_mask_row_bytes(element_bytes, boolean_bytes);
  return row_bytes == 0 ? 0 : kDecodeMaskTiles * (rows * row_bytes + 16);
}

/// SharedStorage: the slots, two barriers of each, the queries, the part, masks_bytes, and what results are
/// merged in.
TESSERA_TRAIT int decode_shared_bytes_of(int slots, int element_bytes, int head_dim_qk, int head_dim_v,
                                         int masks_bytes) {
  return slots * (decode_slot_bytes(element_bytes, head_dim_qk, head_dim_v) + 16) + 32 +
         decode_query_bytes(element_bytes, head_dim_qk, head_dim_v) + masks_bytes +
         decode_merge_bytes(element_bytes, head_dim_v);
}

TESSERA_TRAIT int decode_slots(int element_bytes, int head_dim_qk, int head_dim_v, int masks_bytes) {
  const int bytes = kDecodeShared / decode_blocks(head_dim_qk, head_dim_v) - kDecodeSharedReserved -
                    decode_shared_bytes_of(0, element_bytes, head_dim_qk, head_dim_v, masks_bytes);
  const int slots = bytes / (decode_slot_bytes(element_bytes, head_dim_qk, head_dim_v) + 16);
  return slots < kMostDecodeSlots ? slots : kMostDecodeSlots;
}

}  // namespace tessera::kernels
