// out = x w^T (+ bias) (+ out), or gated, or rotated and appended to the cache, for 3 to 64 rows of 16-bit x:
// bound by reading w once, which the copy engine does in boxes while one warpgroup multiplies, w's rows as
// wgmma's m and x's as its n.
//
//   tile: 64 rows of w               step s: 128 columns of the tile and of x
//   w  [ s0 | s1 | s2 | ... ]   ->   ring: [w s0, x s0] [w s1, x s1] ...   ->   d (64 x m) += w xT
//
// Tiles are shared out so that all blocks have as many steps: those that don't go round are split between
// blocks, by steps. Each block does its shares of split tiles first. Whoever comes last adds up a tile's
// sums, in the blocks' order: the bits are the same whoever that is. Where all tiles are two blocks', these
// are a cluster, and the second sends its sums to the first.
//
// The ring is filled with w before the kernel waits for the one that makes x. What results need besides is on
// its way before the products: what they are added to, and by other warps where keys go and their angles.

#include "sm90/few_rows_results.cuh"
#include "sm90/gemm_few_rows.h"
#include "sm90/ring_barriers.cuh"
#include "sm90/wgmma.cuh"

namespace tessera::kernels {

constexpr int kPanels = kFewRowsStep / 64;
constexpr int kCopyingWarp = kWarpgroup / 32;

template <int kN>
struct Stage {
  unsigned char w[kPanels][kFewRowsTile * 128];
  unsigned char x[kPanels][kN * 128];
};
template <int kN>
struct SharedStorage {
  Stage<kN> stages[few_rows_stages(kN)];
  RingBarriers<few_rows_stages(kN)> ring;
  TileSums<kN, 1> tile;
  union {
    Places<kN> places;
    PairSums<kN> of_pair;  // of products that append nothing
  };

  static_assert(sizeof(Stage<kN>) == few_rows_stage_bytes(kN) && sizeof(Stage<kN>) % 1024 == 0,
                "swizzled panels begin at multiples of 1024 bytes");
};
static_assert(sizeof(SharedStorage<16>) + 1024 <= few_rows_shared_bytes(16) &&
                  sizeof(SharedStorage<32>) + 1024 <= few_rows_shared_bytes(32) &&
                  sizeof(SharedStorage<64>) + 1024 <= few_rows_shared_bytes(64),
              "the host asks for as much");

/// Asks for copies, step by step. By one thread.
template <int kN>
class Copies {
 public:
  TESSERA_DEVICE Copies(const FewRowsParams& p, SharedStorage<kN>& smem)
      : p_(p), smem_(smem), of_w_(p), of_x_(p) {}

  TESSERA_DEVICE void run() {
    prefetch_tensormap(&p_.weight);
    prefetch_tensormap(&p_.x);
    int ahead = 0;
    while (ahead < kStages && copy_w()) ++ahead;
    wait_for_prior_kernels();
    for (int i = 0; i < ahead; ++i) copy_x();
    while (copy_w()) copy_x();
  }

 private:
  static constexpr int kStages = few_rows_stages(kN);

  struct Walk : StepWalk {
    int count = 0;  // of steps before this one

    TESSERA_DEVICE explicit Walk(const FewRowsParams& p) : StepWalk(p.parts.shares, block_x()) {}
    TESSERA_DEVICE int column(int panel) const { return share.begin * kFewRowsStep + panel * 64; }
    TESSERA_DEVICE int group() const { return share.tile * (kFewRowsTile / 16); }
  };

  TESSERA_DEVICE unsigned filled(int count) const {
    return shared_address(&smem_.ring.filled[count % kStages]);
  }

  TESSERA_DEVICE bool copy_w() {
    if (!of_w_.next()) return false;
    const int count = of_w_.count++;
    smem_.ring.wait_emptied(count);
    mbarrier_arrive_expect_tx(filled(count), sizeof(Stage<kN>));
    const int shift = p_.product.group_shift, group = of_w_.group(), block = group >> shift;
    TESSERA_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      const unsigned to = shared_address(smem_.stages[count % kStages].w[panel]);
      if (shift == 0) {
        cp_async_bulk_tensor_2d(to, &p_.weight, filled(count), of_w_.column(panel), group * 16, kEvictFirst);
      } else {
        cp_async_bulk_tensor_5d(to, &p_.weight, filled(count), of_w_.column(panel), 0, 0,
                                group - (block << shift), block, kEvictFirst);
      }
    }
    return true;
  }
  TESSERA_DEVICE void copy_x() {
    of_x_.next();
    const int count = of_x_.count++;
    TESSERA_UNROLL
    for (int panel = 0; panel < kPanels; ++panel)
      cp_async_bulk_tensor_2d(shared_address(smem_.stages[count % kStages].x[panel]), &p_.x, filled(count),
                              of_x_.column(panel), 0, kEvictLast);
  }

  const FewRowsParams& p_;
  SharedStorage<kN>& smem_;
  Walk of_w_, of_x_;
};

/// Adds up a share's products. d: as wgmma has its accumulators, w's rows by x's.
template <class T, int kN>
TESSERA_DEVICE void multiply(SharedStorage<kN>& smem, int steps, int& count, float (&d)[kN / 2]) {
  for (int step = 0; step < steps; ++step, ++count) {
    const Stage<kN>& stage = smem.stages[count % few_rows_stages(kN)];
    smem.ring.wait_filled(count);
    pin_registers(d);
    wgmma_fence();
    TESSERA_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      const unsigned long long w = descriptor_of_rows(shared_address(stage.w[panel]));
      const unsigned long long x = descriptor_of_rows(shared_address(stage.x[panel]));
      TESSERA_UNROLL
      for (int k = 0; k < 4; ++k)
        Wgmma<T, kN>::rows_rows(d, w + 2 * k, x + 2 * k, step > 0 || panel > 0 || k > 0);
    }
    wgmma_commit_group();
    // The products of the step before are done: its stage is free while this one's are under way.
    wgmma_wait_group<1>();
    pin_registers(d);
    if (step > 0) smem.ring.release_by_warp(count - 1);
  }
  wgmma_wait_group<0>();
  pin_registers(d);
  smem.ring.release_by_warp(count - 1);
}

template <class T, int kN>
TESSERA_DEVICE void gemm_few_rows(const FewRowsParams& p) {
  TESSERA_DYNAMIC_SHARED(shared);
  SharedStorage<kN>& smem =
      *reinterpret_cast<SharedStorage<kN>*>(shared + (1024 - shared_address(shared) % 1024) % 1024);
  const bool appends = p.product.rope.num_heads != 0;
  const bool is_pair = cluster_size() > 1;
  if (thread_x() == 0) {
    smem.ring.start(kWarpgroup / 32);
    if (appends) smem.places.start(kWarpgroup / 32);
    if (is_pair) smem.of_pair.start();
    fence_mbarrier_init();
  }
  allow_next_kernel();
  sync_threads();
  if (is_pair) cluster_arrive_relaxed();
  if (thread_x() / 32 == kCopyingWarp) {
    if (thread_x() % 32 == 0) Copies<kN>(p, smem).run();
    return;
  }
  if (thread_x() / 32 > kCopyingWarp) {
    if (appends) smem.places.find(p.product, p.parts.shares, thread_x() / 32 - kCopyingWarp - 1);
    return;
  }
  wait_for_prior_kernels();
  TileShares shares(p.parts.shares, block_x());
  TileShare share;
  int count = 0;
  for (int number = 0; shares.next(share); ++number) {
    FewRowsResults<T, kN, 1> results{p.product, smem.tile, share.tile};
    results.load_before();
    float d[kN / 2] = {};
    multiply<T, kN>(smem, share.end - share.begin, count, d);
    const bool is_whole = is_pair ? smem.of_pair.add_up(d) : add_up(p.parts, smem.tile, share, d);
    if (appends) smem.places.ring.wait_filled(number);
    if (is_whole) {
      share_sums(smem.tile, d);
      if (appends) {
        results.append(smem.places);
      } else {
        results.store();
      }
      named_barrier_sync(1, kWarpgroup);
    }
    if (appends) smem.places.ring.release_by_warp(number);
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

#define TESSERA_FEW_ROWS_KERNEL(T, kN)                                    \
  extern "C" __global__ void __launch_bounds__(few_rows_threads(kN), 1)   \
      gemm_few_rows_##T##_##kN(const __grid_constant__ FewRowsParams p) { \
    gemm_few_rows<T, kN>(p);                                              \
  }
#define TESSERA_FEW_ROWS_KERNELS(T) \
  TESSERA_FEW_ROWS_KERNEL(T, 16)    \
  TESSERA_FEW_ROWS_KERNEL(T, 32)    \
  TESSERA_FEW_ROWS_KERNEL(T, 64)
#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
TESSERA_FEW_ROWS_KERNELS(f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_FEW_ROWS_KERNELS(bf16)
#endif
