// out = x w^T (+ bias) (+ out) for many rows of x and Q8_0 weights, on the tensor cores without rounding the
// weights (q8.cuh).
//
// Grid: tiles of out. A block takes 32 rows of w a warp and kTiles * 8 rows of x; each warp converts its rows
// of w in registers and multiplies them with all rows of x. Both come by asynchronous copies: w in pieces of
// 256 columns, of which two are in shared memory, x in stages of 128 bytes a row.

#include "sm80/q8.cuh"

namespace tessera::kernels {

constexpr int kMostThreads = kQ8TiledMostWarps * 32;
constexpr int kWarpRows = kQ8TiledWarpRows;
constexpr int kWarpTiles = kWarpRows / kTileRows;
constexpr int kXStages = kQ8TiledXStages;
constexpr int kXRowBytes = kQ8TiledXRowBytes;
constexpr int kXRowVectors = kXRowBytes / 16;
constexpr int kOutStride = kWarpRows + 4;  // floats; keeps the stores of a warp's sums off one bank
constexpr int kBand = 16;                  // tiles of x that neighbouring blocks share

/// The first row of w and of x of this block: neighbours take the tiles of x of a band one after the other,
/// so that what a wave of blocks reads fits in the L2 cache.
struct TilePlace {
  int64 first_n, first_m;

  TESSERA_DEVICE TilePlace(const GemmParams& p, int tile_n, int tile_m) {
    const int64 tiles_n = (p.n + tile_n - 1) / tile_n;
    const int64 tiles_m = (p.m + tile_m - 1) / tile_m;
    const int64 band = block_x() / (kBand * tiles_n);
    const int64 in_band = block_x() % (kBand * tiles_n);
    const int64 wide = minimum<int64>(kBand, tiles_m - band * kBand);
    first_n = in_band / wide * tile_n;
    first_m = (band * kBand + in_band % wide) * tile_m;
  }
};

/// Where 16 bytes of a row of x lie in a stage: where a warp reads columns of a block, its rows are on
/// different banks.
template <class X>
TESSERA_DEVICE int x_vector(int row, int vector) {
  return row * kXRowVectors + (vector ^ (sizeof(X) == 2 ? row % 4 * 2 : row % 2 * 4));
}

template <class X, int kTiles>
TESSERA_DEVICE void load_x_stage(unsigned shared, const GemmParams& p, int64 first_m, int64 column) {
  constexpr int kVectors = kTiles * kTileM * kXRowVectors;
  constexpr int kVectorElements = 16 / sizeof(X);
  for (int i = thread_x(); i < kVectors; i += block_size()) {
    const int row = i / kXRowVectors;
    const int vector = i % kXRowVectors;
    const X* source = static_cast<const X*>(p.x.data) + minimum(first_m + row, p.m - 1) * p.x.row_stride +
                      column + vector * kVectorElements;
    cp_async_16(shared + static_cast<unsigned>(x_vector<X>(row, vector)) * 16, source, true);
  }
}

/// A warp's rows of a piece; `rows` of them exist.
TESSERA_DEVICE void load_piece(unsigned shared, const unsigned char* rows_piece, int64 row_bytes, int rows,
                               int lane) {
  constexpr int kStep = 32 % kQ8PieceVectors;
  static_assert(32 / kQ8PieceVectors == 1, "a lane goes to the next row or to the one after it");
  int row = lane / kQ8PieceVectors;
  int vector = lane % kQ8PieceVectors;
  const unsigned char* source = rows_piece + row * row_bytes + vector * 16;
  TESSERA_UNROLL_BY(1)
  for (int i = 0; i < kWarpRows * kQ8PieceVectors / 32; ++i) {
    if (row < rows) cp_async_16(shared + static_cast<unsigned>(lane + i * 32) * 16, source, true);
    row += 1;
    vector += kStep;
    source += row_bytes + kStep * 16;
    if (vector >= kQ8PieceVectors) {
      row += 1;
      vector -= kQ8PieceVectors;
      source += row_bytes - kQ8PieceBytes;
    }
  }
}

/// What x of type X is multiplied as: of fp32 there are three parts, which the block cuts a stage into before
/// its warps read it.
template <class X>
struct Operand {
  using Type = X;
  static constexpr int kParts = 1;
};
template <>
struct Operand<float> {
  using Type = bf16;
  static constexpr int kParts = kQ8SplitParts;
};

constexpr int kSplitRowBytes = kQ8SplitRowBytes;

/// Where columns 16 `half` to 16 `half` + 15 of a row lie in a part: the four rows that a warp reads at once
/// are on different banks.
TESSERA_DEVICE int split_place(int row, int half) {
  return row * kSplitRowBytes + (half ^ (row / 2 % 2)) * (kSplitRowBytes / 2);
}

/// Cuts a stage of fp32 x into its parts, one after the other at `parts`.
template <int kTiles>
TESSERA_DEVICE void split_stage(unsigned char* parts, const unsigned char* x_stage) {
  constexpr int kRows = kTiles * kTileM;
  constexpr int kOctets = 4;  // of 8 columns
  for (int i = thread_x(); i < kRows * kOctets; i += block_size()) {
    const int row = i / kOctets;
    const int octet = i % kOctets;
    XColumns<float> x;
    TESSERA_UNROLL
    for (int n = 0; n < 2; ++n)
      load_shared_16(x.half[n].element, shared_address(x_stage) +
                                            static_cast<unsigned>(x_vector<float>(row, octet * 2 + n)) * 16);
    XFragment<3> fragment;
    set_fragment(fragment, x);
    TESSERA_UNROLL
    for (int part = 0; part < 3; ++part) {
      Vector<unsigned, 4> words;
      TESSERA_UNROLL
      for (int n = 0; n < 4; ++n) words.element[n] = fragment.pair[part][n];
      *reinterpret_cast<Vector<unsigned, 4>*>(parts + part * kRows * kSplitRowBytes +
                                              split_place(row, octet / 2) + octet % 2 * 16) = words;
    }
  }
}

/// A lane's columns of a tile of x: of block x_block of a stage, or of the parts of one.
template <class X, int kTiles>
TESSERA_DEVICE XFragment<Operand<X>::kParts> load_x(unsigned from, int x_block, int tile, int lane) {
  const int row = tile * kTileM + lane / 4;
  XFragment<Operand<X>::kParts> x;
  TESSERA_UNROLL
  for (int part = 0; part < Operand<X>::kParts; ++part) {
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      int place;
      if constexpr (sizeof(X) == 2) {
        const int byte = x_block * 64 + half * 32 + lane % 4 * 8;
        place = x_vector<X>(row, byte / 16) * 16 + byte % 16;
      } else {
        place = part * kTiles * kTileM * kSplitRowBytes + split_place(row, half) + lane % 4 * 8;
      }
      load_shared_8(x.pair[part][2 * half], x.pair[part][2 * half + 1], from + static_cast<unsigned>(place));
    }
  }
  return x;
}

/// One of two blocks side by side of a warp's rows.
template <class X, bool kIsSecond>
TESSERA_DEVICE void load_fragments(Q8Fragment (&w)[kWarpTiles], const unsigned char* blocks, int lane) {
  TESSERA_UNROLL
  for (int i = 0; i < kWarpTiles; ++i)
    w[i].template load<typename Operand<X>::Type, kIsSecond, kQ8PieceBytes>(
        blocks + i * kTileRows * kQ8PieceBytes, lane % 4);
}

/// sums += w times x (load_x). Two tiles of x at a time; the sums of two take up their scales while the next
/// are multiplied.
template <class X, int kTiles>
TESSERA_DEVICE void multiply_block(float (&sum)[kWarpTiles][kTiles][4], const Q8Fragment (&w)[kWarpTiles],
                                   unsigned from, int x_block, int lane) {
  constexpr int kParts = Operand<X>::kParts;
  constexpr int kAtOnce = 2;
  constexpr int kCount = kAtOnce * kWarpTiles;
  XFragment<kParts> x[2][kAtOnce];
  TESSERA_UNROLL
  for (int n = 0; n < kAtOnce; ++n) x[0][n] = load_x<X, kTiles>(from, x_block, n, lane);
  float c[2][kCount][4];
  const auto add_up = [&](int first) {
    TESSERA_UNROLL
    for (int i = 0; i < kCount; ++i)
      add_scaled(sum[i % kWarpTiles][first + i / kWarpTiles], c[first / kAtOnce % 2][i],
                 w[i % kWarpTiles].scale);
  };
  TESSERA_UNROLL
  for (int first = 0; first < kTiles; first += kAtOnce) {
    const int now = first / kAtOnce % 2;
    TESSERA_UNROLL
    for (int n = 0; n < kAtOnce; ++n) {
      if (first + kAtOnce < kTiles)
        x[1 - now][n] = load_x<X, kTiles>(from, x_block, first + kAtOnce + n, lane);
    }
    multiply_blocks<typename Operand<X>::Type, kParts>(
        c[now], [&](int i) -> const Q8Fragment& { return w[i % kWarpTiles]; },
        [&](int i) -> const XFragment<kParts>& { return x[now][i / kWarpTiles]; });
    if (first > 0) add_up(first - kAtOnce);
  }
  add_up(kTiles - kAtOnce);
}

/// Writes a warp's tile by way of `scratch`, so that whole runs of columns are written.
template <int kTiles>
TESSERA_DEVICE void store_warp_tile(const GemmParams& p, const float (&sum)[kWarpTiles][kTiles][4],
                                    float* scratch, int64 first_n, int64 first_m, float factor, int lane) {
  TESSERA_UNROLL
  for (int i = 0; i < kWarpTiles; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      TESSERA_UNROLL
      for (int r = 0; r < 4; ++r) {
        const int m = j * kTileM + lane % 4 * 2 + r % 2;
        const int n = i * kTileRows + lane / 4 + r / 2 * 8;
        scratch[m * kOutStride + n] = sum[i][j][r] * factor;
      }
    }
  }
  sync_warp();
  const int64 n = first_n + lane;
  if (n >= p.n) return;
  const float bias = p.bias.data != nullptr ? load_scalar(p.bias, n) : 0.0f;
  const int rows = static_cast<int>(minimum<int64>(kTiles * kTileM, p.m - first_m));
  for (int m = 0; m < rows; ++m) {
    float value = scratch[m * kOutStride + lane] + bias;
    const int64 offset = (first_m + m) * p.out.row_stride + n;
    if (p.accumulate) value += load_scalar(p.out, offset);
    store_scalar(p.out, offset, value);
  }
}

template <class X, int kTiles>
TESSERA_DEVICE void gemm_q8_tiled(const GemmParams& p) {
  TESSERA_DYNAMIC_SHARED(shared);
  constexpr bool kIsSplit = Operand<X>::kParts > 1;
  constexpr int kStageColumns = kXRowBytes / static_cast<int>(sizeof(X));
  constexpr int kStageBlocks = kStageColumns / Q8_0::kElements;
  constexpr int kPieceStages = kQ8PieceColumns / kStageColumns;
  constexpr int kStageBytes = kTiles * kTileM * kXRowBytes;
  constexpr int kPartsBytes = Operand<X>::kParts * kTiles * kTileM * kSplitRowBytes;
  static_assert(kPieceStages >= kXStages, "a piece is there before its first block is converted");
  const int lane = thread_x() % 32;
  const int warp = thread_x() / 32;
  const int tile_n = block_size() / 32 * kWarpRows;
  const int piece_bytes = tile_n * kQ8PieceBytes;
  const TilePlace place(p, tile_n, kTiles * kTileM);
  const int64 pieces = p.k / kQ8PieceColumns;
  const int64 stages = pieces * kPieceStages;
  unsigned char* x_stages = shared + kQ8TiledPieces * piece_bytes;
  unsigned char* parts = x_stages + kXStages * kStageBytes;  // of kQ8SplitStages successive stages
  const int64 row_bytes = pieces * kQ8PieceBytes;
  const int64 first_row = place.first_n + warp * kWarpRows;
  const int rows = static_cast<int>(minimum<int64>(kWarpRows, p.n - first_row));
  const auto warp_piece = [&](int64 piece) {
    return shared + piece % kQ8TiledPieces * piece_bytes + warp * kWarpRows * kQ8PieceBytes;
  };
  const auto blocks_of_piece = [&](int64 piece) { return warp_piece(piece) + lane / 4 * kQ8PieceBytes; };
  const auto x_stage = [&](int64 stage) { return x_stages + stage % kXStages * kStageBytes; };
  const auto load_stage = [&](int64 stage) {
    if (stage < stages)
      load_x_stage<X, kTiles>(shared_address(x_stage(stage)), p, place.first_m, stage * kStageColumns);
    cp_async_commit();
  };

  const auto load_next_piece = [&](int64 piece) {
    load_piece(
        shared_address(warp_piece(piece)),
        static_cast<const unsigned char*>(p.weight.data) + first_row * row_bytes + piece * kQ8PieceBytes,
        row_bytes, rows, lane);
  };

  allow_next_kernel();
  load_next_piece(0);
  wait_for_prior_kernels();
  for (int stage = 0; stage < kXStages - 1; ++stage) load_stage(stage);
  cp_async_wait<kXStages - 2>();
  sync_threads();
  if constexpr (kIsSplit) split_stage<kTiles>(parts, x_stage(0));

  // What the next block of w takes of the arithmetic units overlaps with the tensor cores' work on this one.
  Q8Fragment w[2][kWarpTiles];
  load_fragments<X, false>(w[0], blocks_of_piece(0), lane);
  float sum[kWarpTiles][kTiles][4] = {};
  int64 stage = 0;
  for (int64 piece = 0; piece < pieces; ++piece) {
    TESSERA_UNROLL_BY(1)
    for (int pair = 0; pair < kQ8PieceBlocks / 2; ++pair) {
      const unsigned char* blocks = blocks_of_piece(piece) + pair * kQ8PairBytes;
      const unsigned char* next_blocks =
          pair + 1 < kQ8PieceBlocks / 2 ? blocks + kQ8PairBytes : blocks_of_piece(piece + 1);
      TESSERA_UNROLL
      for (int block = 0; block < 2; ++block) {
        if (block % kStageBlocks == 0) {
          cp_async_wait<kXStages - (kIsSplit ? 3 : 2)>();  // what is split now is multiplied next
          sync_threads();
          if (block == 0 && pair == 0 && piece + 1 < pieces) load_next_piece(piece + 1);
          load_stage(stage + kXStages - 1);
          if constexpr (kIsSplit)
            split_stage<kTiles>(parts + (stage + 1) % 2 * kPartsBytes, x_stage(stage + 1));
        }
        if (block == 0) {
          load_fragments<X, true>(w[1], blocks, lane);
        } else {
          load_fragments<X, false>(w[0], next_blocks, lane);
        }
        multiply_block<X, kTiles>(sum, w[block],
                                  shared_address(kIsSplit ? parts + stage % 2 * kPartsBytes : x_stage(stage)),
                                  block % kStageBlocks, lane);
        if ((block + 1) % kStageBlocks == 0) ++stage;
      }
    }
  }
  sync_threads();  // the copies' memory is free
  store_warp_tile<kTiles>(p, sum, reinterpret_cast<float*>(shared) + warp * kTiles * kTileM * kOutStride,
                          place.first_n + warp * kWarpRows, place.first_m,
                          Int8As<typename Operand<X>::Type>::kFactor, lane);
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

using f32 = float;

constexpr int kTiles = kQ8TiledTiles;
#define TESSERA_Q8_KERNEL(type) \
  TESSERA_KERNEL(gemm_q8_tiled_##type, kMostThreads)(const GemmParams p) { gemm_q8_tiled<type, kTiles>(p); }
TESSERA_Q8_KERNEL(f32)
TESSERA_Q8_KERNEL(f16)
TESSERA_Q8_KERNEL(bf16)
