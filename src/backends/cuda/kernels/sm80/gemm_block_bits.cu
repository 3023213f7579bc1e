// out = x w^T (+ bias) (+ out), or gated, for up to eight rows of 16-bit x and weights of blocks
// (TESSERA_BLOCKS), bound by reading w once: the tensor cores multiply the bits of the blocks' integers
// (block_bits.cuh). Of one or two rows x may be made here, the RMSNorm of fp32 rows, and the result rotated
// and appended to the cache. Where w's lower rows are of another format (TESSERA_LOWER_BLOCKS), the grid's
// last blocks take them and have code of their own.
//
// Grid and warps as gemm_blocks.cu has them. What differs is x, which has 1, 2, 4 or 8 rows (TESSERA_X_ROWS;
// the last are the same where it has fewer): block_bits_x.cuh.

#include "sm80/block_bits_units.cuh"

namespace tessera::kernels::bits {

/// Dynamic shared memory: the buffers; what warps keep of x; the sums; normed x; cosines and sines of each
/// row of x.
template <class X, class Format, int kXRows, bool kIsNormed>
TESSERA_DEVICE void gemm_block_bits(const BlockGemmParams& params, int block) {
  using Unit = WeightPiece<Format>;
  using Piece = typename XOfRows<X, Format, kXRows>::Type;
  constexpr bool kLoadsAhead = kXRows <= 2;  // x, if there are registers for it
  TESSERA_DYNAMIC_SHARED(shared);
  const StreamParams& stream = params.stream;
  const GemmParams& p = stream.gemm;
  const int lane = thread_x() % 32;
  const int warp = thread_x() / 32;
  const int warps = block_size() / 32;
  const int at_once = params.groups_at_once;
  const int pieces = static_cast<int>(p.k / kPieceColumns);
  const int x_rows = static_cast<int>(p.m);
  const int num_stages = params.stages;
  const unsigned row_bytes = static_cast<unsigned>(pieces) * Unit::kBytes;
  const Groups groups(params, block);
  unsigned char* stages = shared + warp * num_stages * Unit::kUnitBytes;
  float* x_sums = reinterpret_cast<float*>(shared + warps * num_stages * Unit::kUnitBytes);
  const LaneSums<kXRows> table{x_sums + warps * x_floats_of_piece(kXRows), at_once};
  Words* normed = reinterpret_cast<Words*>(table.at(warps, 0, 0));
  float* turns = reinterpret_cast<float*>(normed + (kIsNormed ? p.m * p.k / kGroupSize : 0));

  allow_next_kernel();
  const UnitCopies<Format> copies(stream.rows_apart, row_bytes, lane);
  UnitCursor next(groups, warp, pieces, at_once);
  const auto load_next = [&](int stage) {
    if (!next.is_done(groups)) {
      const unsigned offset = static_cast<unsigned>(groups.first_row(next.group)) * row_bytes +
                              static_cast<unsigned>(next.piece) * Unit::kBytes;
      copies.start(shared_address(stages + stage * Unit::kUnitBytes), p.weight.data, offset,
                   static_cast<unsigned>(p.n) * row_bytes, lane);
      next.advance(groups, warp, pieces, warps, at_once);
    }
    cp_async_commit();
  };
  const auto fill_stages = [&] {
    TESSERA_UNROLL_BY(1)
    for (int stage = 0; stage < num_stages; ++stage) load_next(stage);
  };
  if constexpr (kIsNormed) {
    const NormWeights<X, kNormedRowGroups> weights(stream, block_size());
    const Turn<kMostNormedRows> turn(stream);
    fill_stages();
    turn.store(stream, turns);
    wait_for_prior_kernels();
    const int x_groups = static_cast<int>(p.k / kGroupSize);
    if (p.m == 1) {
      norm_x<X, 1>(stream, block_size(), x_groups, weights, normed);
    } else {
      norm_x<X, kMostNormedRows>(stream, block_size(), x_groups, weights, normed);
    }
    sync_threads();
  } else {
    fill_stages();
    wait_for_prior_kernels();
  }
  const X* x_data = kIsNormed ? reinterpret_cast<const X*>(normed) : static_cast<const X*>(p.x.data);
  const int64 x_stride = kIsNormed ? p.k : p.x.row_stride;
  Piece x(x_sums + warp * x_floats_of_piece(kXRows), lane);
  typename Piece::Stored ahead;  // the next piece's, which memory takes its time for
  const auto load_x = [&](int piece) {
    ahead.load(x_data + static_cast<int64>(piece) * kPieceColumns, x_stride, x_rows, lane);
  };
  const unsigned above = opaque_two_to_the_23(stream);
  if (kLoadsAhead && warp < pieces) load_x(warp);

  int stage = 0;
  for (int first_group = groups.begin; first_group < groups.end; first_group += at_once) {
    const int count = minimum(at_once, groups.end - first_group);
    for (int group = 0; group < count; ++group) *table.at(warp, group, lane) = {};
    for (int piece = warp; piece < pieces; piece += warps) {
      if (!kLoadsAhead) load_x(piece);
      sync_warp();  // all lanes have read the piece before
      x.set(ahead, lane);
      if (kLoadsAhead) load_x(piece + warps < pieces ? piece + warps : warp);
      for (int group = 0; group < count; ++group) {
        if (num_stages == Unit::kStages) {
          cp_async_wait<Unit::kStages - 1>();
        } else {
          cp_async_wait<kLeastStages - 1>();
        }
        sync_warp();
        typename Piece::Fragment::Rows rows;
        rows.above = above;
        TESSERA_UNROLL
        for (int r = 0; r < 2; ++r) {
          // Where the row's piece begins in the first of its vectors: a multiple of 2 bytes.
          const unsigned row =
              static_cast<unsigned>(groups.first_row(first_group + group) + lane / 4 + r * stream.rows_apart);
          const unsigned begin =
              Unit::kIsAligned ? 0 : (row * row_bytes + static_cast<unsigned>(piece) * Unit::kBytes) % 16;
          rows.row[r] =
              stages + stage * Unit::kUnitBytes + (lane / 4 + 8 * r) * Unit::kStrideBytes + begin / 4 * 4;
          rows.behind[r] = Unit::kBytes % 4 == 0 ? 0 : begin % 4;
        }
        add_unit<kXRows>(table.at(warp, group, lane), x, rows, lane);
        sync_warp();
        load_next(stage);
        stage = stage + 1 == num_stages ? 0 : stage + 1;
      }
    }
    sync_threads();
    store_groups<X>(groups, first_group, count, table, turns, block_size());
    sync_threads();
  }
}

/// Of w's rows in two formats: each block takes groups of one of them.
template <class X, class Upper, class Lower, int kXRows, bool kIsNormed>
TESSERA_DEVICE void gemm_block_bits_of_two(const TwoBlockGemmParams& params) {
  if (block_x() < params.upper_blocks) {
    gemm_block_bits<X, Upper, kXRows, kIsNormed>(params.upper, block_x());
  } else {
    gemm_block_bits<X, Lower, kXRows, kIsNormed>(params.lower, block_x() - params.upper_blocks);
  }
}

}  // namespace tessera::kernels::bits

using namespace tessera::kernels;

using Format = tessera::formats::TESSERA_BLOCKS;

#ifndef TESSERA_X_ROWS
#define TESSERA_X_ROWS 2
#endif
#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
// Behind Hopper the compiler would keep some blocks of 32 to 64 registers, for two blocks of threads, and
// spill; 0 leaves it to the compiler.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 900
#define TESSERA_BITS_BOUNDS \
  512, (Format::kElements == 32 && (Format::kHasOffset || TESSERA_X_ROWS == 8) ? 1 : 0)
#else
#define TESSERA_BITS_BOUNDS 512
#endif
#ifdef TESSERA_LOWER_BLOCKS
using LowerFormat = tessera::formats::TESSERA_LOWER_BLOCKS;
#define TESSERA_BITS_KERNEL(name, T, kIsNormed)                                         \
  TESSERA_KERNEL(name, TESSERA_BITS_BOUNDS)(const TwoBlockGemmParams p) {               \
    bits::gemm_block_bits_of_two<T, Format, LowerFormat, TESSERA_X_ROWS, kIsNormed>(p); \
  }
#else
#define TESSERA_BITS_KERNEL(name, T, kIsNormed)                                \
  TESSERA_KERNEL(name, TESSERA_BITS_BOUNDS)(const BlockGemmParams p) {         \
    bits::gemm_block_bits<T, Format, TESSERA_X_ROWS, kIsNormed>(p, block_x()); \
  }
#endif
#if TESSERA_X_ROWS <= 2  // kMostNormedRows
#define TESSERA_BITS_KERNELS(T)                      \
  TESSERA_BITS_KERNEL(gemm_block_bits_##T, T, false) \
  TESSERA_BITS_KERNEL(gemm_block_bits_normed_##T, T, true)
#else
#define TESSERA_BITS_KERNELS(T) TESSERA_BITS_KERNEL(gemm_block_bits_##T, T, false)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_BITS_KERNELS(f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 3
TESSERA_BITS_KERNELS(bf16)
#endif
