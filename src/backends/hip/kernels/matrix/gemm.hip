// out = x w^T (+ bias) (+ out) on the matrix units, fp32 sums: x and w of one 16-bit type, or w of Q8_0
// blocks and x of any type. Integers of blocks are multiplied as they are, exact in 16 bits, and their sums
// over a block by its scale; an fp32 x is three bf16, so that nothing but sums is rounded.
//
// Grid: (tiles of n * tiles of m), m first, so that blocks which run together share a tile of w. A wave has
// kTilesM x kTilesN tiles of 16 x 16 outputs, a lane one column of each. Steps of kDepth columns go from
// memory through registers to LDS.

#include "matrix/gemm.hip.h"
#include "matrix/gemm_results.hip.h"
#include "matrix/gemm_tiles.h"

using namespace tessera::kernels;

namespace tessera::kernels {

template <class X, class W, bool kIsLarge>
struct GemmTraits {
  static constexpr bool kIsQ8 = __is_same(W, Q8);
  static constexpr bool kIsSplit = sizeof(X) == 4;
  static_assert(kIsQ8 || (__is_same(X, W) && !kIsSplit));
  static constexpr GemmTiles kTiles = gemm_tiles(kIsLarge, kIsQ8, kIsSplit, TESSERA_MFMA != 0);
  static constexpr int kTilesM = kTiles.tiles_m, kTilesN = kTiles.tiles_n, kWavesM = kTiles.waves_m;
  static constexpr int kThreads = kTiles.waves() * kWarpSize;
  static constexpr int kRowsM = kTiles.rows_m(), kRowsN = kTiles.rows_n();
  static constexpr int kParts = kIsSplit ? 3 : 1;

  using T = typename Either<kIsSplit, bf16, X>::Type;  // of the products
  using TileX = typename Either<kIsSplit, SplitTile<float, kDepth, kRowsM, kThreads>,
                                PlainTile<kDepth, kRowsM, kThreads>>::Type;
  using TileW =
      typename Either<kIsQ8, BlocksTile<T, kRowsN, kThreads>, PlainTile<kDepth, kRowsN, kThreads>>::Type;
  struct Shared {
    typename TileX::Shared x;
    typename TileW::Shared w;
  };
  static_assert(sizeof(Shared) <= kSharedBytes, "tiles do not fit in LDS");
};

template <class Traits>
using Sums = TileSums<Traits::kTilesM, Traits::kTilesN>;

/// Adds the products of kOperands * 16 columns of the step, from operand `first` on, to sums; Q8_0: of block
/// first / 2.
template <class Traits, int kOperands>
TESSERA_DEVICE void multiply_columns(const typename Traits::Shared& shared, int row_m, int row_n, int first,
                                     Sums<Traits>& sums) {
  using T = typename Traits::T;
  using O = Operand<T, 16>;
  static_assert(
      (Traits::kTilesM & (Traits::kTilesM - 1)) == 0 && (Traits::kTilesN & (Traits::kTilesN - 1)) == 0,
      "rows of tiles have no bit in common with those of waves");
  const unsigned x = operand_offset<T, 16, StepRows>(row_m);
  const unsigned w = operand_offset<T, 16, StepRows>(row_n);
  O a[Traits::kTilesM][kOperands][Traits::kParts];
  TESSERA_UNROLL
  for (int m = 0; m < Traits::kTilesM; ++m) {
    TESSERA_UNROLL
    for (int s = 0; s < kOperands; ++s) {
      const int element = (first + s) * kOperandK;
      if constexpr (Traits::kIsSplit) {
        TESSERA_UNROLL
        for (int part = 0; part < Traits::kParts; ++part)
          a[m][s][part] = load_operand<T, 16, StepRows>(shared.x.slots[part], x, m * 16, element);
      } else {
        a[m][s][0] = load_operand<T, 16, StepRows>(shared.x.slots, x, m * 16, element);
      }
    }
  }
  TESSERA_UNROLL
  for (int n = 0; n < Traits::kTilesN; ++n) {
    O b[kOperands];
    TESSERA_UNROLL
    for (int s = 0; s < kOperands; ++s) {
      b[s] = load_operand<T, 16, StepRows>(shared.w.slots, w, n * 16, (first + s) * kOperandK);
    }
    TESSERA_UNROLL
    for (int m = 0; m < Traits::kTilesM; ++m) {
      Accumulator<16> products = Traits::kIsQ8 ? Accumulator<16>(0.0f) : sums[m][n];
      TESSERA_UNROLL
      for (int s = 0; s < kOperands; ++s) {
        TESSERA_UNROLL
        for (int part = 0; part < Traits::kParts; ++part)
          products = multiply_add<T, 16>(a[m][s][part], b[s], products);
      }
      if constexpr (Traits::kIsQ8) {
        sums[m][n] += products * Traits::TileW::scale(shared.w, first / 2, row_n + n * 16);
      } else {
        sums[m][n] = products;
      }
    }
  }
  // Else the operands of all blocks are loaded ahead, which takes more registers than there are.
  if constexpr (Traits::kIsQ8) __builtin_amdgcn_sched_barrier(0);
}

template <class Traits>
TESSERA_DEVICE void gemm(const GemmParams& p) {
  TESSERA_SHARED(shared, typename Traits::Shared);
  const int tiles_m = static_cast<int>((p.m + Traits::kRowsM - 1) / Traits::kRowsM);
  const int64 block_m = static_cast<int64>(block_x() % tiles_m) * Traits::kRowsM;
  const int64 block_n = static_cast<int64>(block_x() / tiles_m) * Traits::kRowsN;
  const int wave = __builtin_amdgcn_readfirstlane(thread_x() / kWarpSize);
  const int wave_m = wave % Traits::kWavesM * (Traits::kTilesM * 16);
  const int wave_n = wave / Traits::kWavesM * (Traits::kTilesN * 16);

  typename Traits::TileX x(p.x, block_m, p.m);
  typename Traits::TileW w(p.weight, block_n, p.n);
  Sums<Traits> sums = {};
  x.load(p.k);
  w.load(p.k);
  for (int64 left = p.k; left > 0; left -= kDepth) {
    x.store(shared.x);
    w.store(shared.w);
    sync_threads();
    if (left > kDepth) {
      x.load(left - kDepth);
      w.load(left - kDepth);
    }
    constexpr int kOperands = Traits::kIsQ8 ? 2 : 1;
    TESSERA_UNROLL
    for (int first = 0; first < kDepth / kOperandK; first += kOperands) {
      multiply_columns<Traits, kOperands>(shared, wave_m + operand_row<16>(), wave_n + operand_row<16>(),
                                          first, sums);
    }
    sync_threads();
  }
  // x's type, or fp32.
  if (p.out.type == kElementF32) {
    store_sums<float>(p, block_m + wave_m, block_n + wave_n, sums);
  } else if constexpr (!Traits::kIsSplit) {
    store_sums<typename Traits::T>(p, block_m + wave_m, block_n + wave_n, sums);
  }
}

}  // namespace tessera::kernels

#define TESSERA_GEMM_KERNEL(name, X, W, is_large)                                                 \
  extern "C" __attribute__((global)) void __attribute__((                                         \
      amdgpu_waves_per_eu(2), amdgpu_flat_work_group_size(GemmTraits<X, W, is_large>::kThreads,   \
                                                          GemmTraits<X, W, is_large>::kThreads))) \
  name(const GemmParams p) {                                                                      \
    gemm<GemmTraits<X, W, is_large>>(p);                                                          \
  }
#define TESSERA_GEMM_KERNELS(name, X, W)               \
  TESSERA_GEMM_KERNEL(gemm_##name##_large, X, W, true) \
  TESSERA_GEMM_KERNEL(gemm_##name##_small, X, W, false)

TESSERA_GEMM_KERNELS(f16_f16, f16, f16)
TESSERA_GEMM_KERNELS(bf16_bf16, bf16, bf16)
TESSERA_GEMM_KERNELS(f16_q8_0, f16, Q8)
TESSERA_GEMM_KERNELS(bf16_q8_0, bf16, Q8)
TESSERA_GEMM_KERNELS(f32_q8_0, float, Q8)
