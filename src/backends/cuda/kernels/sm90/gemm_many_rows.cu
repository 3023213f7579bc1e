// out = x w^T (+ bias) (+ out), or gated, for many rows of 16-bit x: bound by the tensor cores.
//
// Two blocks of a cluster have 256 rows of w and the same 256 rows of x (or 128), whose halves each brings to
// both.
//
//                  x: 256 rows                       a step: 64 columns of
//            +-------------------------+               w  [128 rows] 16 KB, the block's own
//   w: 64    | warpgroup 0             | block 0       x  [128 rows][128 rows] 32 KB, from block 0 and 1
//      64    | warpgroup 1             |
//            +-------------------------+             ring: 4 steps, by one thread of the third warpgroup
//      64    | warpgroup 0             | block 1
//      64    | warpgroup 1             |             d (64 x 256 a warpgroup, fp32, registers) += w xT
//            +-------------------------+
//
// w's rows are wgmma's m and x's its n, k goes on in steps of 16 and is cut where gemm_few_rows cuts it: a
// row's results have the bits that they have among few rows.
//
// Results go through shared memory, transposed on the way, and out in boxes, while the next tile's first
// steps come in.

#include "sm80/fused_rows.cuh"
#include "sm90/gemm_many_rows.h"
#include "sm90/ring_barriers.cuh"
#include "sm90/wgmma.cuh"

namespace tessera::kernels {

constexpr int kWarpgroup = 128;
constexpr int kPanelRowBytes = kManyRowsStep * 2;
constexpr int kNoActivation = -1;
constexpr int kXTilesTogether = 8;  // one after the other in the order of tiles, so that w is read from L2

template <int kN>
struct Stage {
  unsigned char w[kManyRowsWarpgroups][kFewRowsTile * kPanelRowBytes];
  unsigned char x[kN * kPanelRowBytes];
};
template <int kN>
struct SharedStorage {
  static constexpr int kStages = many_rows_stages(kN);

  Stage<kN> stages[kStages];
  unsigned char results[kManyRowsWarpgroups][kStoredBuffers][kStoredRows * kFewRowsTile * 2];
  RingBarriers<kStages> ring;

  static_assert(sizeof(Stage<kN>) == many_rows_stage_bytes(kN) && sizeof(Stage<kN>) % 1024 == 0,
                "swizzled panels begin at multiples of 1024 bytes");
};
static_assert(sizeof(SharedStorage<128>) + 1024 <= many_rows_shared_bytes(128) &&
                  sizeof(SharedStorage<256>) + 1024 <= many_rows_shared_bytes(256),
              "the host asks for as much");

/// A cluster's tiles: kTilesOfCluster tiles of w by one of x each.
class Tiles {
 public:
  TESSERA_DEVICE explicit Tiles(const ManyRowsParams& p)
      : p_(p), next_(block_x() / kManyRowsBlocks), step_(grid_x() / kManyRowsBlocks) {}

  TESSERA_DEVICE bool next() {
    if (next_ >= p_.x_tiles * p_.w_groups) return false;
    const int band = next_ / (kXTilesTogether * p_.w_groups);
    const int width = minimum(kXTilesTogether, p_.x_tiles - band * kXTilesTogether);
    const int in_band = next_ - band * (kXTilesTogether * p_.w_groups);
    x_tile_ = band * kXTilesTogether + in_band % width;
    w_group_ = in_band / width;
    next_ += step_;
    return true;
  }
  TESSERA_DEVICE int x_tile() const { return x_tile_; }
  /// Of w, of a block's warpgroup.
  TESSERA_DEVICE int w_tile(int rank, int warpgroup) const {
    return w_group_ * kTilesOfCluster + rank * kManyRowsWarpgroups + warpgroup;
  }

 private:
  const ManyRowsParams& p_;
  int next_, step_;
  int x_tile_ = 0, w_group_ = 0;
};

/// Panels of k. As gemm_few_rows has them, zeros behind the last included.
TESSERA_DEVICE int panels_of(const ManyRowsParams& p) {
  return p.shares.steps * (kFewRowsStep / kManyRowsStep);
}

/// Asks for copies, step by step. By one thread.
template <int kN>
TESSERA_DEVICE void copy_tiles(const ManyRowsParams& p, SharedStorage<kN>& smem, int rank) {
  constexpr int kXRows = kN / kManyRowsBlocks;  // that this block brings
  prefetch_tensormap(&p.weight);
  prefetch_tensormap(&p.x);
  wait_for_prior_kernels();
  const int shift = p.product.group_shift;
  int count = 0;
  for (Tiles tiles(p); tiles.next();) {
    for (int panel = 0; panel < panels_of(p); ++panel, ++count) {
      Stage<kN>& stage = smem.stages[count % smem.kStages];
      const unsigned filled = shared_address(&smem.ring.filled[count % smem.kStages]);
      const int column = panel * kManyRowsStep;
      smem.ring.wait_emptied(count);
      mbarrier_arrive_expect_tx(filled, sizeof(Stage<kN>));
      cp_async_bulk_tensor_2d_multicast(shared_address(stage.x + rank * kXRows * kPanelRowBytes), &p.x,
                                        filled, column, tiles.x_tile() * kN + rank * kXRows,
                                        (1 << kManyRowsBlocks) - 1, kEvictLast);
      TESSERA_UNROLL
      for (int i = 0; i < kManyRowsWarpgroups; ++i) {
        const unsigned to = shared_address(stage.w[i]);
        const int group = tiles.w_tile(rank, i) * (kFewRowsTile / 16), block = group >> shift;
        if (shift == 0) {
          cp_async_bulk_tensor_2d(to, &p.weight, filled, column, group * 16, kEvictNormal);
        } else {
          cp_async_bulk_tensor_5d(to, &p.weight, filled, column, 0, 0, group - (block << shift), block,
                                  kEvictNormal);
        }
      }
    }
  }
}

/// A warpgroup's part of the work: its tiles of w, one after the other.
template <class T, int kN>
class Multiplier {
 public:
  TESSERA_DEVICE Multiplier(const ManyRowsParams& p, SharedStorage<kN>& smem, int rank, int warpgroup)
      : p_(p), smem_(smem), rank_(rank), warpgroup_(warpgroup), thread_(thread_x() % kWarpgroup) {}

  TESSERA_DEVICE void run() {
    float d[kN / 2];
    for (Tiles tiles(p_); tiles.next();) {
      tile_ = tiles.w_tile(rank_, warpgroup_);
      first_row_ = tiles.x_tile() * kN;
      add_up(d);
      if (p_.stores_boxes) {
        switch (p_.product.gemm.gated) {
          case 0:
            store_boxes<kNoActivation>(d);
            break;
          case 1:
            store_boxes<0>(d);
            break;
          case 2:
            store_boxes<1>(d);
            break;
          default:
            store_boxes<2>(d);
            break;
        }
      } else if (p_.product.gemm.out.type == kElementF32) {
        store<float>(d);
      } else {
        store<T>(d);
      }
    }
    // What the copy engine still reads goes away with the block.
    if (thread_ == 0) cp_async_bulk_wait_read<0>();
  }

 private:
  /// A tile's sums, part by part as gemm_few_rows' blocks have them.
  TESSERA_DEVICE void add_up(float (&d)[kN / 2]) {
    const int panels = panels_of(p_);
    if (tile_ >= p_.shares.split_tiles || p_.partials == nullptr) return multiply(panels, d);
    constexpr int kPanelsOfStep = kFewRowsStep / kManyRowsStep;
    const int64 first_step = static_cast<int64>(tile_) * p_.shares.steps;
    float* sums = p_.partials +
                  (static_cast<int64>(block_x()) * kManyRowsWarpgroups + warpgroup_) * (kFewRowsTile * kN) +
                  thread_ * 4;
    for (int panel = 0; panel < panels;) {
      const int block = block_of_split_step(p_.shares, first_step + panel / kPanelsOfStep);
      const int64 end_step = first_split_step(p_.shares, block + 1) - first_step;
      const int end = minimum<int64>(end_step * kPanelsOfStep, panels);
      multiply(end - panel, d);
      add_parts_before(panel == 0, sums, d);
      panel = end;
      if (panel == panels) return;
      TESSERA_UNROLL
      for (int i = 0; i < kN / 8; ++i)
        store_global_16(sums + i * (kWarpgroup * 4), d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
    }
  }

  /// As gemm_few_rows adds them, to 0 from the first on.
  TESSERA_DEVICE void add_parts_before(bool is_first, const float* sums, float (&d)[kN / 2]) const {
    constexpr int kAtOnce = 8;  // loads under way together
    TESSERA_UNROLL
    for (int i = 0; i < kN / 8; i += kAtOnce) {
      float4 before[kAtOnce] = {};
      if (!is_first) {
        TESSERA_UNROLL
        for (int j = 0; j < kAtOnce; ++j) before[j] = load_l2_16(sums + (i + j) * (kWarpgroup * 4));
      }
      TESSERA_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        const int at = 4 * (i + j);
        d[at] += before[j].x;
        d[at + 1] += before[j].y;
        d[at + 2] += before[j].z;
        d[at + 3] += before[j].w;
      }
    }
  }

  /// d = the products of the next `panels` panels.
  TESSERA_DEVICE void multiply(int panels, float (&d)[kN / 2]) {
    for (int panel = 0; panel < panels; ++panel, ++count_) {
      const Stage<kN>& stage = smem_.stages[count_ % smem_.kStages];
      smem_.ring.wait_filled(count_);
      pin_registers(d);
      wgmma_fence();
      const unsigned long long w = descriptor_of_rows(shared_address(stage.w[warpgroup_]));
      const unsigned long long x = descriptor_of_rows(shared_address(stage.x));
      TESSERA_UNROLL
      for (int k = 0; k < kManyRowsStep / 16; ++k)
        Wgmma<T, kN>::rows_rows(d, w + 2 * k, x + 2 * k, panel > 0 || k > 0);
      wgmma_commit_group();
      // The products of the panel before are done: its stage is free while this one's are under way.
      wgmma_wait_group<1>();
      pin_registers(d);
      if (panel > 0) release(count_ - 1);
    }
    wgmma_wait_group<0>();
    pin_registers(d);
    release(count_ - 1);
  }

  /// This warp has read the stage, into which both blocks of the cluster write.
  TESSERA_DEVICE void release(int count) {
    const unsigned emptied = shared_address(&smem_.ring.emptied[count % smem_.kStages]);
    if (thread_ % 32 < kManyRowsBlocks) mbarrier_arrive_in_cluster(emptied, thread_ % 32);
  }

  /// w's row of the tile's row r.
  TESSERA_DEVICE int row_of(int r) const { return row_of_tile(p_.product, tile_, kFewRowsTile, r); }
  /// This thread's rows of the tile: `half` 0 or 1.
  TESSERA_DEVICE int own_row(int half) const { return thread_ / 32 * 16 + thread_ % 32 / 4 + half * 8; }
  TESSERA_DEVICE float bias_of(int row) const {
    const GemmParams& gemm = p_.product.gemm;
    return gemm.bias.data != nullptr && row < gemm.n ? load_scalar(gemm.bias, row) : 0.0f;
  }

  /// Transposes kStoredRows rows of results at a time into shared memory, from where boxes of them are
  /// copied. kActivation: as gate_activation() has it, of results that are gated.
  template <int kActivation>
  TESSERA_DEVICE void store_boxes(const float (&d)[kN / 2]) {
    constexpr bool kGated = kActivation != kNoActivation;
    constexpr int kColumns = kGated ? kFewRowsTile / 2 : kFewRowsTile;
    constexpr int kMatrices = kGated ? 1 : 2;   // of 8 columns, that a warp has of each 8 rows
    constexpr int kRowGroups = 4 / kMatrices;   // of 8 rows, that are stored at once
    constexpr int kChunks = kColumns * 2 / 16;  // of 16 bytes, of a row
    const float bias = bias_of(row_of(own_row(0))), bias_of_other = bias_of(row_of(own_row(1)));
    const int lane = thread_ % 32, warp = thread_ / 32;
    const int row_in_8 = lane % 8;
    const int chunk = warp * kMatrices + lane / 8 % kMatrices;
    TESSERA_UNROLL
    for (int first = 0; first < kN; first += kStoredRows) {
      const unsigned buffer = shared_address(smem_.results[warpgroup_][first / kStoredRows % kStoredBuffers]);
      // The copy before the last has read this buffer.
      if (thread_ == 0) cp_async_bulk_wait_read<kStoredBuffers - 1>();
      named_barrier_sync(1 + warpgroup_, kWarpgroup);
      TESSERA_UNROLL
      for (int group = 0; group < kStoredRows / 8; group += kRowGroups) {
        unsigned words[4];
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int at = 4 * (first / 8 + group + i / kMatrices);
          if constexpr (kGated) {
            words[i] =
                cvt_x2<T>(gate_activation(kActivation, d[at] + bias) * (d[at + 2] + bias_of_other),
                          gate_activation(kActivation, d[at + 1] + bias) * (d[at + 3] + bias_of_other));
          } else {
            const int half = 2 * (i % 2);
            const float b = i % 2 == 0 ? bias : bias_of_other;
            words[i] = cvt_x2<T>(d[at + half] + b, d[at + half + 1] + b);
          }
        }
        const int row = (group + lane / 8 / kMatrices) * 8 + row_in_8;
        // As the copy engine's swizzle of 128 bytes has rows, or that of 64.
        const int swizzled = chunk ^ (kGated ? row / 2 % kChunks : row % kChunks);
        stmatrix_x4_trans(buffer + row * (kColumns * 2) + swizzled * 16, words);
      }
      fence_proxy_async();
      named_barrier_sync(1 + warpgroup_, kWarpgroup);
      if (thread_ == 0) {
        cp_async_bulk_tensor_2d_out(&p_.out, buffer, tile_ * kColumns, first_row_ + first);
        cp_async_bulk_commit_group();
      }
    }
  }

  /// Element by element, a column a thread: out of another type, alignment, or added to.
  template <class O>
  TESSERA_DEVICE void store(const float (&d)[kN / 2]) {
    const GemmParams& gemm = p_.product.gemm;
    const bool is_gated = gemm.gated != 0;
    const int columns = is_gated ? kFewRowsTile / 2 : kFewRowsTile;
    const int column = thread_ % columns;
    const int r = is_gated ? column % 8 + column / 8 * 16 : column;
    const int row = row_of(r);
    const bool exists = row < (is_gated ? gemm.n / 2 : gemm.n);
    const float bias = bias_of(row), bias_of_up = is_gated ? bias_of(row_of(r + 8)) : 0.0f;
    float* sums = reinterpret_cast<float*>(smem_.results[warpgroup_]);  // (kStoredRows, kFewRowsTile)
    // A warp's sums and a row's fall into different banks.
    const auto sum = [&](int m, int of_row) -> float& {
      return sums[m * kFewRowsTile + (of_row ^ m / 2 % 4 * 8)];
    };
    TESSERA_UNROLL
    for (int first = 0; first < kN; first += kStoredRows) {
      named_barrier_sync(1 + warpgroup_, kWarpgroup);
      TESSERA_UNROLL
      for (int i = 0; i < kStoredRows / 2; ++i)
        sum(i / 4 * 8 + thread_ % 4 * 2 + i % 2, own_row(i % 4 / 2)) = d[first / 2 + i];
      named_barrier_sync(1 + warpgroup_, kWarpgroup);
      const int64 rows = minimum<int64>(kStoredRows, gemm.m - first_row_ - first);
      for (int m = exists ? thread_ / columns : kStoredRows; m < rows; m += kWarpgroup / columns) {
        float value = sum(m, r) + bias;
        if (is_gated) value = gate_activation(gemm.gated - 1, value) * (sum(m, r + 8) + bias_of_up);
        O* out = static_cast<O*>(gemm.out.data) + (first_row_ + first + m) * gemm.out.row_stride + row;
        *out = from_float<O>(gemm.accumulate ? value + to_float(*out) : value);
      }
    }
  }

  const ManyRowsParams& p_;
  SharedStorage<kN>& smem_;
  const int rank_, warpgroup_, thread_;
  unsigned count_ = 0;  // of panels before the next
  int tile_ = 0, first_row_ = 0;
};

template <class T, int kN>
TESSERA_DEVICE void gemm_many_rows(const ManyRowsParams& p) {
  TESSERA_DYNAMIC_SHARED(shared);
  SharedStorage<kN>& smem =
      *reinterpret_cast<SharedStorage<kN>*>(shared + (1024 - shared_address(shared) % 1024) % 1024);
  if (thread_x() == 0) {
    smem.ring.start(kManyRowsBlocks * kManyRowsWarpgroups * kWarpgroup / 32);
    fence_mbarrier_init();
  }
  allow_next_kernel();
  cluster_barrier();  // also: the other block's barriers are ready
  const int rank = block_x() % kManyRowsBlocks;
  const int warpgroup =
      __shfl_sync(0xffffffffu, thread_x() / kWarpgroup, 0);  // the compiler sees: one a warp
  if (warpgroup == kManyRowsWarpgroups) {
    setmaxnreg_dec<40>();  // 168 x 384 registers are shared out anew
    if (thread_x() % kWarpgroup == 0) copy_tiles<kN>(p, smem, rank);
  } else {
    setmaxnreg_inc<232>();
    wait_for_prior_kernels();
    Multiplier<T, kN>(p, smem, rank, warpgroup).run();
  }
  cluster_barrier();  // nobody writes into a block that has ended
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

#define TESSERA_MANY_ROWS_KERNEL(T, kN)                                     \
  extern "C" __global__ void __launch_bounds__(kManyRowsThreads, 1)         \
      gemm_many_rows_##T##_##kN(const __grid_constant__ ManyRowsParams p) { \
    gemm_many_rows<T, kN>(p);                                               \
  }
#define TESSERA_MANY_ROWS_KERNELS(T) \
  TESSERA_MANY_ROWS_KERNEL(T, 128)   \
  TESSERA_MANY_ROWS_KERNEL(T, 256)
#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
TESSERA_MANY_ROWS_KERNELS(f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_MANY_ROWS_KERNELS(bf16)
#endif
