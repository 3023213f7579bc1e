// out = x w^T (+ bias) (+ out) on the matrix units, fp32 sums, for w in blocks of one format
// (TESSERA_BLOCKS), which are not widened in memory first. A group's integers are multiplied as they are,
// exact in 16 bits; their sum, times the group's step, joins the others, and so does the group's offset times
// the sum of x. An fp32 x is three bf16, and one of f16 two where matrix units take its small numbers as 0,
// so that nothing but sums is rounded.
//
//   w: 16 bytes a lane, of whole blocks -> registers -> LDS, as stored -> a unit of 32 columns a thread
//      -> LDS, 16-bit integers -> B
//   x: 16 bytes a lane -> registers -> LDS -> A;  sums of x over groups -> LDS
//
// Grid: (tiles of n * tiles of m), m first, so that blocks which run together share a tile of w. A wave has
// kTilesM x kTilesN tiles of 16 x 16 outputs, a lane one column of each. Blocks' bytes come 128 or 256
// columns at a time, and are taken apart in steps of kBlockStepColumns.

#include "matrix/gemm_blocks.hip.h"
#include "matrix/gemm_results.hip.h"

using namespace tessera::kernels;

namespace tessera::kernels {

template <class X_, class Format_, int kRowsOfX>
struct BlockGemmTraits {
  using X = X_;
  using Format = Format_;
  static constexpr bool kIsSplit = sizeof(X) == 4 || kWidens<X>;
  static constexpr GemmTiles kTiles = gemm_blocks_tiles(kRowsOfX, kIsSplit);
  static constexpr int kTilesM = kTiles.tiles_m, kTilesN = kTiles.tiles_n, kWavesM = kTiles.waves_m;
  static constexpr int kThreads = kTiles.waves() * kWarpSize;
  static constexpr int kRowsM = kTiles.rows_m(), kRowsN = kTiles.rows_n();

  using T = typename Either<kIsSplit, bf16, X>::Type;  // of the products
  using SplitX = SplitTile<X, kBlockStepColumns, kRowsM, kThreads>;
  using PlainX = PlainTile<kBlockStepColumns, kRowsM, kThreads>;
  static constexpr int kParts = kIsSplit ? SplitX::kParts : 1;
  using TileX = typename Either<kIsSplit, SplitX, PlainX>::Type;
  using Blocks = BlockRows<Format, kRowsN, kThreads>;
  using TileW = OperandRows<T, Format, kRowsN, kThreads>;
  static constexpr int kStepsOfBlocks = Blocks::kColumns / kBlockStepColumns;
  struct Shared {
    typename TileX::Shared x;
    typename TileW::Shared w;
    typename Blocks::Shared blocks;
    alignas(Accumulator<16>) float x_sums[TileW::kHasOffset ? TileW::kGroups * kRowsM : 1];
  };
  static_assert(sizeof(Shared) <= kSharedBytes, "tiles do not fit in LDS");
};

/// x in LDS, or a part of its numbers.
template <class Traits>
TESSERA_DEVICE const Word4* part_of(const typename Traits::Shared& shared, int part) {
  if constexpr (Traits::kIsSplit) {
    return shared.x.slots[part];
  } else {
    return shared.x.slots;
  }
}

/// Adds a group's products to sums.
template <class Traits>
TESSERA_DEVICE void multiply_group(const typename Traits::Shared& shared, int row_m, int row_n, int group,
                                   TileSums<Traits::kTilesM, Traits::kTilesN>& sums) {
  using T = typename Traits::T;
  using TileW = typename Traits::TileW;
  using Rows = typename TileW::SharedRows;
  using O = Operand<T, 16>;
  const unsigned x = operand_offset<T, 16, Rows>(row_m);
  const unsigned w = operand_offset<T, 16, Rows>(row_n);
  TileSums<Traits::kTilesM, Traits::kTilesN> products = {};
  TESSERA_UNROLL
  for (int s = 0; s < TileW::kGroupColumns / kOperandK; ++s) {
    const int element = group * TileW::kGroupColumns + s * kOperandK;
    O b[Traits::kTilesN];
    TESSERA_UNROLL
    for (int n = 0; n < Traits::kTilesN; ++n)
      b[n] = load_operand<T, 16, Rows>(shared.w.slots, w, n * 16, element);
    TESSERA_UNROLL
    for (int m = 0; m < Traits::kTilesM; ++m) {
      TESSERA_UNROLL
      for (int part = 0; part < Traits::kParts; ++part) {
        const O a = load_operand<T, 16, Rows>(part_of<Traits>(shared, part), x, m * 16, element);
        TESSERA_UNROLL
        for (int n = 0; n < Traits::kTilesN; ++n)
          products[m][n] = multiply_add<T, 16>(a, b[n], products[m][n]);
      }
    }
  }
  TESSERA_UNROLL
  for (int m = 0; m < Traits::kTilesM; ++m) {
    TESSERA_UNROLL
    for (int n = 0; n < Traits::kTilesN; ++n) {
      const int place = group * Traits::kRowsN + row_n + n * 16;
      sums[m][n] += products[m][n] * shared.w.steps[place];
      if constexpr (TileW::kHasOffset) {
        const int row = row_m / 16 * 16 + m * 16 + lane_group<16>() * (256 / kWarpSize);
        const float* const of_rows = &shared.x_sums[group * Traits::kRowsM + row];
        sums[m][n] += *reinterpret_cast<const Accumulator<16>*>(of_rows) * shared.w.offsets[place];
      }
    }
  }
  // Else the operands of all groups are loaded ahead, which takes more registers than there are.
  __builtin_amdgcn_sched_barrier(0);
}

template <class Traits>
TESSERA_DEVICE void gemm_blocks(const GemmParams& p) {
  using X = typename Traits::X;
  using TileW = typename Traits::TileW;
  TESSERA_SHARED(shared, typename Traits::Shared);
  const int tiles_m = static_cast<int>((p.m + Traits::kRowsM - 1) / Traits::kRowsM);
  const int64 block_m = static_cast<int64>(block_x() % tiles_m) * Traits::kRowsM;
  const int64 block_n = static_cast<int64>(block_x() / tiles_m) * Traits::kRowsN;
  const int wave = uniform(thread_x() / kWarpSize);
  const int wave_m = wave % Traits::kWavesM * (Traits::kTilesM * 16);
  const int wave_n = wave / Traits::kWavesM * (Traits::kTilesN * 16);

  typename Traits::TileX x(p.x, block_m, p.m);
  typename Traits::Blocks blocks(p, block_n);
  TileSums<Traits::kTilesM, Traits::kTilesN> sums = {};
  blocks.load();
  x.load(p.k);
  blocks.store(shared.blocks);
  if (p.k > Traits::Blocks::kColumns) blocks.load();
  sync_threads();
  unsigned step = 0;  // of the blocks in LDS
  for (int64 left = p.k; left > 0; left -= kBlockStepColumns) {
    TileW::unpack(blocks, shared.blocks, step, left, shared.w);
    if constexpr (TileW::kHasOffset)
      store_sums_of_x<X, TileW::kGroupColumns, Traits::kRowsM>(x, shared.x_sums);
    x.store(shared.x);
    sync_threads();
    const bool takes_blocks = ++step == Traits::kStepsOfBlocks && left > kBlockStepColumns;
    if (takes_blocks) blocks.store(shared.blocks);
    // Loads end in order: x, which is waited for first, comes before w.
    if (left > kBlockStepColumns) x.load(left - kBlockStepColumns);
    if (takes_blocks) {
      step = 0;
      if (left > kBlockStepColumns + Traits::Blocks::kColumns) blocks.load();
    }
    // No branch between products and the barrier, behind which clang would move them, operands held.
    TESSERA_UNROLL
    for (int group = 0; group < TileW::kGroups; ++group)
      multiply_group<Traits>(shared, wave_m + operand_row<16>(), wave_n + operand_row<16>(), group, sums);
    sync_threads();
  }
  // x's type, or fp32.
  if (p.out.type == kElementF32) {
    store_sums<float>(p, block_m + wave_m, block_n + wave_n, sums);
  } else if constexpr (sizeof(X) == 2) {
    store_sums<X>(p, block_m + wave_m, block_n + wave_n, sums);
  }
}

}  // namespace tessera::kernels

// Two waves a SIMD: sums then stay out of CDNA's accumulation registers, from which they would be moved for
// every group. That LDS may leave fewer is nothing to warn of.
#pragma clang diagnostic ignored "-Wpass-failed"
#define TESSERA_BLOCKS_TRAITS(rows, X) BlockGemmTraits<X, tessera::formats::TESSERA_BLOCKS, rows>
#define TESSERA_BLOCKS_KERNEL(name, rows, X)                                                          \
  extern "C" __attribute__((global)) void __attribute__((                                             \
      amdgpu_waves_per_eu(2), amdgpu_flat_work_group_size(TESSERA_BLOCKS_TRAITS(rows, X)::kThreads,   \
                                                          TESSERA_BLOCKS_TRAITS(rows, X)::kThreads))) \
  gemm_blocks_##name##_##rows(const GemmParams p) {                                                   \
    gemm_blocks<TESSERA_BLOCKS_TRAITS(rows, X)>(p);                                                   \
  }

TESSERA_BLOCKS_KERNEL(f16, 16, f16)
TESSERA_BLOCKS_KERNEL(f16, 32, f16)
#if !defined(__gfx90a__)  // of two parts
TESSERA_BLOCKS_KERNEL(f16, 64, f16)
#endif
TESSERA_BLOCKS_KERNEL(bf16, 16, bf16)
TESSERA_BLOCKS_KERNEL(bf16, 32, bf16)
TESSERA_BLOCKS_KERNEL(bf16, 64, bf16)
TESSERA_BLOCKS_KERNEL(f32, 16, float)
TESSERA_BLOCKS_KERNEL(f32, 32, float)
