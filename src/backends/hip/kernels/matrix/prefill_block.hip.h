#pragma once

#include "common/attention_block.cuh"
#include "matrix/attention_prefill_traits.h"
#include "matrix/key_tiles.hip.h"

#ifndef TESSERA_INVARIANT
#define TESSERA_INVARIANT 0
#endif

// What a workgroup of attention_prefill.hip is: its tiles, its LDS and what a lane has of its rows.

namespace tessera::kernels {

constexpr int kBlockM = TESSERA_BLOCK_M;
constexpr int kBlockN = TESSERA_BLOCK_N;
constexpr int kNumWaves = TESSERA_NUM_WARPS;
constexpr int kMinWaves = TESSERA_MIN_WAVES;
constexpr bool kPadded = TESSERA_PADDED != 0;
constexpr bool kSharedQ = TESSERA_SHARED_Q != 0;
constexpr bool kPrefetch = TESSERA_PREFETCH != 0;
// A row's bits may not depend on what it doesn't see. So infinities and NaN in values become 0 on their way,
// and where a workgroup has met some, the plain loop looks which rows see them. Keys are taken in segments.
constexpr bool kInvariant = TESSERA_INVARIANT != 0;

constexpr MatrixPrefillTiles kTiles = {kBlockM, kBlockN, kNumWaves, kMinWaves, kSharedQ, kPrefetch};
constexpr MatrixPrefillShape kShape = {kHeadDimQk, kHeadDimV, sizeof(T)};
constexpr MatrixPrefillLayout kLayout = matrix_prefill_layout(kTiles, kMatrixUnit, kShape);

constexpr int kTile = kLargestTile;
constexpr int kThreads = kNumWaves * kWarpSize;
constexpr int kWaveRows = kBlockM / kNumWaves;
constexpr int kColumnTiles = kWaveRows / kTile;
constexpr int kKeyTiles = kBlockN / kTile;
constexpr int kDimTiles = (kHeadDimV + kTile - 1) / kTile;
constexpr int kStepsQk = kHeadDimQk / kOperandK;
constexpr int kStepsOfTile = kTile / kOperandK;     // operands that a tile of scores becomes
constexpr int kScores = kTile * kTile / kWarpSize;  // of a tile, a lane's
constexpr int kSlotElements = 16 / int{sizeof(T)};

using QkRows = SlotRows<kHeadDimQk / kSlotElements>;  // a key's or query's elements
using VRows = SlotRows<kBlockN / kSlotElements>;      // a dim's keys
using Fragment = Operand<T, kTile>;
using Tile = Accumulator<kTile>;
using KeyPart = TilePart<T, Kv, kBlockN, kHeadDimQk, 1, kThreads, kVector, kPadded, kPaged>;
using ValuePart = TilePart<T, Kv, kBlockN, kHeadDimV, 4, kThreads, kVector, kPadded, kPaged>;

struct SharedStorage {
  Word4 slots[kLayout.k + kLayout.v + kLayout.q];

  TESSERA_DEVICE Word4* k() { return slots; }
  TESSERA_DEVICE Word4* v() { return slots + kLayout.k; }
  TESSERA_DEVICE Word4* q() { return slots + kLayout.k + kLayout.v; }
};

static_assert(kHasMatrixInstructions<T>,
              "RDNA multiplies fp32 on no matrix unit: common/attention_tiled.cu does");
static_assert(kHeadDimQk % kOperandK == 0 && kHeadDimV % kOperandK == 0,
              "head_dims are padded to the operands' k");
static_assert(kBlockM % (kNumWaves * kTile) == 0 && kBlockN % kTile == 0, "tiles are whole matrix tiles");
static_assert(sizeof(SharedStorage) == kLayout.shared_bytes() && sizeof(SharedStorage) <= kSharedBytes,
              "the tiles do not fit in LDS");
constexpr int kPrefetchRegisters = kPrefetch ? int{sizeof(KeyPart) + sizeof(ValuePart)} / 4 : 0;
constexpr int kQueryRegisters = kSharedQ ? 0 : kColumnTiles * kStepsQk * Fragment::kWords;
constexpr int kLoopRegisters =
    kColumnTiles * (kDimTiles + kKeyTiles) * kScores + kQueryRegisters + kPrefetchRegisters;
static_assert(kIsNarrow ? kLoopRegisters <= matrix_prefill_registers(kTiles, kMatrixUnit, kShape)
                        : kLoopRegisters == matrix_prefill_registers(kTiles, kMatrixUnit, kShape),
              "the host counts the registers that these are");
static_assert(kLoopRegisters < registers_of_wave(kMatrixUnit, kMinWaves),
              "the tiles do not fit in a wave's registers");

/// A row's base before its first key: the weight of any score above it is infinite.
constexpr float kLowestBase = -3.402823466e+38f;

/// A lane's rows.
struct RowSums {
  float base[kColumnTiles];  // in units of log2
  float sum[kColumnTiles];   // of this lane's keys' weights
  Tile o[kColumnTiles][kDimTiles];
};

/// The wave's number, the same in all its lanes for the compiler as well.
TESSERA_DEVICE int wave_index() { return __builtin_amdgcn_readfirstlane(thread_x() / kWarpSize); }

/// This workgroup's row r of q or o, or its last one.
TESSERA_DEVICE T* row_of(const AttentionParams& p, const TensorArgument& x, const BlockWork& w, int r) {
  const RowIndex index = row_index(w, minimum(w.row_begin + r, w.num_rows - 1));
  return static_cast<T*>(x.data) + query_offset(p, x, w.sequence, w.b, index.h, index.i);
}

}  // namespace tessera::kernels
