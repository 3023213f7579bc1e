#pragma once

#include "common/attention_block.cuh"
#include "common/attention_tiled_traits.h"

// What a block of attention_tiled.cu is: its tiles, its shared memory and what a thread has of them.

namespace tessera::kernels {

constexpr TiledShape kShape = {TESSERA_BLOCK_M, kHeadDimQk, kHeadDimV, TESSERA_SHARED_KIB};
constexpr TiledLayout kLayout = tiled_layout(kShape);

constexpr int kBlockM = TESSERA_BLOCK_M;
constexpr int kBlockN = kTiledKeys;
constexpr int kThreadRows = kTiledThreadRows;
constexpr int kRowGroups = kBlockM / kThreadRows;

// Of a thread's products.
constexpr int kDimGroups = tiled_dim_groups(kShape);
constexpr int kKeyLanes = kTiledAttentionThreads / (kRowGroups * kDimGroups);
constexpr int kThreadKeys = kBlockN / kKeyLanes;  // kKeyLanes apart
constexpr int kProducts = kThreadRows * kThreadKeys;
constexpr int kKeyStride = kTiledDims + tiled_padding(kShape);
constexpr int kWeightStride = tiled_weight_stride(kShape);

// Of a row's weights.
constexpr int kRowThreads = kTiledAttentionThreads / kBlockM < 32 ? kTiledAttentionThreads / kBlockM : 32;
constexpr int kRowKeys = kBlockN / kRowThreads;

// Of a thread's sums.
constexpr int kColumnLanes = kBlockM == 64 ? 16 : kBlockM == 32 ? 32 : 64;
constexpr int kKeyGroups = kTiledAttentionThreads / (kColumnLanes * kRowGroups);
constexpr int kStepColumns = 4 * kColumnLanes;
constexpr int kColumnSteps = (kHeadDimV + kStepColumns - 1) / kStepColumns;
constexpr int kValueKeys = tiled_value_keys(kShape);

// The kernel's launch bounds: its threads, and where a compiler takes them the blocks that a multiprocessor's
// registers hold. Many rows of large heads take all of them.
#if defined(__CUDA_ARCH__)
#define TESSERA_TILED_BOUNDS kTiledAttentionThreads, kMinBlocks
#else
#define TESSERA_TILED_BOUNDS kTiledAttentionThreads
#endif
constexpr int kMinBlocks = kBlockM * kHeadDimV <= 64 * 128 || kBlockM < 32 ? 2 : 1;

static_assert(kHeadDimQk % kTiledHeadDimMultiple == 0 && kHeadDimV % kTiledHeadDimMultiple == 0,
              "head_dims are padded to whole chunks");
static_assert(kKeyLanes == 16 && kThreadKeys == 4, "products are 4 by 4 for any number of rows");
static_assert(kValueKeys % kKeyGroups == 0, "groups have as many keys");
static_assert(kKeyGroups == 1 || kBlockM * kHeadDimV <= kLayout.all - kLayout.keys_begin,
              "sums to be joined fit where the values were");
static_assert(kTiledAttentionThreads % kWarpSize == 0 && kWarpSize % kRowThreads == 0,
              "a row's threads are of a warp");

/// Bytes of a row that are loaded at a time.
#if defined(TESSERA_PIECE_BYTES)
constexpr int kPieceBytes = TESSERA_PIECE_BYTES;
#else
constexpr int kPieceBytes = kVector ? 16 : 1;
#endif

using Floats4 = Vector<float, 4>;

TESSERA_DEVICE Floats4 load_floats(const float* from) { return *reinterpret_cast<const Floats4*>(from); }
TESSERA_DEVICE void store_floats(float* to, const Floats4& values) {
  *reinterpret_cast<Floats4*>(to) = values;
}

constexpr int64 kNoRow = -(int64{1} << 62);  // the place of keys behind the sequence's last

/// Bits as they are loaded at once.
template <int kBytes>
struct LoadedBits {
  using Type = WordsAtOnce<kBytes / 4>;
  TESSERA_DEVICE static unsigned word(const Type& bits, int i) { return word_of(bits, i); }
};
template <>
struct LoadedBits<1> {
  using Type = unsigned char;
  TESSERA_DEVICE static unsigned word(Type bits, int) { return bits; }
};
template <>
struct LoadedBits<2> {
  using Type = unsigned short;
  TESSERA_DEVICE static unsigned word(Type bits, int) { return bits; }
};

/// Elements of a row, next to one another, as memory has them.
template <class Element>
struct Piece {
  static constexpr int kBytes = int{sizeof(Element)};
  static constexpr int kPartBytes = kPieceBytes > kBytes ? kPieceBytes : kBytes;
  static constexpr int kPartElements = kPartBytes / kBytes;
  static constexpr int kElements = kPartElements > 4 ? kPartElements : 4;
  static constexpr int kParts = kElements / kPartElements;
  using Bits = LoadedBits<kPartBytes>;
  typename Bits::Type parts[kParts];

  /// From `column` on of the row at `offset`; zeros if there is no row, or behind head_dim.
  TESSERA_DEVICE void load(const Element* data, int64 offset, int column, int head_dim) {
    TESSERA_UNROLL
    for (int n = 0; n < kParts; ++n) {
      const int first = column + n * kPartElements;
      parts[n] = offset != kNoRow && first < head_dim
                     ? *reinterpret_cast<const typename Bits::Type*>(data + offset + first)
                     : typename Bits::Type{};
    }
  }

  TESSERA_DEVICE float element(int i) const {
    const int byte = i % kPartElements * kBytes;
    const unsigned word = Bits::word(parts[i / kPartElements], byte / 4) >> (byte % 4 * 8);
    if constexpr (kBytes == 4) {
      return float_of_bits(word);
    } else if constexpr (kBytes == 2) {
      return to_float(Element{static_cast<unsigned short>(word & 0xffffu)});
    } else {
      return to_float(Element{static_cast<unsigned char>(word & 0xffu)});
    }
  }

  TESSERA_DEVICE void store(float* to) const {
    TESSERA_UNROLL
    for (int i = 0; i < kElements; i += 4)
      store_floats(to + i, {{element(i), element(i + 1), element(i + 2), element(i + 3)}});
  }
};

/// Where a tile's keys and values begin, in elements, and what they are multiplied by.
struct KeyPlaces {
  int64 k[kBlockN];
  int64 v[kBlockN];
  float k_scale[kBlockN];
  float v_scale[kBlockN];
};

struct TileRow {
  RowIndex index;
  KeyRange keys;
};

struct alignas(16) SharedStorage {
  float floats[kLayout.all];
  float factors[kTiledMostRows];  // of the rows' sums
  KeyPlaces places[2];            // of the present tile and the next
  int64 q[kTiledMostRows];        // where they begin, in elements
  TileRow rows[kTiledMostRows];
  int is_spoilt[kTiledMostRows];
};
static_assert(sizeof(SharedStorage) == tiled_shared_bytes(kLayout), "the host asks for as much");
static_assert(sizeof(SharedStorage) <= TESSERA_SHARED_KIB * 1024, "the tiles do not fit in shared memory");

/// What a thread has products and sums of. Lanes next to one another read different rows of keys, or columns
/// of values, and where a warp has 4 by 8 of them, few rows of queries.
struct ThreadPlace {
  int dim_group, key_lane, score_row;
  int column, sum_row, key_group;

  TESSERA_DEVICE ThreadPlace() {
    const int thread = thread_x();
    dim_group = thread % kDimGroups;
    const int pair = thread / kDimGroups;
    if constexpr (kBlockM == kTiledMostRows) {
      key_lane = pair % 8 + pair / 32 % 2 * 8;
      score_row = (pair / 8 % 4 + pair / 64 * 4) * kThreadRows;
      column = key_lane * 4;
      sum_row = score_row;
      key_group = 0;
    } else {
      key_lane = pair % kKeyLanes;
      score_row = pair / kKeyLanes * kThreadRows;
      column = thread % kColumnLanes * 4;
      sum_row = thread / kColumnLanes % kRowGroups * kThreadRows;
      key_group = thread / (kColumnLanes * kRowGroups);
    }
  }
};

/// A thread's sums of weights times values: rows sum_row to sum_row + 3, columns `column` to `column` + 3 and
/// every kStepColumns further.
using Sums = float[kThreadRows][kColumnSteps][4];

/// Whether there are such columns in step c.
TESSERA_DEVICE bool has_column(const ThreadPlace& t, int c) {
  return (c + 1) * kStepColumns <= kHeadDimV || t.column + c * kStepColumns < kHeadDimV;
}

/// Calls use(4 sums, their row of the thread, their column after the thread's first).
template <class Use>
TESSERA_DEVICE void for_sums(const ThreadPlace& t, Sums& o, Use use) {
  TESSERA_UNROLL
  for (int i = 0; i < kThreadRows; ++i) {
    TESSERA_UNROLL
    for (int c = 0; c < kColumnSteps; ++c) {
      if (!has_column(t, c)) break;
      use(o[i][c], i, c * kStepColumns);
    }
  }
}

/// Notes which rows the block has, where their queries are, and which keys they see of `share`. Behind the
/// last row it is the last one, which sees none.
TESSERA_DEVICE void find_rows(const AttentionParams& p, const BlockWork& w, const KeyRange& share,
                              SharedStorage& shared) {
  const int local = thread_x();
  if (local >= kBlockM) return;
  const int row = w.row_begin + local;
  const RowIndex index = row_index(w, minimum(row, w.num_rows - 1));
  const KeyRange all = keys_of_query(p, w.sequence, index.i);
  shared.q[local] = query_offset(p, p.q, w.sequence, w.b, index.h, index.i);
  shared.rows[local] = {
      index, {maximum(all.begin, share.begin), row < w.num_rows ? minimum(all.end, share.end) : 0}};
}

/// The local row whose weights a thread computes, with others.
TESSERA_DEVICE int softmax_row() { return thread_x() / kRowThreads; }

/// What a thread has of it.
struct SoftmaxState {
  float base;  // the row's largest score so far
  float sum;   // of this thread's keys' weights
};

/// Whether a thread has such a row: all threads of its warp or none.
TESSERA_DEVICE bool has_row() {
  return kRowThreads * kBlockM == kTiledAttentionThreads || thread_x() < kRowThreads * kBlockM;
}

}  // namespace tessera::kernels
