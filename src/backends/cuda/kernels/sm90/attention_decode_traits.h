#pragma once

#include "common/traits.h"

// attention_decode.cu's tiles of Hopper, its threads, and what they take of shared memory.

namespace tessera::kernels {

constexpr int kDecodeQueryRows = 64;  // packed rows of a block
constexpr int kDecodeTileKeys = 64;
constexpr int kDecodeThreads = 256;       // the warpgroup that copies, and the one that computes
constexpr int kDecodePanelElements = 64;  // of a row, as they are copied: 128 bytes
constexpr int kDecodePanelBytes = kDecodeTileKeys * 128;
constexpr int kDecodeSharedOfBlock = 113 * 1024;  // where two blocks share a multiprocessor
constexpr int kMostDecodeSlots = 14;

/// Blocks that a multiprocessor runs at once.
TESSERA_TRAIT int decode_blocks(int head_dim_qk, int head_dim_v) {
  return larger_of(head_dim_qk, head_dim_v) <= 128 ? 2 : 1;
}

/// A tile of keys or of values.
TESSERA_TRAIT int decode_slot_bytes(int head_dim_qk, int head_dim_v) {
  return larger_of(head_dim_qk, head_dim_v) / 64 * kDecodePanelBytes;
}

TESSERA_TRAIT int decode_slots(int head_dim_qk, int head_dim_v) {
  const int bytes = kDecodeSharedOfBlock * (3 - decode_blocks(head_dim_qk, head_dim_v)) - 1024;
  const int slots = bytes / decode_slot_bytes(head_dim_qk, head_dim_v);
  return slots < kMostDecodeSlots ? slots : kMostDecodeSlots;
}

/// SharedStorage: the slots, two barriers of each, and the part.
TESSERA_TRAIT int decode_wgmma_shared_bytes(int slots, int head_dim_qk, int head_dim_v) {
  return slots * (decode_slot_bytes(head_dim_qk, head_dim_v) + 16) + 32;
}

}  // namespace tessera::kernels
