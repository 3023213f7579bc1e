// Products of slots of a mixture of experts with weights of blocks (TESSERA_BLOCKS), some slots an expert:
// what is read of an expert's weights serves a tile of its slots, 16 or 32. As gemm_few_rows_blocks.cu each
// warp of three or four warpgroups takes 16 rows of w apart in registers, which wgmma multiplies with rows of
// x in shared memory; one warpgroup brings w as it is stored, one makes the slots' rows of x ready.
//
// Blocks stay, one a multiprocessor, and take items (expert_items.cuh), all steps of each: the next one's
// weights are on their way while this one's results are stored. A slot is a column of its own, so that its
// sums don't depend on which others are in its tile.
//
// k is a multiple of 256 or, of formats whose pieces are no multiples of 16 bytes, of a block: then the last
// piece of a row goes on into the next row's blocks, which meet zeros of x.

#include "sm80/block_units.cuh"
#include "sm90/block_rows_products.cuh"
#include "sm90/expert_blocks.h"
#include "sm90/expert_items.cuh"

namespace tessera::kernels {

template <class Format, int kN>
TESSERA_DEVICE ExpertItems items_of(const ExpertBlocksParams& p) {
  return ExpertItems(p.product.routing, p.w_tiles, kN);
}
/// Of a row of w.
TESSERA_DEVICE int pieces_of(const ExpertBlocksParams& p) {
  return static_cast<int>((p.product.gemm.k + kPieceColumns - 1) / kPieceColumns);
}

/// Brings w, piece by piece. By one warpgroup.
template <class Format, int kN>
TESSERA_DEVICE void copy_weights(const ExpertBlocksParams& p, BlockRowsStorage<Format, kN>& smem) {
  using Traits = BlockRowsTraits<Format, kN>;
  using Unit = typename Traits::Unit;
  const int lane = thread_x() % 32, warp = thread_x() / 32 % 4;
  const UnitCopies<Format, true> copies(kTileRows / 2, p.row_bytes, lane);
  const int n = static_cast<int>(p.product.gemm.n);
  const unsigned expert_bytes = static_cast<unsigned>(n) * p.row_bytes;
  int count = 0;
  for (ExpertItems items = items_of<Format, kN>(p); items.next();) {
    const auto* const w = static_cast<const unsigned char*>(p.product.gemm.weight.data) +
                          items.expert() * p.product.expert_bytes;
    const int first_row = items.w_tile() * (Traits::kWarps * kTileRows);
    for (int piece = 0; piece < pieces_of(p); ++piece, ++count) {
      const int place = count % Traits::kStages;
      smem.ring.wait_emptied(count);
      TESSERA_UNROLL_BY(1)
      for (int i = warp; i < Traits::kWarps; i += 4) {
        const int row = first_row + i * kTileRows;
        if (row >= n) break;  // of what is there then, nothing is stored
        const unsigned offset =
            static_cast<unsigned>(row) * p.row_bytes + static_cast<unsigned>(piece) * Unit::kBytes;
        copies.start(shared_address(smem.stages[place].w[i]), w, offset, expert_bytes, lane);
      }
      const unsigned filled = shared_address(&smem.ring.filled[place]);
      cp_async_mbarrier_arrive(filled);
      sync_warp();  // bytes at the matrix's end are stored by lanes themselves
      if (lane == 0) mbarrier_arrive(filled);
    }
  }
}

/// Makes the slots' rows of x ready, piece by piece. By a warpgroup.
template <class X, class Format, int kN>
TESSERA_DEVICE void make_slots_ready(const ExpertBlocksParams& p, BlockRowsStorage<Format, kN>& smem) {
  constexpr int kBatches = kN / (4 * kRowsOfWarp);
  const GemmParams& g = p.product.gemm;
  const int warp_row = thread_x() / 32 % 4 * kRowsOfWarp;
  RowsOfX<X, Format, kN> rows[kBatches];
  const X* x[kBatches] = {};
  int count = 0;
  for (ExpertItems items = items_of<Format, kN>(p); items.next();) {
    TESSERA_UNROLL
    for (int i = 0; i < kBatches; ++i) {
      // Rows beyond the last are multiplied, whatever they are, and not stored.
      const int row = minimum(warp_row + i * 4 * kRowsOfWarp + thread_x() % 32 / 8, items.count() - 1);
      x[i] = static_cast<const X*>(g.x.data) + items.slot(row) / p.product.slots_of_row * g.x.row_stride;
    }
    const auto load = [&](int piece) {
      TESSERA_UNROLL
      for (int i = 0; i < kBatches; ++i)
        rows[i].load_row(x[i], warp_row + i * 4 * kRowsOfWarp, piece, static_cast<int>(g.k));
    };
    load(0);
    for (int piece = 0; piece < pieces_of(p); ++piece, ++count) {
      TESSERA_UNROLL
      for (int i = 0; i < kBatches; ++i) rows[i].convert();
      if (piece + 1 < pieces_of(p)) load(piece + 1);  // on the way while a place is waited for
      const int place = count % BlockRowsTraits<Format, kN>::kStages;
      smem.ring.wait_emptied(count);
      TESSERA_UNROLL
      for (int i = 0; i < kBatches; ++i) rows[i].store(smem.stages[place].x[0], smem.factors[place]);
      smem.ring.template fill_by_lanes<kLanesOfRow>(count);
    }
  }
}

/// Multiplies and stores, item by item. By the other warpgroups.
template <class X, class Format, int kN>
TESSERA_DEVICE void multiply_items(const ExpertBlocksParams& p, BlockRowsStorage<Format, kN>& smem) {
  using Traits = BlockRowsTraits<Format, kN>;
  constexpr bool kAnyRows = !Traits::Unit::kIsAligned;
  const int lane = thread_x() % 32;
  int count = 0;
  for (ExpertItems items = items_of<Format, kN>(p); items.next();) {
    const GemmParams g = product_of_expert(p.product, items.expert());
    const int first_row = (items.w_tile() * Traits::kWarps + static_cast<int>(thread_x()) / 32) * kTileRows;
    float d[kN / 2] = {};
    const auto first_byte = [&](int r) {
      return static_cast<unsigned>(first_row + lane / 4 + r * (kTileRows / 2)) * p.row_bytes;
    };
    multiply_steps<Format, kN, kAnyRows>(smem, first_byte, 0, pieces_of(p), count, d);
    float bias[2] = {};
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + lane / 4 + half * 8;
      if (g.bias.data != nullptr && row < g.n) bias[half] = load_scalar(g.bias, row);
    }
    TESSERA_UNROLL
    for (int i = 0; i < kN / 4; ++i) {
      const int m = i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (m >= items.count()) continue;
      const int64 out = items.slot(m) * g.out.row_stride + first_row + lane / 4;
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        if (first_row + lane / 4 + half * 8 < g.n)
          store_scalar(g.out, out + half * 8, d[i / 2 * 4 + half * 2 + i % 2] + bias[half]);
      }
    }
  }
}

template <class X, class Format, int kN>
TESSERA_DEVICE void expert_blocks(const ExpertBlocksParams& p) {
  using Traits = BlockRowsTraits<Format, kN>;
  using Storage = BlockRowsStorage<Format, kN>;
  static_assert(!Traits::kIsPrepared, "rows of x differ from item to item");
  TESSERA_DYNAMIC_SHARED(shared);
  Storage& smem = *reinterpret_cast<Storage*>(shared + (1024 - shared_address(shared) % 1024) % 1024);
  if (thread_x() == 0) {
    // As gemm_few_rows_blocks() has it.
    smem.ring.start(Traits::kThreads, kWarpgroup + 4 + kWarpgroup / kLanesOfRow);
    fence_mbarrier_init();
  }
  allow_next_kernel();
  sync_threads();
  wait_for_prior_kernels();
  const int warpgroup = thread_x() / kWarpgroup - Traits::kWarpgroups;
  if (warpgroup == 0) {
    setmaxnreg_dec<Traits::kRegistersOfW>();
    copy_weights<Format, kN>(p, smem);
  } else if (warpgroup == 1) {
    setmaxnreg_dec<Traits::kRegistersOfX>();
    make_slots_ready<X, Format, kN>(p, smem);
  } else {
    setmaxnreg_inc<Traits::kRegistersOfSums>();
    multiply_items<X, Format, kN>(p, smem);
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

using Format = tessera::formats::TESSERA_BLOCKS;

#define TESSERA_EXPERT_BLOCKS_KERNEL(T, kN)                                    \
  extern "C" __global__ void __launch_bounds__(block_rows_threads(kN), 1)      \
      expert_blocks_##T##_##kN(const __grid_constant__ ExpertBlocksParams p) { \
    expert_blocks<T, Format, kN>(p);                                           \
  }
#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
TESSERA_EXPERT_BLOCKS_KERNEL(f16, 16)
TESSERA_EXPERT_BLOCKS_KERNEL(f16, 32)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_EXPERT_BLOCKS_KERNEL(bf16, 16)
TESSERA_EXPERT_BLOCKS_KERNEL(bf16, 32)
#endif
