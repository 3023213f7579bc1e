#pragma once

#include "common/attention_constants.cuh"
#include "sm90/attention_e4m3_traits.h"
#include "sm90/attention_f32_traits.h"
#include "sm90/attention_wgmma_traits.h"
#include "sm90/query_tiles.cuh"

// What sm90/attention_wgmma.cu, attention_e4m3.cu, attention_f32.cu and attention_wide.cu are compiled with,
// and what follows from it: tiles, warpgroups and panels in shared memory.

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
#ifdef TESSERA_TILE_SLOTS
constexpr int kTileSlots = TESSERA_TILE_SLOTS;
#else
constexpr int kTileSlots = 3;
#endif
constexpr WgmmaTiles kTiles = {kBlockM, kBlockN, kStages, kQBuffers, kTakesTurns, kNumStored, kTileSlots};
static_assert((kWidens || kIsE4M3) == (kNumStored > 0), "tiles that are widened or transposed need buffers");

// Warpgroups that share rows of queries, each with its own columns of o (attention_wide.cu).
#ifdef TESSERA_COLUMN_GROUPS
constexpr int kColumnGroups = TESSERA_COLUMN_GROUPS;
#else
constexpr int kColumnGroups = 1;
#endif
constexpr int kConsumers = wgmma_consumers(kTiles) * kColumnGroups;
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
                               : kColumnGroups > 1      ? 56
                               : kConsumers == 1        ? 56
                               : kConsumers == 2        ? 40
                                                        : 32;
constexpr int kComputeRegisters = kConsumers == 1     ? 248
                                  : kConsumers == 3   ? 160
                                  : kWidens           ? 216
                                  : kHasModifier      ? 216
                                  : kGathers          ? 216
                                  : kColumnGroups > 1 ? 224
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

// Columns of v and o that a warpgroup has; the last of several may have fewer. Whole panels of them.
constexpr int kOwnColumns =
    kColumnGroups == 1 ? kHeadDimV
                       : parts_of(parts_of(kHeadDimV, kPanelElements), kColumnGroups) * kPanelElements;

// The mask that is copied: a warpgroup's rows of it in panels of 128 bytes.
constexpr int kMaskElementBytes = kCopiedMask == kTermBooleanMask ? mask_element_bytes(kMaskU8)
                                  : kCopiedMask != 0              ? mask_element_bytes(kAdditiveMaskDType)
                                                                  : 0;
constexpr int kMaskPanels = parts_of(kBlockN * kMaskElementBytes, kPanelRowBytes);
constexpr int kMaskPanelBytes = 64 * kPanelRowBytes;

static_assert(!kPacks || (!kInvariant && !kHasModifier && !kIsE4M3 && !kIsSplit && kCopiedMask == 0),
              "packed rows are attention_wgmma.cu's own loop's and attention_wide.cu's, of masks in memory");
static_assert(kBlockM % 64 == 0 && kConsumers >= 1 && kConsumers <= 3, "one to three warpgroups of 64 rows");
static_assert(kBlockN % 16 == 0 && kBlockN <= 256, "a tile of keys is one product's n, and whole steps of k");
static_assert(kHeadDimQk % 16 == 0 && kHeadDimV % 16 == 0 && kOwnColumns <= 256,
              "whole steps of k; one product's n");
static_assert(kColumnGroups == 1 || kBlockM == 64, "all warpgroups have the same rows");

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
/// Of a tile's groups of 64 queries that which this warpgroup has, and of those of 16 this warp's.
TESSERA_DEVICE int row_group() { return kColumnGroups == 1 ? consumer_index() : 0; }
TESSERA_DEVICE int row_warp() { return kColumnGroups == 1 ? consumer_warp() : consumer_warp() % 4; }
/// Of o, the first that this warpgroup has.
TESSERA_DEVICE int first_own_column() { return kColumnGroups == 1 ? 0 : consumer_warp() / 4 * kOwnColumns; }

}  // namespace tessera::kernels
