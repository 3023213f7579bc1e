// out = x w^T (+ bias) (+ out), or gated, or rotated and appended to the cache, for up to 64 rows of 16-bit x
// and weights of blocks (TESSERA_BLOCKS). Each warp of two to four warpgroups takes 16 rows of w apart in
// registers (block_fragments.cuh), which wgmma multiplies with x in shared memory: however many rows x has, a
// block of w is taken apart once.
//
//   step: 256 columns of x (16, 32 or 64 rows, as fp16) and of 128 to 256 rows of w
//   ring: [x s0, w s0] [x s1, w s1] ...  ->  d (64 rows of w a warpgroup, by x's) += w xT
//
// One warpgroup brings w as it is stored, by asynchronous copies. x comes brought into fp16's range by a
// power of two for each row and 256 columns, in the order in which blocks' integers come out, with the sums
// of x that blocks' offsets are multiplied with. Bits of x beyond 2^-39 of the piece's largest are lost. Of
// up to 32 rows a second warpgroup does that in each block; more are made ready by a kernel before and
// copied.
//
// Tiles are shared out as gemm_few_rows.cu's are. The ring is filled with w before the kernel waits for the
// one that makes x.

#include "sm80/block_units.cuh"
#include "sm90/block_rows_products.cuh"

namespace tessera::kernels {

/// Brings w, step by step, and x if it is ready. By one warpgroup.
template <class Format, int kN>
class WeightCopies {
  using Traits = BlockRowsTraits<Format, kN>;
  using Unit = typename Traits::Unit;
  using Storage = BlockRowsStorage<Format, kN>;
  static constexpr int kStages = Traits::kStages;

 public:
  TESSERA_DEVICE WeightCopies(const BlockRowsParams& p, Storage& smem)
      : p_(p),
        smem_(smem),
        lane_(thread_x() % 32),
        warp_(thread_x() / 32 % 4),
        row_bytes_(static_cast<unsigned>(p.product.gemm.k / kPieceColumns) * Unit::kBytes),
        copies_(p.product.rows_apart, row_bytes_, lane_),
        walk_(p.parts.shares, block_x()) {}

  TESSERA_DEVICE void run() {
    if constexpr (Traits::kIsPrepared) {
      StepWalk of_x(p_.parts.shares, block_x());
      int ahead = 0;
      while (ahead < kStages && copy_w(ahead)) ++ahead;
      wait_for_prior_kernels();
      for (int count = 0; of_x.next(); ++count) {
        if (count >= ahead) copy_w(count);
        if (lane_ == 0 && warp_ == 0) copy_x(count, of_x.share.begin);
      }
    } else {
      for (int count = 0; copy_w(count);) ++count;
    }
  }

 private:
  TESSERA_DEVICE bool copy_w(int count) {
    if (!walk_.next()) return false;
    smem_.ring.wait_emptied(count);
    const StreamParams& stream = p_.product;
    const GemmParams& gemm = stream.gemm;
    const int groups = static_cast<int>((gemm.n + kTileRows - 1) / kTileRows);
    const unsigned filled = shared_address(&smem_.ring.filled[count % kStages]);
    TESSERA_UNROLL_BY(1)
    for (int i = warp_; i < Traits::kWarps; i += 4) {
      const int group = walk_.share.tile * Traits::kWarps + i;
      if (group >= groups) break;  // of what is there then, nothing is stored
      const unsigned offset = static_cast<unsigned>(first_row_of_group(stream, group)) * row_bytes_ +
                              static_cast<unsigned>(walk_.share.begin) * Unit::kBytes;
      copies_.start(shared_address(smem_.stages[count % kStages].w[i]), gemm.weight.data, offset,
                    static_cast<unsigned>(gemm.n) * row_bytes_, lane_);
    }
    cp_async_mbarrier_arrive(filled);
    sync_warp();  // bytes at the matrix's end are stored by lanes themselves
    if (lane_ == 0) mbarrier_arrive(filled);
    return true;
  }
  TESSERA_DEVICE void copy_x(int count, int piece) {
    constexpr int kBytes = block_rows_x_bytes(Traits::kFormat, kN);
    constexpr int kPanelBytes = block_rows_panel_bytes(Traits::kFormat, kN);
    const unsigned filled = shared_address(&smem_.ring.filled[count % kStages]);
    const unsigned char* from = p_.prepared + static_cast<int64>(piece) * kBytes;
    mbarrier_arrive_expect_tx(filled, kBytes);
    cp_async_bulk(shared_address(smem_.stages[count % kStages].x[0]), from, kPanelBytes, filled);
    cp_async_bulk(shared_address(smem_.factors[count % kStages]), from + kPanelBytes, kBytes - kPanelBytes,
                  filled);
  }

  const BlockRowsParams& p_;
  Storage& smem_;
  int lane_, warp_;
  unsigned row_bytes_;
  UnitCopies<Format, true> copies_;
  StepWalk walk_;
};

/// Makes x ready, step by step. By a warpgroup.
template <class X, class Format, int kN>
TESSERA_DEVICE void make_x_ready(const BlockRowsParams& p, BlockRowsStorage<Format, kN>& smem) {
  constexpr int kBatches = kN / (4 * kRowsOfWarp);
  const int first_row = thread_x() / 32 % 4 * kRowsOfWarp;
  RowsOfX<X, Format, kN> rows[kBatches];
  StepWalk walk(p.parts.shares, block_x());
  const auto load = [&] {
    TESSERA_UNROLL
    for (int i = 0; i < kBatches; ++i)
      rows[i].load(p.product.gemm, first_row + i * 4 * kRowsOfWarp, walk.share.begin);
  };
  bool has_more = walk.next();
  if (has_more) load();
  for (int count = 0; has_more; ++count) {
    TESSERA_UNROLL
    for (int i = 0; i < kBatches; ++i) rows[i].convert();
    has_more = walk.next();
    if (has_more) load();  // on the way while a place is waited for
    const int place = count % BlockRowsTraits<Format, kN>::kStages;
    smem.ring.wait_emptied(count);
    TESSERA_UNROLL
    for (int i = 0; i < kBatches; ++i) rows[i].store(smem.stages[place].x[0], smem.factors[place]);
    smem.ring.template fill_by_lanes<kLanesOfRow>(count);
  }
}

/// Makes x ready in memory: a warp takes kRowsOfWarp rows of a piece.
template <class X, class Format, int kN>
TESSERA_DEVICE void prepare_x(const BlockRowsParams& p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  constexpr int kWarpsOfPiece = kN / kRowsOfWarp;
  const int warp = block_x() * (kPrepareThreads / 32) + thread_x() / 32;
  const int piece = warp / kWarpsOfPiece;
  RowsOfX<X, Format, kN> rows;
  rows.load(p.product.gemm, warp % kWarpsOfPiece * kRowsOfWarp, piece);
  rows.convert();
  using Traits = BlockRowsTraits<Format, kN>;
  unsigned char* panels = p.prepared + static_cast<int64>(piece) * block_rows_x_bytes(Traits::kFormat, kN);
  rows.store(panels, reinterpret_cast<float*>(panels + Traits::kPanels * Traits::kPanelBytes));
}

template <class X, class Format, int kN>
TESSERA_DEVICE void gemm_few_rows_blocks(const BlockRowsParams& p) {
  using Traits = BlockRowsTraits<Format, kN>;
  using Storage = BlockRowsStorage<Format, kN>;
  TESSERA_DYNAMIC_SHARED(shared);
  Storage& smem = *reinterpret_cast<Storage*>(shared + (1024 - shared_address(shared) % 1024) % 1024);
  if (thread_x() == 0) {
    // Read by each thread that multiplies. Written, w: each thread's copies, and each warp; x: its copy, or
    // who stores the factors of those that are made ready.
    smem.ring.start(Traits::kThreads, kWarpgroup + 4 + (Traits::kIsPrepared ? 1 : kWarpgroup / kLanesOfRow));
    fence_mbarrier_init();
  }
  allow_next_kernel();
  sync_threads();
  const int warpgroup = thread_x() / kWarpgroup - Traits::kWarpgroups;
  if (warpgroup == 0) {
    setmaxnreg_dec<Traits::kRegistersOfW>();
    WeightCopies<Format, kN>(p, smem).run();
    return;
  }
  wait_for_prior_kernels();
  if constexpr (!Traits::kIsPrepared) {
    if (warpgroup == 1) {
      setmaxnreg_dec<Traits::kRegistersOfX>();
      make_x_ready<X, Format, kN>(p, smem);
      return;
    }
  }
  setmaxnreg_inc<Traits::kRegistersOfSums>();
  TileShares shares(p.parts.shares, block_x());
  TileShare share;
  int count = 0;
  while (shares.next(share)) {
    float d[kN / 2] = {};
    const int first_row =
        first_row_of_group(p.product, share.tile * BlockRowsTraits<Format, kN>::kWarps + thread_x() / 32) +
        thread_x() % 32 / 4;
    const auto first_byte = [&](int r) {
      return static_cast<unsigned>(first_row + r * p.product.rows_apart) *
             (static_cast<unsigned>(p.product.gemm.k / kPieceColumns) * WeightPiece<Format>::kBytes);
    };
    multiply_steps<Format, kN>(smem, first_byte, share.begin, share.end, count, d);
    FewRowsResults<X, kN, Traits::kWarpgroups> results{p.product, smem.tile, share.tile};
    constexpr bool kHasRegisters = kN <= 16;
    if (kHasRegisters) results.load_before();
    if (!add_up(p.parts, smem.tile, share, d)) continue;
    if (!kHasRegisters) results.load_before();
    share_sums(smem.tile, d);
    results.store();
    named_barrier_sync(1, Traits::kThreads);
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

using Format = tessera::formats::TESSERA_BLOCKS;

#define TESSERA_BLOCK_ROWS_KERNEL(T, kN)                                           \
  extern "C" __global__ void __launch_bounds__(block_rows_threads(kN), 1)          \
      gemm_few_rows_blocks_##T##_##kN(const __grid_constant__ BlockRowsParams p) { \
    gemm_few_rows_blocks<T, Format, kN>(p);                                        \
  }
#define TESSERA_PREPARING_KERNEL(T, kN)                                                    \
  extern "C" __global__ void __launch_bounds__(kPrepareThreads)                            \
      gemm_few_rows_blocks_prepare_##T##_##kN(const __grid_constant__ BlockRowsParams p) { \
    prepare_x<T, Format, kN>(p);                                                           \
  }
#define TESSERA_BLOCK_ROWS_KERNELS(T) \
  TESSERA_BLOCK_ROWS_KERNEL(T, 16)    \
  TESSERA_BLOCK_ROWS_KERNEL(T, 32)    \
  TESSERA_BLOCK_ROWS_KERNEL(T, 64)    \
  TESSERA_PREPARING_KERNEL(T, 64)
#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
TESSERA_BLOCK_ROWS_KERNELS(f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_BLOCK_ROWS_KERNELS(bf16)
#endif
