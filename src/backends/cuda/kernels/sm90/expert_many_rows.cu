// Products of slots of a mixture of experts with 16-bit weights of x's type, many of an expert: bound by the
// tensor cores, or by reading the weights once.
//
//                    x: up to 256 slots          a step: 64 columns of
//               +-------------------------+         w  [128 rows] 16 KB, by the copy engine
//   w: 64 rows  | warpgroup 0             |         x  [slots] 32 KB, gathered by warpgroup 2, 16 bytes a
//   copy
//      64       | warpgroup 1             |
//               +-------------------------+      ring: 4 steps
//
// w's rows are wgmma's m and slots its n, as many as the tile has, rounded up to 32: an expert of few slots
// costs few. A slot is a column of its own, so that its sums don't depend on which others are in its tile.
// Results go through shared memory, transposed on the way, so that a slot's lie side by side.
//
// Blocks stay, one a multiprocessor. An item is a tile of an expert's slots by one of its rows of w; those of
// the same slots are neighbours and read x from the L2 cache. Which items there are nobody but the device
// knows: those that copy walk over routing.offsets and tell the others.

#include "sm90/expert_items.cuh"
#include "sm90/expert_many_rows.h"
#include "sm90/ring_barriers.cuh"
#include "sm90/wgmma.cuh"

namespace tessera::kernels {

constexpr int kWarpgroup = 128;
constexpr int kRowBytes = kExpertRowsStep * 2;
constexpr int kChunks = kRowBytes / 16;                     // of a row
constexpr int kGatheredRows = kWarpgroup / kChunks;         // at once
constexpr int kGathers = kExpertRowsSlots / kGatheredRows;  // of a step, by each thread, at most

struct Stage {
  unsigned char w[kExpertRowsTile * kRowBytes];
  unsigned char x[kExpertRowsSlots * kRowBytes];
};
/// An item, as those that multiply read it.
struct ItemSlot {
  int expert;  // -1: there are no more
  int first_row;
  int count;
  int slots[kExpertRowsSlots];  // of all slots
};
struct SharedStorage {
  Stage stages[kExpertRowsStages];
  unsigned char results[kExpertRowsWarpgroups][kExpertStoredBuffers][kExpertStoredSlots * kRowBytes];
  ItemSlot items[kExpertRowsItems];
  RingBarriers<kExpertRowsStages> ring;
  RingBarriers<kExpertRowsItems> item_ring;
};
static_assert(sizeof(Stage) == expert_rows_stage_bytes() &&
                  sizeof(SharedStorage) <= expert_rows_shared_bytes(),
              "the host asks for as much");

TESSERA_DEVICE int steps_of(const ExpertRowsParams& p) {
  return static_cast<int>((p.product.gemm.k + kExpertRowsStep - 1) / kExpertRowsStep);
}

/// Asks for copies, step by step. By a warpgroup, of which a thread has a chunk of every 16th row of x.
template <class T>
TESSERA_DEVICE void copy_items(const ExpertRowsParams& p, SharedStorage& smem) {
  const GemmParams& g = p.product.gemm;
  const int thread = thread_x() % kWarpgroup;
  const int chunk = thread % kChunks, row = thread / kChunks;
  const unsigned place = static_cast<unsigned>(row * kRowBytes + (chunk ^ row % 8) * 16);
  const int row_bytes = static_cast<int>(g.x.row_stride * sizeof(T));
  const auto* const x = static_cast<const unsigned char*>(g.x.data) + chunk * 16;
  int count = 0;
  ExpertItems items(p.product.routing, p.w_tiles, kExpertRowsSlots);
  for (int number = 0;; ++number) {
    const bool exists = items.next();
    int rows[kGathers];  // of x
    smem.item_ring.wait_emptied(number);
    ItemSlot& item = smem.items[number % kExpertRowsItems];
    const int first_row = items.w_tile() * kExpertRowsTile;
    if (thread == 0) {
      item.expert = exists ? items.expert() : -1;
      item.first_row = first_row;
      item.count = items.count();
    }
    TESSERA_UNROLL
    for (int i = 0; i < kGathers; ++i) {
      const int place_of_slot = row + i * kGatheredRows;
      const int slot = exists && place_of_slot < items.count() ? items.slot(place_of_slot) : -1;
      if (chunk == 0) item.slots[place_of_slot] = slot;
      rows[i] = slot >= 0 ? slot / p.product.slots_of_row : -1;
    }
    sync_warp();
    if (thread % 32 == 0) mbarrier_arrive(shared_address(&smem.item_ring.filled[number % kExpertRowsItems]));
    if (!exists) return;
    const int row_of_all = items.expert() * static_cast<int>(g.n) + first_row;
    for (int step = 0; step < steps_of(p); ++step, ++count) {
      Stage& stage = smem.stages[count % kExpertRowsStages];
      const unsigned filled = shared_address(&smem.ring.filled[count % kExpertRowsStages]);
      smem.ring.wait_emptied(count);
      if (thread == 0) {
        mbarrier_arrive_expect_tx(filled, sizeof(stage.w));
        cp_async_bulk_tensor_2d(shared_address(stage.w), &p.weight, filled, step * kExpertRowsStep,
                                row_of_all, kEvictNormal);
      }
      sync_warp();
      const int column = step * kExpertRowsStep + chunk * 8;
      const unsigned to = shared_address(stage.x) + place;
      TESSERA_UNROLL
      for (int i = 0; i < kGathers; ++i) {
        if (i * kGatheredRows >= items.count()) break;
        const bool is_there = rows[i] >= 0 && column < g.k;
        const unsigned char* from =
            x + static_cast<int64>(maximum(rows[i], 0)) * row_bytes + step * kRowBytes;
        cp_async_16(to + i * (kGatheredRows * kRowBytes), is_there ? from : x, is_there);
      }
      cp_async_mbarrier_arrive(filled);
    }
  }
}

/// A warpgroup's part of the work: its rows of w of each item.
template <class T>
class Multiplier {
 public:
  TESSERA_DEVICE Multiplier(const ExpertRowsParams& p, SharedStorage& smem, int warpgroup)
      : p_(p), smem_(smem), warpgroup_(warpgroup), thread_(thread_x() % kWarpgroup) {}

  TESSERA_DEVICE void run() {
    float d[kExpertRowsSlots / 2];
    for (int number = 0;; ++number) {
      smem_.item_ring.wait_filled(number);
      const ItemSlot& item = smem_.items[number % kExpertRowsItems];
      if (item.expert < 0) return;
      switch ((item.count - 1) / 32) {
        case 0:
          multiply_and_store<32>(item, d);
          break;
        case 1:
          multiply_and_store<64>(item, d);
          break;
        case 2:
          multiply_and_store<96>(item, d);
          break;
        case 3:
          multiply_and_store<128>(item, d);
          break;
        case 4:
          multiply_and_store<160>(item, d);
          break;
        case 5:
          multiply_and_store<192>(item, d);
          break;
        case 6:
          multiply_and_store<224>(item, d);
          break;
        default:
          multiply_and_store<256>(item, d);
          break;
      }
      smem_.item_ring.release_by_warp(number);
    }
  }

 private:
  template <int kN>
  TESSERA_DEVICE void multiply_and_store(const ItemSlot& item, float (&all)[kExpertRowsSlots / 2]) {
    auto& d = *reinterpret_cast<float(*)[kN / 2]>(all);
    const GemmParams g = product_of_expert(p_.product, item.expert);
    const int own_row = item.first_row + warpgroup_ * 64 + thread_ / 32 * 16 + thread_ % 32 / 4;
    const float bias[2] = {bias_of(g, own_row), bias_of(g, own_row + 8)};
    multiply<kN>(d);
    store<kN>(item, bias, d);
  }

  /// d = the products of all steps.
  template <int kN>
  TESSERA_DEVICE void multiply(float (&d)[kN / 2]) {
    const int steps = steps_of(p_);
    for (int step = 0; step < steps; ++step, ++count_) {
      const Stage& stage = smem_.stages[count_ % kExpertRowsStages];
      smem_.ring.wait_filled(count_);
      fence_proxy_async();  // what was gathered
      pin_registers(d);
      wgmma_fence();
      const unsigned long long w = descriptor_of_rows(shared_address(stage.w) + warpgroup_ * 64 * kRowBytes);
      const unsigned long long x = descriptor_of_rows(shared_address(stage.x));
      TESSERA_UNROLL
      for (int k = 0; k < kExpertRowsStep / 16; ++k)
        Wgmma<T, kN>::rows_rows(d, w + 2 * k, x + 2 * k, step > 0 || k > 0);
      wgmma_commit_group();
      // The products of the step before are done: its stage is free while this one's are under way.
      wgmma_wait_group<1>();
      pin_registers(d);
      if (step > 0) smem_.ring.release_by_warp(count_ - 1);
    }
    wgmma_wait_group<0>();
    pin_registers(d);
    smem_.ring.release_by_warp(count_ - 1);
  }

  /// The bias of w's row `row` of the item's expert.
  TESSERA_DEVICE float bias_of(const GemmParams& g, int row) const {
    return g.bias.data != nullptr && row < g.n ? load_scalar(g.bias, row) : 0.0f;
  }

  /// Some slots at a time: a column of d becomes 64 results in a row of shared memory, swizzled by rows of
  /// eight, and from there in chunks of 16 bytes those of a slot.
  template <int kN>
  TESSERA_DEVICE void store(const ItemSlot& item, const float (&bias)[2], const float (&d)[kN / 2]) {
    const RowsArgument& to = p_.product.gemm.out;
    const int lane = thread_ % 32, warp = thread_ / 32;
    const int first_row = item.first_row + warpgroup_ * 64;
    const int stored_chunk = warp * 2 + lane / 8 % 2;
    const int chunk = thread_ % kChunks;
    const int column = first_row + chunk * 8;
    TESSERA_UNROLL
    for (int first = 0; first < kN; first += kExpertStoredSlots) {
      const unsigned buffer =
          shared_address(smem_.results[warpgroup_][first / kExpertStoredSlots % kExpertStoredBuffers]);
      TESSERA_UNROLL
      for (int group = 0; group < kExpertStoredSlots / 8; group += 2) {
        if (first + group * 8 >= kN) continue;
        unsigned words[4];
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int at = 4 * (first / 8 + group + i / 2) + 2 * (i % 2);
          words[i] = cvt_x2<T>(d[at] + bias[i % 2], d[at + 1] + bias[i % 2]);
        }
        const int row = (group + lane / 16) * 8 + lane % 8;
        stmatrix_x4_trans(buffer + row * kRowBytes + (stored_chunk ^ row % 8) * 16, words);
      }
      // Whoever comes here has read what this buffer held before: it was read before the barrier before.
      named_barrier_sync(1 + warpgroup_, kWarpgroup);
      if (column >= p_.product.gemm.n) continue;
      TESSERA_UNROLL
      for (int i = 0; i < kExpertStoredSlots / kGatheredRows; ++i) {
        const int row = thread_ / kChunks + i * kGatheredRows;
        if (first + row >= item.count) break;
        Vector<unsigned, 4> words;
        load_shared_16(words.element, buffer + row * kRowBytes + (chunk ^ row % 8) * 16);
        T* out = static_cast<T*>(to.data) + item.slots[first + row] * to.row_stride + column;
        *reinterpret_cast<Vector<unsigned, 4>*>(out) = words;
      }
    }
    // The next item's first results go where these lie.
    named_barrier_sync(1 + warpgroup_, kWarpgroup);
  }

  const ExpertRowsParams& p_;
  SharedStorage& smem_;
  const int warpgroup_, thread_;
  int count_ = 0;  // of steps before the next
};

template <class T>
TESSERA_DEVICE void expert_many_rows(const ExpertRowsParams& p) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(shared_bytes);
  if (thread_x() == 0) {
    smem.ring.start(4 * kExpertRowsWarpgroups, kWarpgroup + 1);
    smem.item_ring.start(4 * kExpertRowsWarpgroups, kWarpgroup / 32);
    fence_mbarrier_init();
  }
  allow_next_kernel();
  sync_threads();
  const int warpgroup =
      __shfl_sync(0xffffffffu, thread_x() / kWarpgroup, 0);  // the compiler sees: one a warp
  wait_for_prior_kernels();
  if (warpgroup == kExpertRowsWarpgroups) {
    setmaxnreg_dec<88>();  // 168 x 384 registers are shared out anew
    copy_items<T>(p, smem);
  } else {
    setmaxnreg_inc<208>();
    Multiplier<T>(p, smem, warpgroup).run();
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

#define TESSERA_EXPERT_ROWS_KERNEL(T)                                    \
  extern "C" __global__ void __launch_bounds__(kExpertRowsThreads, 1)    \
      expert_many_rows_##T(const __grid_constant__ ExpertRowsParams p) { \
    expert_many_rows<T>(p);                                              \
  }
#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
TESSERA_EXPERT_ROWS_KERNEL(f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_EXPERT_ROWS_KERNEL(bf16)
#endif
