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
#include "sm90/block_rows_x.cuh"
#include "sm90/ring_barriers.cuh"
#include "sm90/wgmma.cuh"

namespace tessera::kernels {

template <class Format, int kN>
struct BlockRowsStorage {
  using Traits = BlockRowsTraits<Format, kN>;
  struct alignas(1024) Stage {
    unsigned char x[Traits::kPanels][Traits::kPanelBytes];
    unsigned char w[Traits::kWarps][Traits::Unit::kUnitBytes];
  };
  Stage stages[Traits::kStages];
  RingBarriers<Traits::kStages> ring;
  float factors[Traits::kStages][kN];  // that rows of x were divided by
  TileSums<kN, Traits::kWarpgroups> tile;

  static_assert(sizeof(Stage) == block_rows_step_bytes(Traits::kFormat, kN));
  static_assert(Traits::kStages * (sizeof(RingBarriers<1>) + kN * 4) + sizeof(tile) <=
                    block_rows_other_bytes(kN),
                "the host asks for as much");
};

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
        copies_(p.product, row_bytes_, lane_),
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

/// Multiplies a step's unit of w by x: sum = w xT, but for x's factors.
template <class Format, int kN>
TESSERA_DEVICE void multiply_step(float (&sum)[kN / 2], BlockFragment<Format>& w, unsigned x) {
  using Traits = BlockRowsTraits<Format, kN>;
  using Fragment = BlockFragment<Format>;
  constexpr int kSums = kN / 2;
  const unsigned long long first = descriptor_of_rows(x);
  const auto columns = [&](int group, int step) {
    return first + (group / 2 * Traits::kPanelBytes + group % 2 * 64 + step * 32) / 16;
  };
  float of_offsets[kSums];
  unsigned offsets[4];
  if constexpr (Traits::kHasOffsets) {
    w.offsets(offsets);
    pin_registers(offsets);
    wgmma_fence();
    const auto sums_of_x = [&](int i) {
      return first + (kPieceColumns / 64 * Traits::kPanelBytes + i * 32) / 16;
    };
    Wgmma<f16, kN>::registers_rows(of_offsets, offsets, sums_of_x(0), false);
    if constexpr (Fragment::kOffsetGroups == 16)
      Wgmma<f16, kN>::registers_rows(of_offsets, offsets, sums_of_x(1), true);
    wgmma_commit_group();
  }
  BlockOperands a[2];  // the next group's are made while those of one are multiplied
  if constexpr (Fragment::kStepColumns == 256) {
    TESSERA_UNROLL
    for (int group = 0; group < kPieceGroups; ++group) {
      BlockOperands& now = a[group % 2];
      w.operands(group, now);
      wgmma_fence();
      TESSERA_UNROLL
      for (int step = 0; step < 2; ++step)
        Wgmma<f16, kN>::registers_rows(sum, now[step], columns(group, step), group > 0 || step > 0);
      wgmma_commit_group();
      if (group > 0) {
        wgmma_wait_group<1>();
        pin_registers(a[(group - 1) % 2][0]);
        pin_registers(a[(group - 1) % 2][1]);
      }
    }
    wgmma_wait_group<0>();
    pin_registers(a[1][0]);
    pin_registers(a[1][1]);
    pin_registers(sum);
  } else {
    constexpr int kStepsTogether = Fragment::kStepColumns / 16;
    constexpr int kParts = 2 * kPieceGroups / kStepsTogether;
    float c[2][kSums];
    TESSERA_UNROLL
    for (int i = 0; i < kSums; ++i) sum[i] = 0.0f;
    const auto add_part = [&](int part) {
      const int step = part * kStepsTogether;
      pin_registers(c[part % 2]);
      pin_registers(a[step / 2 % 2][step % 2]);
      if (kStepsTogether == 2) pin_registers(a[step / 2 % 2][1]);
      TESSERA_UNROLL
      for (int i = 0; i < kSums; ++i)
        sum[i] = fmaf(c[part % 2][i], w.scale(step / 2, step % 2, i % 4 / 2), sum[i]);
    };
    TESSERA_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const int first_step = part * kStepsTogether;
      BlockOperands& now = a[first_step / 2 % 2];
      if (first_step % 2 == 0) w.operands(first_step / 2, now);
      wgmma_fence();
      TESSERA_UNROLL
      for (int i = 0; i < kStepsTogether; ++i) {
        const int step = (first_step + i) % 2;
        Wgmma<f16, kN>::registers_rows(c[part % 2], now[step], columns(first_step / 2, step), i > 0);
      }
      wgmma_commit_group();
      if (part > 0) {
        wgmma_wait_group<1>();
        add_part(part - 1);
      }
    }
    wgmma_wait_group<0>();
    add_part(kParts - 1);
  }
  TESSERA_UNROLL
  for (int i = 0; i < kSums; ++i) sum[i] *= w.final_scale(i % 4 / 2);
  if constexpr (Traits::kHasOffsets) {
    pin_registers(of_offsets);
    pin_registers(offsets);
    TESSERA_UNROLL
    for (int i = 0; i < kSums; ++i)
      sum[i] = fmaf(of_offsets[i], w.final_offset_scale(i % 4 / 2) * kXSumFactor, sum[i]);
  }
}

/// Adds up a share's products.
template <class Format, int kN>
TESSERA_DEVICE void multiply_share(const BlockRowsParams& p, BlockRowsStorage<Format, kN>& smem,
                                   const TileShare& share, int& count, float (&d)[kN / 2]) {
  using Traits = BlockRowsTraits<Format, kN>;
  using Unit = typename Traits::Unit;
  const int lane = thread_x() % 32, warp = thread_x() / 32;
  const unsigned row_bytes = static_cast<unsigned>(p.product.gemm.k / kPieceColumns) * Unit::kBytes;
  const int first_row = first_row_of_group(p.product, share.tile * Traits::kWarps + warp) + lane / 4;
  for (int step = share.begin; step < share.end; ++step, ++count) {
    const int place = count % Traits::kStages;
    auto& stage = smem.stages[place];
    smem.ring.wait_filled(count);
    typename Traits::Fragment::Rows rows;
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      // Where the row's piece begins in the first of its vectors: a multiple of 2 bytes.
      const unsigned row = static_cast<unsigned>(first_row + r * p.product.rows_apart);
      const unsigned begin =
          Unit::kIsAligned ? 0 : (row * row_bytes + static_cast<unsigned>(step) * Unit::kBytes) % 16;
      rows.row[r] = stage.w[warp] + (lane / 4 + 8 * r) * Unit::kStrideBytes + begin / 4 * 4;
      rows.behind[r] = Unit::kBytes % 4 == 0 ? 0 : begin % 4;
    }
    typename Traits::Fragment w;
    w.load(rows, lane % 4);
    float sum[kN / 2];
    multiply_step<Format, kN>(sum, w, shared_address(stage.x[0]));
    TESSERA_UNROLL
    for (int tile = 0; tile < kN / 8; ++tile) {
      const auto factors =
          *reinterpret_cast<const Vector<float, 2>*>(&smem.factors[place][tile * 8 + lane % 4 * 2]);
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i)
        d[tile * 4 + i] = fmaf(sum[tile * 4 + i], factors.element[i % 2], d[tile * 4 + i]);
    }
    smem.ring.release(count);
  }
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
    multiply_share<Format, kN>(p, smem, share, count, d);
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
