#pragma once

#include "common/attention_constants.cuh"
#include "sm90/attention_e4m3_traits.h"
#include "sm90/attention_f32_traits.h"
#include "sm90/attention_wgmma_traits.h"
#include "sm90/query_tiles.cuh"
#include "sm90/ring_barriers.cuh"

// What sm90/attention_wgmma.cu, attention_e4m3.cu and attention_f32.cu are compiled with, and what follows
// from it: tiles, warpgroups, shared memory and the rings of buffers through which tiles come.

namespace tessera::kernels {

#ifdef TESSERA_Q_DTYPE
using Q = TESSERA_Q_DTYPE;  // of q, and of what is multiplied
#else
using Q = T;
#endif
// Numbers of fp32 come as two of fp16 (common/split_rows.cu): all highs of a row, then its lows.
template <class Stored>
struct OperandOf {
  using Type = Stored;
};
template <>
struct OperandOf<float> {
  using Type = f16;
};
using Operand = OperandOf<Q>::Type;
constexpr bool kIsSplit = sizeof(Operand) < sizeof(Q);  // attention_f32.cu
constexpr int kPlanes = kIsSplit ? 2 : 1;

constexpr int kBlockM = TESSERA_BLOCK_M;
constexpr int kBlockN = TESSERA_BLOCK_N;
constexpr int kStages = TESSERA_STAGES;
constexpr int kQBuffers = TESSERA_Q_BUFFERS;
constexpr bool kTakesTurns = TESSERA_TURNS != 0;
constexpr int kAdditiveMaskDType = TESSERA_MASK_DTYPE;
constexpr int kCopiedMask = TESSERA_COPIED_MASK;
constexpr int kNumStored = TESSERA_STORED;
constexpr bool kIsE4M3 = sizeof(Q) == 1;  // and so are k and v: attention_e4m3.cu
constexpr bool kWidens = sizeof(Kv) < sizeof(Q);
constexpr WgmmaTiles kTiles = {kBlockM, kBlockN, kStages, kQBuffers, kTakesTurns, kNumStored};
static_assert((kWidens || kIsE4M3) == (kNumStored > 0), "tiles that are widened or transposed need buffers");

constexpr int kConsumers = wgmma_consumers(kTiles);
constexpr int kConsumerWarps = 4 * kConsumers;
constexpr int kThreads = 32 * (kIsE4M3 ? narrow_wgmma_warps(kTiles) : wgmma_warps(kTiles));
#ifdef TESSERA_MODIFIER
constexpr bool kHasModifier = true;
#else
constexpr bool kHasModifier = false;
#endif
// Whether warps copy the rows of pages in place of the copy engine (attention_gathering.cuh).
#ifdef TESSERA_GATHERS
constexpr bool kGathers = true;
#else
constexpr bool kGathers = false;
#endif
// Of 64 K registers; those that don't compute need few, but for a modifier's bounds and rows' addresses.
constexpr int kCopyRegisters = kHasModifier || kGathers ? 72
                               : kConsumers == 1        ? 56
                               : kConsumers == 2        ? 40
                                                        : 32;
constexpr int kComputeRegisters = kConsumers == 1   ? 248
                                  : kConsumers == 3 ? 160
                                  : kWidens         ? 216
                                  : kHasModifier    ? 216
                                  : kGathers        ? 216
                                                    : 232;
// Bytes that may be stored at once wherever a row of o begins, which divide it: 2, 4, 8 or 16.
#ifndef TESSERA_O_PIECE
#define TESSERA_O_PIECE 16
#endif
constexpr int kOPiece = TESSERA_O_PIECE;
constexpr int kWideningWarps = kWidens ? 4 : 0;
#ifndef TESSERA_INVARIANT
#define TESSERA_INVARIANT 0
#endif
// A batch-invariant problem: tiles of keys from the first to the last (attention_segments.cuh).
constexpr bool kInvariant = TESSERA_INVARIANT != 0;
static_assert(!kInvariant || (kBlockN == 64 && !kWidens && !kGathers && !kHasModifier && TESSERA_TERMS == 0),
              "bases are raised for 64 keys; others take what this doesn't");
static_assert(!kHasModifier || kConsumers < 3, "three warpgroups leave no registers for a modifier");
static_assert(!kHasModifier || !kWidens, "nor does a fourth one");
static_assert(!kGathers || (kConsumers == 2 && !kWidens && !kHasModifier), "nor for warps that gather");

// Panels by a tile's rows; see descriptor_of_rows.
constexpr int kPanelColumns = kPanelRowBytes / static_cast<int>(sizeof(Operand));
constexpr int kPanelsQk = kPlanes * parts_of(kHeadDimQk, kPanelColumns);
constexpr int kPanelsV = kPlanes * parts_of(kHeadDimV, kPanelColumns);
constexpr int kQPanelBytes = kBlockM * kPanelRowBytes;
constexpr int kKvPanelBytes = kBlockN * kPanelRowBytes;
// Keys and values of 8 bits, before they are widened or transposed: panels of twice as many elements.
constexpr int kStoredPanelsQk = parts_of(kHeadDimQk, kPanelRowBytes);
constexpr int kStoredPanelsV = parts_of(kHeadDimV, kPanelRowBytes);
constexpr int kStoredBuffers = larger_of(kNumStored, 1);
constexpr int kStoredBytes =
    kIsE4M3 ? kStoredPanelsV * kKvPanelBytes : wgmma_stored_bytes(kTiles, kHeadDimQk, kHeadDimV);
constexpr int kVBytes = kIsE4M3 ? kHeadDimV * kBlockN : kPanelsV * kKvPanelBytes;

// The mask that is copied: a warpgroup's rows of it in panels of 128 bytes.
constexpr int kMaskElementBytes = kCopiedMask == kTermBooleanMask ? mask_element_bytes(kMaskU8)
                                  : kCopiedMask != 0              ? mask_element_bytes(kAdditiveMaskDType)
                                                                  : 0;
constexpr int kMaskPanels = parts_of(kBlockN * kMaskElementBytes, kPanelRowBytes);
constexpr int kMaskPanelBytes = 64 * kPanelRowBytes;

static_assert(kBlockM % 64 == 0 && kConsumers >= 1 && kConsumers <= 3, "one to three warpgroups of 64 rows");
static_assert(kBlockN % 16 == 0 && kBlockN <= 256, "a tile of keys is one product's n, and whole steps of k");
static_assert(kHeadDimQk % 16 == 0 && kHeadDimV % 16 == 0 && kHeadDimV <= 256,
              "whole steps of k; one product's n");

/// A query tile and its keys, as all threads of the block read them.
struct TileSlot {
  int index;  // or kNoTile
  KeyTiles keys;
  float slope;  // ALiBi's
  QueryTile tile;
  float score_scale;  // of what is stored in 8 bits
  float value_scale;
};
constexpr int kNoTile = -1;

struct SharedStorage {
  unsigned char q[kQBuffers][kPanelsQk * kQPanelBytes];
  unsigned char k[kStages][kPanelsQk * kKvPanelBytes];
  unsigned char v[kStages][kVBytes];
  unsigned char stored[kStoredBuffers][kStoredBytes];  // what has to be widened or transposed
  TileSlot tiles[kTileSlots];
  RingBarriers<kTileSlots> tile_ring;
  RingBarriers<kQBuffers> q_ring;
  RingBarriers<kStages> k_ring, v_ring;
  RingBarriers<kStoredBuffers> stored_ring;
};

/// A tile of the copied mask for each warpgroup, which waits for its own alone. It lies behind SharedStorage.
struct MaskStorage {
  unsigned char tiles[kConsumers][larger_of(kMaskPanels, 1) * kMaskPanelBytes];
  RingBarriers<1> rings[kConsumers];
};
constexpr int kMaskOffset = parts_of(sizeof(SharedStorage), 1024) * 1024;
constexpr int kSharedBytes = kCopiedMask != 0 ? kMaskOffset + static_cast<int>(sizeof(MaskStorage))
                                              : static_cast<int>(sizeof(SharedStorage));
static_assert(kSharedBytes <= 227 * 1024, "the tiles do not fit in shared memory");
static_assert(kSharedBytes == (kIsE4M3 ? narrow_wgmma_shared_bytes(kTiles, kHeadDimQk, kHeadDimV)
                               : kIsSplit
                                   ? split_wgmma_shared_bytes(kTiles, kHeadDimQk, kHeadDimV)
                                   : wgmma_shared_bytes(kTiles, kHeadDimQk, kHeadDimV, kMaskElementBytes)),
              "the host asks for as much");

/// The 16-byte chunk `chunk` of a row of a tile, in panels that are swizzled as all that is copied. row:
/// shared_row of the tile.
TESSERA_DEVICE unsigned shared_row(unsigned tile, int row) {
  return tile + static_cast<unsigned>(row * kPanelRowBytes + row % 8 * 16);
}
TESSERA_DEVICE unsigned chunk_of_row(unsigned row, int chunk) {
  return (row ^ static_cast<unsigned>(chunk % 8 * 16)) + chunk / 8 * kKvPanelBytes;
}

/// Of the warp that asks for copies.
TESSERA_DEVICE int copying_lane() { return thread_x() % 32; }
/// Of the warpgroups that compute, which this is; the same for all lanes, as the compiler can see.
TESSERA_DEVICE int consumer_index() { return __shfl_sync(0xffffffffu, thread_x() / 128, 0) - 1; }
/// Of their warps.
TESSERA_DEVICE int consumer_warp() { return thread_x() / 32 - 4; }

}  // namespace tessera::kernels
