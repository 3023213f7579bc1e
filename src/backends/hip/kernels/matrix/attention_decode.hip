// Attention of few queries over many keys, bound by reading K and V once, with matrix instructions of 16 x 16
// x 16 (fp32 on gfx9: of 16 x 16 x 4). Flash-Decoding (Dao et al., 2023); the heads of a group are packed
// into the rows, so that they share every byte.
//
// S^T = K Q^T and O^T = V^T P^T, so that a lane has scores and sums of one query only, and so that both K and
// V are the matrix unit's first operand. Neither goes through LDS: the order of the products' k is free as
// long as both operands have the same, and the order of O's columns is free, too. So each lane loads 16 bytes
// of the row of its key for K; and for V 16 bytes of the rows of the four or eight keys that its part of the
// operand is made of, whose halves v_perm then puts in pairs. All of a wave's loads of a tile are under way
// while it computes on the tile before.
//
// Grid: (row tiles, kv heads, batch * splits). A block takes 16 * TESSERA_ROW_TILES packed rows; each of its
// waves streams every TESSERA_NUM_WARPS-th group of 16 keys (where sums take too many registers, two waves
// stream the same keys), with no barrier between waves, and the waves' states are merged in LDS at the end.
//
// Defined by the build: TESSERA_DTYPE (f16, bf16, and f32 on gfx9), TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V
// (multiples of 16 up to 256, on gfx9 up to 576 and 512), TESSERA_NUM_WARPS, TESSERA_ROW_TILES, TESSERA_TERMS
// (ScoreTermFlags that the scores need), TESSERA_MASK_DTYPE (the additive mask's), TESSERA_PAGED (0, 1),
// TESSERA_VECTOR (whether rows can be moved 16 bytes at a time). TESSERA_KV_DTYPE=f8e4m3: keys and values of
// 8 bits, widened to TESSERA_DTYPE in registers (narrow.hip.h); their scales, one a head at most, join
// softmax_scale and the results.

#include "common/attention_constants.cuh"
#include "common/attention_row.cuh"
#include "matrix/attention_decode_traits.h"
#include "matrix/matrix.hip.h"
#include "matrix/narrow.hip.h"

namespace tessera::kernels {

constexpr int kNumWarps = TESSERA_NUM_WARPS;
constexpr int kRowTiles = TESSERA_ROW_TILES;
constexpr MatrixDecodeLayout kLayout =
    matrix_decode_layout({kNumWarps, kRowTiles}, kMatrixUnit, sizeof(T), kHeadDimQk, kHeadDimV);
constexpr int kTile = kDecodeTile;
constexpr int kBlockM = kTile * kRowTiles;
constexpr int kKeysPerWarp = kTile;
static_assert(kHeadDimQk % kTile == 0 && kHeadDimV % kTile == 0);
static_assert(TESSERA_MFMA ? kHeadDimQk <= kMostWideHeadQk && kHeadDimV <= kMostWideHeadV
                           : kHeadDimQk <= 256 && kHeadDimV <= 256);

using Fragment = Operand<T, kTile>;
using Scores = Accumulator<kTile>;

// What a lane brings of an operand: of the 16 k those of its group of 16 lanes, side by side. RDNA3 wants all
// 16 in both groups, and gets the others from the other group.
constexpr int kGroups = lane_groups(kMatrixUnit);
constexpr int kKeysOfLane = kTile / kGroups;  // 4 or 8
constexpr int kPartWords = Fragment::kWords / kOperandCopies;

constexpr int kColumnParts = decode_column_parts(kMatrixUnit, kRowTiles, kHeadDimV);
constexpr int kKeyWaves = kNumWarps / kColumnParts;
constexpr int kBlockN = kKeysPerWarp * kKeyWaves;
constexpr int kPartDimsV = decode_part_dims(kColumnParts, kHeadDimV);
static_assert(kKeyWaves > 0 && kKeyWaves * kColumnParts == kNumWarps);
static_assert((kColumnParts - 1) * kPartDimsV < kHeadDimV, "each part has columns");

/// The operand that this lane's and the other groups' parts make.
TESSERA_DEVICE Fragment whole_operand(const unsigned (&part)[kPartWords]) {
  Fragment x;
#if defined(__GFX11__)
  const bool is_second = lane_group<kTile>() != 0;
  TESSERA_UNROLL
  for (int n = 0; n < kPartWords; ++n) {
    const unsigned other = of_other_group(part[n]);
    x.words[n] = is_second ? other : part[n];
    x.words[n + kPartWords] = is_second ? part[n] : other;
  }
#else
  TESSERA_UNROLL
  for (int n = 0; n < kPartWords; ++n) x.words[n] = part[n];
#endif
  return x;
}

TESSERA_DEVICE int lane_id() { return thread_x() % kWarpSize; }

// Rows that lanes divide among themselves: each takes 16 bytes of a key's row, of as many lanes' columns as
// that makes a piece of, and less of narrower pieces at the end.

struct Piece {
  int first_dim;
  int width;  // elements of a lane
};
struct PieceList {
  Piece piece[36];
  int count;
};
constexpr PieceList pieces_of(int dims, int lanes) {
  PieceList list = {};
  for (int first = 0; first < dims;) {
    int width = 16 / static_cast<int>(sizeof(Kv));
    while (lanes * width > dims - first) width /= 2;
    list.piece[list.count++] = {first, width};
    first += lanes * width;
  }
  return list;
}

/// Some columns of a row, as words: kElements from column d on, where head_dim columns are there.
/// kMayEnd: d may be head_dim or more. kZeros: columns that are not there are 0, else they may be any others.
template <class E, int kElements, bool kMayEnd, bool kZeros>
TESSERA_DEVICE void load_elements(const E* row, int d, int head_dim, unsigned* words) {
  constexpr int kBytes = kElements * int{sizeof(E)};
  if constexpr (!kVector) {
    E element[kBytes < 4 ? 4 / sizeof(E) : kElements] = {};
    // On CDNA compared here, not in front of the loop over keys, where the outcomes took more scalar
    // registers than there are.
    const int count = TESSERA_MFMA ? opaque(head_dim - d) : head_dim - d;
    TESSERA_UNROLL
    for (int e = 0; e < kElements; ++e) {
      if (e < count) element[e] = row[d + e];
    }
    __builtin_memcpy(words, element, sizeof(element));
  } else {
    const E* from = row + (kMayEnd ? minimum(d, head_dim - kElements) : d);
    if constexpr (kBytes >= 16) {
      TESSERA_UNROLL
      for (int part = 0; part < kBytes / 16; ++part) {
        const Word4 x = reinterpret_cast<const Word4*>(from)[part];
        TESSERA_UNROLL
        for (int n = 0; n < 4; ++n) words[4 * part + n] = x[n];
      }
    } else if constexpr (kBytes == 8) {
      const Word2 x = *reinterpret_cast<const Word2*>(from);
      words[0] = x[0], words[1] = x[1];
    } else if constexpr (kBytes == 4) {
      words[0] = *reinterpret_cast<const unsigned*>(from);
    } else if constexpr (kBytes == 2) {
      words[0] = *reinterpret_cast<const unsigned short*>(from);
    } else {
      words[0] = *reinterpret_cast<const unsigned char*>(from);
    }
    if (kZeros && kMayEnd && d >= head_dim) {
      TESSERA_UNROLL
      for (int n = 0; n < (kBytes + 3) / 4; ++n) words[n] = 0;
    }
  }
}

// ---- K and Q: a lane's part of one row, Q's the same columns as K's

constexpr PieceList kRowPieces = pieces_of(kHeadDimQk, kGroups);
constexpr int kRowElements = kHeadDimQk / kGroups;
constexpr int kRowWords = kRowElements * int{sizeof(T)} / 4;  // of Q

template <class E>
struct RowPart {
  unsigned word[kRowElements * int{sizeof(E)} / 4];
};

template <class E, bool kZeros, int kPiece = 0>
TESSERA_DEVICE void load_row_pieces(const E* row, int head_dim, unsigned* words) {
  if constexpr (kPiece < kRowPieces.count) {
    constexpr Piece kWhich = kRowPieces.piece[kPiece];
    load_elements<E, kWhich.width, (kPiece + 1 == kRowPieces.count), kZeros>(
        row, kWhich.first_dim + lane_group<kTile>() * kWhich.width, head_dim, words);
    load_row_pieces<E, kZeros, kPiece + 1>(row, head_dim, words + kWhich.width * int{sizeof(E)} / 4);
  }
}

template <class E, bool kZeros>
TESSERA_DEVICE RowPart<E> load_row_part(const E* row, int head_dim) {
  RowPart<E> part;
  load_row_pieces<E, kZeros>(row, head_dim, part.word);
  return part;
}

/// The lane's part of K's operand whose words Q has from `first` on.
TESSERA_DEVICE Fragment key_operand(const RowPart<Kv>& k, int first) {
  unsigned part[kPartWords];
  if constexpr (kIsNarrow) {
    constexpr int kWordsOfWord = sizeof(T);  // that one of K becomes
    TESSERA_UNROLL
    for (int e = 0; e < kPartWords; e += kWordsOfWord)
      widen_word<T>(k.word[(first + e) / kWordsOfWord], part + e);
  } else {
    TESSERA_UNROLL
    for (int e = 0; e < kPartWords; ++e) part[e] = k.word[first + e];
  }
  return whole_operand(part);
}

// ---- V: a lane's part of its kKeysOfLane rows. Element n of lane m's part of a piece is row m of the piece's
// n-th product.

/// Where the operand of 16 columns stands in a lane's words, and which they are: first + row * width.
struct OutTile {
  int word;
  int byte;  // of the word, at which the element begins
  int first;
  int width;
};
constexpr PieceList kValuePieces = pieces_of(kPartDimsV, kTile);
struct ValueLayout {
  int first_word[16];  // of a piece
  OutTile tile[16];
  int words;  // of a row
};
constexpr ValueLayout value_layout() {
  ValueLayout layout = {};
  for (int i = 0; i < kValuePieces.count; ++i) {
    const Piece piece = kValuePieces.piece[i];
    layout.first_word[i] = layout.words;
    for (int n = 0; n < piece.width; ++n) {
      const int bytes = n * static_cast<int>(sizeof(Kv));
      layout.tile[piece.first_dim / kTile + n] = {layout.words + bytes / 4, bytes % 4, piece.first_dim + n,
                                                  piece.width};
    }
    layout.words += (piece.width * static_cast<int>(sizeof(Kv)) + 3) / 4;
  }
  return layout;
}
constexpr ValueLayout kValues = value_layout();
constexpr int kOutTiles = kPartDimsV / kTile;

struct ValuePart {
  unsigned word[kKeysOfLane][kValues.words];
};

template <int kPiece>
TESSERA_DEVICE void load_pieces(const Kv* row, int head_dim, unsigned* words) {
  if constexpr (kPiece < kValuePieces.count) {
    constexpr Piece kWhich = kValuePieces.piece[kPiece];
    constexpr int kEnd = (kColumnParts - 1) * kPartDimsV + kWhich.first_dim + kTile * kWhich.width;
    load_elements<Kv, kWhich.width, (kEnd > kHeadDimV - kTile), false>(
        row, kWhich.first_dim + lane_id() % 16 * kWhich.width, head_dim, words + kValues.first_word[kPiece]);
    load_pieces<kPiece + 1>(row, head_dim, words);
  }
}

/// V^T's operand of an output tile.
TESSERA_DEVICE Fragment value_operand(const ValuePart& v, int tile) {
  const OutTile which = kValues.tile[tile];
  unsigned part[kPartWords];
  TESSERA_UNROLL
  for (int j = 0; j < kKeysOfLane; j += 2) {
    const unsigned first = v.word[j][which.word];
    const unsigned second = v.word[j + 1][which.word];
    unsigned* const words = part + j * int{sizeof(T)} / 4;
    if constexpr (kIsNarrow) {
      widen_pair<T>(first, which.byte, second, which.byte, words);
    } else if constexpr (sizeof(T) == 4) {
      words[0] = first, words[1] = second;
    } else {
      words[0] = __builtin_amdgcn_perm(second, first, which.byte != 0 ? 0x07060302u : 0x05040100u);
    }
  }
  return whole_operand(part);
}

// ---- LDS: q's parts of each row tile as the lanes read them; later each wave's sums of some output tiles

constexpr int kQuads = kLayout.quads;
constexpr int kRoundTiles = kLayout.round_tiles;
constexpr int kRoundColumns = kTile * kRoundTiles;
constexpr int kRoundStride = kLayout.round_stride;
constexpr int kRoundWords = kLayout.round;
constexpr int kStateWords = kLayout.state;
static_assert(kQuads == (kRowWords + 3) / 4, "a lane's part of q");
static_assert(kLayout.all * 4 <= kSharedBytes, "LDS of a block");

/// Leaves the lanes' parts of q's rows in LDS, of the row tiles in turn.
template <class RowOf>
TESSERA_DEVICE void store_q(Word4* smem, int wave, int head_dim, RowOf row_of) {
  TESSERA_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    if (r % kNumWarps != wave) continue;
    const RowPart<T> part = load_row_part<T, true>(row_of(16 * r + lane_id() % 16), head_dim);
    TESSERA_UNROLL
    for (int n = 0; n < kQuads; ++n) {
      Word4 x = {0, 0, 0, 0};
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (4 * n + e < kRowWords) x[e] = part.word[4 * n + e];
      }
      smem[(r * kQuads + n) * kWarpSize + lane_id()] = x;
    }
  }
}

/// Keeps the compiler from computing `x` later than here: the registers of what it is made of are wanted for
/// the next loads.
TESSERA_DEVICE void finish(Scores& x) { asm volatile("" : "+v"(x)); }

/// scores[r] = K Q^T of 16 keys and the r-th 16 rows.
TESSERA_DEVICE void multiply_k_q(const RowPart<Kv>& k, const Word4* q_smem, Scores (&scores)[kRowTiles]) {
  constexpr int kPartsOfQuad = 4 / kPartWords;
  TESSERA_UNROLL
  for (int r = 0; r < kRowTiles; ++r) scores[r] = Scores(0.0f);
  TESSERA_UNROLL
  for (int n = 0; n < kQuads; ++n) {
    TESSERA_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      const Word4* quads = q_smem + (r * kQuads + n) * kWarpSize;
#if defined(__GFX11__)
      Fragment q[1];
      q[0].words.lo = quads[thread_x() % kTile];
      q[0].words.hi = quads[thread_x() % kTile + kTile];
#else
      const Word4 words = quads[lane_id()];
      Fragment q[kPartsOfQuad];
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) q[e / kPartWords].words[e % kPartWords] = words[e];
#endif
      TESSERA_UNROLL
      for (int i = 0; i < kPartsOfQuad; ++i) {
        const int first = 4 * n + i * kPartWords;
        if (first >= kRowWords) continue;
        scores[r] = multiply_add_all(key_operand(k, first), q[i], scores[r]);
      }
    }
  }
  TESSERA_UNROLL
  for (int r = 0; r < kRowTiles; ++r) finish(scores[r]);
}

/// o[r] += V^T P^T of 16 keys.
TESSERA_DEVICE void multiply_v_p(const ValuePart& v, const Scores (&p)[kRowTiles],
                                 Scores (&o)[kRowTiles][kOutTiles]) {
  Operand<Weight<T>, kTile> weights[kRowTiles];
  TESSERA_UNROLL
  for (int r = 0; r < kRowTiles; ++r) weights[r] = operand_of<Weight<T>, kTile>(p[r]);
  TESSERA_UNROLL
  for (int t = 0; t < kOutTiles; ++t) {
    const Fragment value = value_operand(v, t);
    TESSERA_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      o[r][t] = multiply_add_all(value, weights[r], o[r][t]);
      finish(o[r][t]);
    }
  }
}

/// The kernel's parameters for code that seldom runs: read anew from where they were passed, so that no
/// registers hold them until then.
TESSERA_DEVICE const AttentionParams& read_params_again() {
  auto* arguments = __builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(arguments));
  return *(const AttentionParams*)arguments;
}

/// The block's rows, which there are.
TESSERA_DEVICE TileRows rows_of_block(const AttentionParams& p, const Sequence& s, int b) {
  const int first_head = block_y() * p.pack_heads;
  const int first_row = block_x() * kBlockM;
  const int last_row = minimum(first_row + kBlockM, s.len_q * p.pack_heads) - 1;
  return packed_tile_rows(s, b, first_row, last_row, p.pack_heads, first_head);
}

/// Does the block's rows whose bits are set by the plain loop.
TESSERA_DEVICE void redo_rows(const AttentionParams& p, unsigned rows) {
  const int b = p.batch_begin + block_z() / p.num_splits;
  const int split = block_z() % p.num_splits;
  const Sequence s = load_sequence(p, b);
  const KeyRange share = visible_share(p, rows_of_block(p, s, b), kBlockN, split);
  for (; rows != 0; rows &= rows - 1) {  // not by shifts: those by 32 are by 0
    const int row = __builtin_ctz(rows);
    const RowIndex index =
        packed_row_index(block_x() * kBlockM + row, p.pack_heads, block_y() * p.pack_heads);
    const KeyRange keys = keys_of_query(p, s, index.i);
    redo_row<T, Kv>(p, s, b, index.h, index.i, maximum(keys.begin, share.begin), minimum(keys.end, share.end),
                    split);
  }
}

/// What sums of values of head h are multiplied with.
TESSERA_DEVICE float value_unit(const AttentionParams& p, int b, int h) {
  return kWidenedUnit<Kv> * scale_of_head(p, p.kv_scales.v, b, h / (p.num_heads / p.num_kv_heads));
}

/// Merges what the waves have left of a row: output tiles [first_tile, first_tile + kRoundTiles) of each of
/// their parts of the columns, and lse with the first tiles. Returns whether something is NaN, infinite or
/// has lost its weights.
TESSERA_DEVICE bool merge_row(const AttentionParams& p, const Sequence& s, int b, int split,
                              const RowIndex& index, int row, int first_tile, const float* states,
                              const float* merge) {
  float max_of_wave[kKeyWaves];
  float top = -infinity();
  TESSERA_UNROLL
  for (int w = 0; w < kKeyWaves; ++w) {
    max_of_wave[w] = states[w * kStateWords + row];
    top = fmaxf(top, max_of_wave[w]);
  }
  float weights[kKeyWaves];
  float sum = 0.0f;
  TESSERA_UNROLL
  for (int w = 0; w < kKeyWaves; ++w) {
    weights[w] = max_of_wave[w] == -infinity() ? 0.0f : exp2_of(max_of_wave[w] - top);
    sum += weights[w] * states[w * kStateWords + kBlockM + row];
  }
  const RowNorm norm = row_norm(top * kLn2, sum, sink_of_head(p, index.h));
  const bool is_partial = p.num_splits > 1;
  const int64 partial =
      static_cast<int64>(split) * p.batch * p.num_heads * p.seq_len_q + partial_row(p, b, index.h, index.i);
  float factor = norm.factor;
  if constexpr (kIsNarrow) factor *= value_unit(read_params_again(), b, index.h);
  // NaN; or a maximum above 2^24, off by rounding so much that even its own weight, else 1, is small.
  bool is_bad = sum != sum || (sum < 0.5f && top != -infinity());
  for (int n = lane_id(); n < kColumnParts * kRoundColumns; n += kWarpSize) {
    const int part = n / kRoundColumns;
    const int column = n % kRoundColumns;
    const int tile = first_tile + column / kTile;
    if (tile >= kOutTiles) continue;
    const OutTile which = kValues.tile[tile];
    const int d = part * kPartDimsV + which.first + column % kTile * which.width;
    if (d >= p.head_dim_v) continue;
    float value = 0.0f;
    TESSERA_UNROLL
    for (int w = 0; w < kKeyWaves; ++w) {
      const float* sums = merge + (w * kColumnParts + part) * kRoundWords + row * kRoundStride;
      if (max_of_wave[w] != -infinity()) value += weights[w] * sums[column];  // a weight of 0 counts
    }
    value = top == -infinity() ? 0.0f : value * factor;
    is_bad = is_bad || value * 0.0f != 0.0f;  // NaN or infinite
    if (is_partial) {
      p.o_partial[partial * p.head_dim_v + d] = value;
    } else {
      static_cast<T*>(p.o.data)[query_offset(p, p.o, s, b, index.h, index.i) + d] = from_float<T>(value);
    }
  }
  if (first_tile == 0 && lane_id() == 0) {
    if (is_partial) {
      p.lse_partial[partial] = norm.lse;
    } else if (p.lse.data != nullptr) {
      p.lse.data[lse_offset(p, s, b, index.h, index.i)] = norm.lse;
    }
  }
  return warp_any(is_bad);
}

// Of words that a lane reads of q in a tile, as many as are kept in registers.
constexpr bool kKeepsQ = kWarpSize == 64 && kRowTiles * kRowWords <= 32;

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __attribute__((global)) void
    __attribute__((amdgpu_flat_work_group_size(kNumWarps * kWarpSize, kNumWarps* kWarpSize),
                   amdgpu_waves_per_eu(2))) attention_decode(const AttentionParams p) {
  TESSERA_DYNAMIC_SHARED(shared_bytes);
  Word4* const smem = reinterpret_cast<Word4*>(shared_bytes);
  float* const states = reinterpret_cast<float*>(smem) + kLayout.states;
  const int lane = lane_id();
  const int wave = __builtin_amdgcn_readfirstlane(thread_x() / kWarpSize);

  const int b = p.batch_begin + block_z() / p.num_splits;
  const int split = block_z() % p.num_splits;
  const Sequence s = load_sequence(p, b);
  const int group = p.num_heads / p.num_kv_heads;
  const int pack = p.pack_heads;
  const int kv_head = pack == 1 ? block_y() / group : block_y();
  const int first_head = block_y() * pack;
  const int num_rows = s.len_q * pack;
  const int row_begin = block_x() * kBlockM;
  if (row_begin >= num_rows) return;
  const auto row_index = [&](int row) {
    return packed_row_index(minimum(row_begin + row, num_rows - 1), pack, first_head);
  };

  const KeyRange first_keys = keys_of_query(p, s, row_index(0).i);
  const KeyRange last_keys = keys_of_query(p, s, row_index(kBlockM - 1).i);
  const TileRows tile_rows = rows_of_block(p, s, b);
  const KeyRange share = visible_share(p, tile_rows, kBlockN, split);
  const int tile_begin = maximum(first_keys.begin, share.begin) / kBlockN;
  const int tile_end = (minimum(last_keys.end, share.end) + kBlockN - 1) / kBlockN;
  const int full_begin = maximum(last_keys.begin, share.begin);
  const int full_end = minimum(first_keys.end, share.end);

  RowIndex rows[kRowTiles];
  int keys_begin[kRowTiles];
  int keys_end[kRowTiles];
  TESSERA_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    rows[r] = row_index(16 * r + lane % 16);
    const KeyRange keys = keys_of_query(p, s, rows[r].i);
    keys_begin[r] = maximum(keys.begin, share.begin);
    keys_end[r] = minimum(keys.end, share.end);
  }

  const int* block_table = kPaged ? p.block_table + b * p.block_table_stride : nullptr;
  const auto kv_base = [&](const TensorArgument& x) {
    const int64 offset =
        kPaged ? 0 : (p.cu_seqlens_kv != nullptr ? 0 : b * x.batch_stride) + s.kv_begin * x.seq_stride;
    return static_cast<const Kv*>(x.data) + kv_head * x.head_stride + offset;
  };
  const Kv* const k_base = kv_base(p.k);
  const Kv* const v_base = kv_base(p.v);

  // Of a tile's keys those behind the sequence's end are read as its last: what comes of them is hidden.
  const auto first_key_of = [&](int tile) { return tile * kBlockN + wave / kColumnParts * kKeysPerWarp; };
  const auto key_there = [&](int key) { return minimum(key, s.len_kv - 1); };
  /// Where the key of this lane's row of K is.
  struct Place {
    int page;
    int row;  // of the page
  };
  const auto find_place = [&](int tile) {
    const int key = key_there(first_key_of(tile) + lane % kTile);
    if (!kPaged) return Place{0, key};
    const int page = p.page_shift >= 0 ? key >> p.page_shift : key / p.page_size;
    return Place{block_table[page], key - page * p.page_size};
  };
  const auto row_at = [&](const Kv* base, const TensorArgument& x, const Place& place) {
    return base + (kPaged ? place.page * x.batch_stride : 0) + place.row * x.seq_stride;
  };
  const int first_column = wave % kColumnParts * kPartDimsV;  // of V, and of this wave's sums
  const auto load_k = [&](const Place& place) {
    return load_row_part<Kv, false>(row_at(k_base, p.k, place), p.head_dim_qk);
  };
  const auto load_v = [&](int tile, const Place& place) {
    ValuePart v;
    TESSERA_UNROLL
    for (int j = 0; j < kKeysOfLane; ++j) {
      const int key = kKeysOfLane * lane_group<kTile>() + j;
      const Place of_key = kPaged ? Place{shuffle(place.page, key), shuffle(place.row, key)}
                                  : Place{0, key_there(first_key_of(tile) + key)};
      load_pieces<0>(row_at(v_base, p.v, of_key) + first_column, p.head_dim_v - first_column, v.word[j]);
    }
    return v;
  };

  store_q(smem, wave, p.head_dim_qk, [&](int row) {
    const RowIndex index = row_index(row);
    return static_cast<const T*>(p.q.data) + query_offset(p, p.q, s, b, index.h, index.i);
  });

  Scores o[kRowTiles][kOutTiles];
  float row_max[kRowTiles];  // in units of log2
  float row_sum[kRowTiles];  // of this lane's keys
  TESSERA_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    TESSERA_UNROLL
    for (int t = 0; t < kOutTiles; ++t) o[r][t] = Scores(0.0f);
    row_max[r] = -infinity();
    row_sum[r] = 0.0f;
  }
  float k_unit = 1.0f;  // what products with K are multiplied with
  // In a register of each lane: waves' own are all taken.
  if constexpr (kIsNarrow) k_unit = opaque(kWidenedUnit<Kv> * product_scale_of_head(p, b, kv_head));
  const float unit = kHasTerms ? kLog2E : p.softmax_scale * kLog2E * k_unit;

  TileQueue<2> tiles(VisibleTiles(p, tile_rows, kBlockN), tile_begin, tile_end);
  Place next = {};  // of the next tile
  RowPart<Kv> k;
  ValuePart v;
  if (tiles.tile(0) < tile_end) {
    const Place place = find_place(tiles.tile(0));
    k = load_k(place);
    v = load_v(tiles.tile(0), place);
    if (tiles.tile(1) < tile_end) next = find_place(tiles.tile(1));
  }
  sync_threads();

  for (; tiles.tile(0) < tile_end; tiles.advance()) {
    const int tile = tiles.tile(0);
    const bool has_next = tiles.tile(1) < tile_end;
    Scores scores[kRowTiles];
    multiply_k_q(k, smem + (kKeepsQ ? 0 : opaque(0)), scores);
    if (has_next) k = load_k(next);

    const int first_key = first_key_of(tile);
    const bool needs_hiding = first_key < full_begin || first_key + kKeysPerWarp > full_end;
    TESSERA_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      const auto key_of = [&](int i) { return first_key + accumulator_row<kTile>(i); };
      if (kHasTerms) {
        TESSERA_UNROLL
        for (int i = 0; i < kKeysOfLane; ++i) {
          scores[r][i] = modified_score<TESSERA_TERMS, TESSERA_MASK_DTYPE>(
              p, s, scores[r][i] * k_unit, b, rows[r].h, rows[r].i, key_there(key_of(i)));
        }
      }
      if (needs_hiding) {
        TESSERA_UNROLL
        for (int i = 0; i < kKeysOfLane; ++i) {
          const int j = key_of(i);
          scores[r][i] = j < keys_begin[r] || j >= keys_end[r] ? -infinity() : scores[r][i];
        }
      }
      float top = scores[r][0];
      TESSERA_UNROLL
      for (int i = 1; i < kKeysOfLane; ++i) top = fmaxf(top, scores[r][i]);
      top *= unit;
      if (warp_any(top > row_max[r])) {  // seldom after the first keys
        top = fmaxf(row_max[r], max_over_groups<kTile>(top));
        const float rescale = row_max[r] == top ? 1.0f : exp2_of(row_max[r] - top);
        row_max[r] = top;
        row_sum[r] *= rescale;
        TESSERA_UNROLL
        for (int t = 0; t < kOutTiles; ++t) o[r][t] *= rescale;
      }
      const float base = row_max[r] == -infinity() ? 0.0f : row_max[r];
      TESSERA_UNROLL
      for (int i = 0; i < kKeysOfLane; ++i) {
        scores[r][i] = exp2_of(fmaf(scores[r][i], unit, -base));
        row_sum[r] += scores[r][i];
      }
    }
    multiply_v_p(v, scores, o);
    if (has_next) {
      v = load_v(tiles.tile(1), next);
      if (tiles.tile(2) < tile_end) next = find_place(tiles.tile(2));
    }
  }
  sync_threads();  // q has been read

  // Each wave leaves its rows in LDS, some output tiles at a time; all waves then merge and write, a row
  // after another.
  TESSERA_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    const float sum = sum_over_groups<kTile>(row_sum[r]);
    if (lane < kTile && wave % kColumnParts == 0) {
      float* const own = states + wave / kColumnParts * kStateWords + r * kTile + lane;
      own[0] = row_max[r];
      own[kBlockM] = sum;
    }
  }
  float* const merge = reinterpret_cast<float*>(smem);
  const int rows_there = minimum(num_rows - row_begin, kBlockM);
  unsigned rows_again = 0;  // of this wave, to be done again by the plain loop
  TESSERA_UNROLL
  for (int first = 0; first < kOutTiles; first += kRoundTiles) {
    if (first > 0) sync_threads();  // the last round's sums have been read
    TESSERA_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      TESSERA_UNROLL
      for (int t = 0; t < kRoundTiles; ++t) {
        if (first + t >= kOutTiles) continue;
        TESSERA_UNROLL
        for (int i = 0; i < kKeysOfLane; ++i) {
          merge[wave * kRoundWords + (kTile * r + lane % kTile) * kRoundStride + kTile * t +
                accumulator_row<kTile>(i)] = o[r][first + t][i];
        }
      }
    }
    sync_threads();
    for (int row = wave; row < rows_there; row += kNumWarps) {
      if (merge_row(p, s, b, split, row_index(row), row, first, states, merge)) rows_again |= 1u << row;
    }
  }
  // A hidden key's value may have been NaN: 0 * NaN. The plain loop never reads hidden values.
  if (rows_again != 0) redo_rows(read_params_again(), rows_again);
}
