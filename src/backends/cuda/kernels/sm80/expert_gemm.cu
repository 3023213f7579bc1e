// Products of slots of a mixture of experts with 16-bit weights of x's type on the tensor cores: tiles of
// slots of one expert share what is read of its weight. A slot's sums don't depend on which others are in its
// tile.
//
// Grid: (tiles of 128 rows of w, as many tiles of 64 slots as there can be). A block's eight warps compute 32
// x 32 outputs each. Rows of x, found by their slots, and of w come by asynchronous copies, 64 columns a
// stage.

#include "common/expert_tiles.cuh"
#include "sm80/expert_gemm_traits.h"
#include "sm80/ptx.cuh"

namespace tessera::kernels {

constexpr int kRowVectors = kExpertTileK / 8;  // of 16 bytes, of a row's stage
constexpr int kRowsAtOnce = kExpertThreads / kRowVectors;
constexpr int kXLoads = kExpertTileM / kRowsAtOnce;
constexpr int kWLoads = kExpertTileN / kRowsAtOnce;
constexpr int kStageRows = kExpertTileM + kExpertTileN;  // first those of x

/// Where 16 bytes of a row of a stage stand: eight rows' are on different banks.
TESSERA_DEVICE unsigned vector_place(int row, int vector) {
  return static_cast<unsigned>(row * kRowVectors + (vector ^ (row % kRowVectors))) * 16;
}

/// What a thread copies: vector thread_x() % 8 of some rows of x and of w.
template <class T>
struct StageCopies {
  const T* x[kXLoads];  // null: no such row
  const T* w[kWLoads];
  int row, vector;

  TESSERA_DEVICE StageCopies(const ExpertGemmParams& p, const GemmParams& g, const ExpertTile& tile,
                             int64 first_n) {
    row = thread_x() / kRowVectors;
    vector = thread_x() % kRowVectors;
    TESSERA_UNROLL
    for (int i = 0; i < kXLoads; ++i) {
      const int m = row + i * kRowsAtOnce;
      x[i] = m < tile.count ? static_cast<const T*>(g.x.data) +
                                  p.routing.order[tile.begin + m] / p.slots_of_row * g.x.row_stride
                            : nullptr;
    }
    TESSERA_UNROLL
    for (int i = 0; i < kWLoads; ++i) {
      const int64 n = first_n + row + i * kRowsAtOnce;
      w[i] = n < g.n ? static_cast<const T*>(g.weight.data) + n * g.k : nullptr;
    }
  }

  /// Asks for the columns from `column` on; there are zeros behind the last of k.
  TESSERA_DEVICE void load(unsigned stage, int64 column, int64 k) const {
    const int64 first = column + vector * 8;
    const bool is_there = first < k;
    TESSERA_UNROLL
    for (int i = 0; i < kXLoads; ++i)
      copy(stage + vector_place(row + i * kRowsAtOnce, vector), x[i], first, is_there);
    TESSERA_UNROLL
    for (int i = 0; i < kWLoads; ++i)
      copy(stage + vector_place(kExpertTileM + row + i * kRowsAtOnce, vector), w[i], first, is_there);
  }

 private:
  TESSERA_DEVICE static void copy(unsigned to, const T* from, int64 first, bool is_there) {
    const bool valid = is_there && from != nullptr;
    cp_async_16(to, valid ? from + first : nullptr, valid);
  }
};

/// Adds the products of a stage to a warp's sums: (tiles of 16 slots, tiles of 8 rows of w).
template <class T>
TESSERA_DEVICE void multiply_stage(unsigned stage, int first_m, int first_n, int lane,
                                   float (&sum)[2][4][4]) {
  TESSERA_UNROLL
  for (int step = 0; step < kExpertTileK / 16; ++step) {
    unsigned a[2][4], b[2][4];
    TESSERA_UNROLL
    for (int i = 0; i < 2; ++i)
      ldmatrix_x4(a[i], stage + vector_place(first_m + i * 16 + lane % 16, 2 * step + lane / 16));
    TESSERA_UNROLL
    for (int j = 0; j < 2; ++j) {
      const int row = first_n + j * 16 + lane % 8 + lane / 16 * 8;
      ldmatrix_x4(b[j], stage + vector_place(kExpertTileM + row, 2 * step + lane / 8 % 2));
    }
    TESSERA_UNROLL
    for (int i = 0; i < 2; ++i) {
      TESSERA_UNROLL
      for (int j = 0; j < 4; ++j)
        mma_m16n8k16<T>(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

template <class T>
TESSERA_DEVICE void expert_gemm(const ExpertGemmParams& p) {
  TESSERA_DYNAMIC_SHARED(shared);
  allow_next_kernel();
  wait_for_prior_kernels();
  const ExpertTile tile = find_expert_tile(p.routing, block_y(), kExpertTileM);
  if (tile.count == 0) return;
  const GemmParams g = product_of_expert(p, tile.expert);
  const int64 tile_n = static_cast<int64>(block_x()) * kExpertTileN;
  const StageCopies<T> copies(p, g, tile, tile_n);
  const unsigned first_stage = shared_address(shared);
  const auto stage_of = [&](int64 number) {
    return first_stage + static_cast<unsigned>(number % kExpertStages) * (kStageRows * kExpertTileK * 2);
  };
  const int64 stages = (g.k + kExpertTileK - 1) / kExpertTileK;
  TESSERA_UNROLL
  for (int i = 0; i < kExpertStages - 1; ++i) {
    if (i < stages) copies.load(stage_of(i), int64{i} * kExpertTileK, g.k);
    cp_async_commit();
  }
  const int lane = thread_x() % 32, warp = thread_x() / 32;
  const int warp_m = warp % 2 * 32, warp_n = warp / 2 * 32;
  float sum[2][4][4] = {};
  for (int64 i = 0; i < stages; ++i) {
    cp_async_wait<kExpertStages - 2>();
    sync_threads();  // the stage is there for all, and none reads the one that is asked for next
    if (const int64 next = i + kExpertStages - 1; next < stages)
      copies.load(stage_of(next), next * kExpertTileK, g.k);
    cp_async_commit();
    multiply_stage<T>(stage_of(i), warp_m, warp_n, lane, sum);
  }
  TESSERA_UNROLL
  for (int i = 0; i < 2; ++i) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int m = warp_m + i * 16 + r * 8 + lane / 4;
      if (m >= tile.count) continue;
      const int64 out = p.routing.order[tile.begin + m] * g.out.row_stride;
      TESSERA_UNROLL
      for (int j = 0; j < 4; ++j) {
        TESSERA_UNROLL
        for (int c = 0; c < 2; ++c) {
          const int64 n = tile_n + warp_n + j * 8 + lane % 4 * 2 + c;
          if (n >= g.n) continue;
          float value = sum[i][j][2 * r + c];
          if (g.bias.data != nullptr) value += load_scalar(g.bias, n);
          store_scalar(g.out, out + n, value);
        }
      }
    }
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

TESSERA_KERNEL(expert_gemm_f16, kExpertThreads)(const ExpertGemmParams p) { expert_gemm<f16>(p); }
TESSERA_KERNEL(expert_gemm_bf16, kExpertThreads)(const ExpertGemmParams p) { expert_gemm<bf16>(p); }
