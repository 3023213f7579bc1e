#pragma once

#include "sm80/attention_block.cuh"
#include "sm80/attention_mma_traits.h"
#include "sm80/ptx.cuh"
#include "sm80/row_pieces.cuh"

// What a block of attention_mma.cu is: its warps, which rows, keys and columns are whose, and how they wait
// for each other.

namespace tessera::kernels {

constexpr int kBlockM = TESSERA_BLOCK_M;
constexpr int kBlockN = TESSERA_BLOCK_N;
constexpr int kNumWarps = TESSERA_NUM_WARPS;
constexpr int kStages = TESSERA_STAGES;
constexpr int kThreads = kNumWarps * 32;
constexpr MmaTiles kTiles = {kBlockM, kBlockN, kNumWarps, kStages, TESSERA_MIN_BLOCKS};
constexpr MmaLayout kLayout = mma_layout(kTiles, kHeadDimQk, kHeadDimV);
constexpr int kWarpColumns = kLayout.warp_columns;
constexpr bool kSharesRows = kWarpColumns > 1;
constexpr int kWarpRows = kBlockM * kWarpColumns / kNumWarps;
// Keys whose scores a warp holds at once. Half a tile leaves registers for a third block where heads are
// small; bases of batch-invariant rows are raised for whole tiles, as in the kernels that have the same bits.
constexpr int kChunkKeys =
    !kInvariant && kHeadDimQk <= 64 && kHeadDimV <= 64 && kStages == 2 && kBlockN % 32 == 0 ? 32 : kBlockN;
// With the rows shared the next tile is asked for after the first product: its copies would stand before the
// product's operands in the queue to shared memory. Elsewhere the registers for that spill.
constexpr bool kLoadsLate = kSharesRows && kStages == 2;
// Two buffers of large heads: warps wait for one another's copies and reads of a buffer only, by barriers of
// its own, so that one may be some of a tile ahead of another. Three blocks of small heads hide what that
// saves; blocks that may start over do without, because the barriers would be in an unknown phase, and tiles
// that are widened, which are there only after that.
constexpr bool kBufferBarriers =
    !kInvariant && !kIsNarrow && kStages == 2 && (kHeadDimQk > 64 || kHeadDimV > 64);
// Whether tiles of keys come from the last to the first: ALiBi's scores rise from key to key up to the
// query, and rows' bases would with them.
constexpr bool kDescends = (TESSERA_TERMS & kTermAlibi) != 0 && !kInvariant && !kHidesTiles;
constexpr int kWarpKeys = kChunkKeys / kWarpColumns;
constexpr int kWarpDims = kHeadDimV / kWarpColumns;
constexpr int kRowTiles = kWarpRows / 16;   // 16-row tiles of a warp
constexpr int kScoreTiles = kWarpKeys / 8;  // 8-key tiles of a score row
constexpr int kOutTiles = kWarpDims / 8;
constexpr int kStrideQk = kLayout.stride_qk;
constexpr int kStrideV = kLayout.stride_v;
constexpr int kStrideO = kLayout.stride_v;
constexpr int kStrideP = kLayout.stride_p;

static_assert(kHeadDimQk % 16 == 0 && kHeadDimV % 16 == 0, "head_dims are padded to the mma's k");
static_assert(kBlockM * kWarpColumns % (16 * kNumWarps) == 0 && kBlockN % 16 == 0,
              "tiles are whole mma tiles");
static_assert(kBlockN % kChunkKeys == 0 && (kStages == 2 || kChunkKeys == kBlockN), "tiles are whole chunks");
static_assert(kStages == 1 || kStages == 2, "the loop's waits are for one or two buffers");

TESSERA_DEVICE int warp_index() { return thread_x() / 32; }
/// First of this warp's rows in the block, and what of keys and columns is its own.
TESSERA_DEVICE int warp_first_row() { return warp_index() / kWarpColumns * kWarpRows; }
TESSERA_DEVICE int warp_column() { return warp_index() % kWarpColumns; }

/// Waits for the warps that share this warp's rows.
TESSERA_DEVICE void sync_rows() {
  if (kSharesRows) {
    named_barrier_sync(1 + warp_index() / kWarpColumns, 32 * kWarpColumns);
  } else {
    sync_warp();
  }
}

/// Whether `value` holds in any thread of the warps that share this warp's rows.
TESSERA_DEVICE bool rows_any(bool value) {
  return kSharesRows ? named_barrier_any(1 + warp_index() / kWarpColumns, 32 * kWarpColumns, value)
                     : warp_any(value);
}

/// The barriers of the two buffers of K and V, in shared memory: when a tile's copies are there, and when all
/// threads have read it.
struct BufferBarriers {
  unsigned long long filled[2];
  unsigned long long emptied[2];
};

/// Waits for the end of the phase that `use` (counted from 0) of the barrier's buffer belongs to.
TESSERA_DEVICE void wait_for_use(const unsigned long long& barrier, int use) {
  const unsigned address = shared_address(&barrier);
  while (!mbarrier_has_ended(address, use & 1)) {
  }
}

/// Arrives at a buffer's `filled` once this thread's copies are done.
TESSERA_DEVICE void arrive_when_copied(const unsigned long long& barrier) {
  if (kPieceBytes<Kv> >= 4) {
    cp_async_mbarrier_arrive(shared_address(&barrier));
  } else {
    mbarrier_arrive(shared_address(&barrier));
  }
}

/// What a block keeps in shared memory beside its tiles.
struct BlockState {
  BufferBarriers buffers;
  BlockWork work;  // not in registers, which the loop needs
};
static_assert(sizeof(BlockState) == kMmaStateBytes, "mma_shared_bytes counts its bytes");

/// What the warps of a row tell each other of it.
struct RowValues {
  float of_column[kWarpColumns];
};

/// This block's row r of q or o, as far as it is a row of the problem.
TESSERA_DEVICE T* row_of(const AttentionParams& p, const TensorArgument& x, const BlockWork& w, int r) {
  const RowIndex index = row_index(w, w.row_begin + r);
  return static_cast<T*>(x.data) + query_offset(p, x, w.sequence, w.b, index.h, index.i);
}

}  // namespace tessera::kernels
