#pragma once

#include "common/score_terms.cuh"
#include "matrix/matrix.hip.h"
#include "matrix/narrow.hip.h"

// Tiles of keys and values on their way from memory to LDS, through registers: a workgroup asks for the next
// tile while it computes on this one, and stores it once all waves have finished with this one.
//
// Keys stay rows of head_dim elements. Values are transposed: rows of a tile's keys, one for each dim, with
// the keys of each 16 in the order in which lanes hold weights (position_of_k). 16-bit values are transposed
// as blocks of four keys x 8 dims by v_perm, fp32 ones by being stored elsewhere. Keys and values of 8 bits
// are widened on their way from registers to LDS.

namespace tessera::kernels {

/// The rows of one head's keys or values.
struct KeyRows {
  const char* first;       // key 0, or page 0 if paged
  int64 stride_bytes;      // between keys
  int64 page_bytes;        // between pages
  const int* block_table;  // of the sequence
  int page_size;
  int page_shift;
  int last_key;  // the last that may be read, at least 0
  int head_dim;
};

template <class T>
TESSERA_DEVICE KeyRows rows_of_head(const AttentionParams& p, const TensorArgument& x, const Sequence& s,
                                    int b, int kv_head, int head_dim) {
  constexpr int64 kBytes = sizeof(T);
  KeyRows rows;
  rows.first = static_cast<const char*>(x.data) + kv_head * x.head_stride * kBytes;
  rows.stride_bytes = x.seq_stride * kBytes;
  rows.page_bytes = x.batch_stride * kBytes;
  rows.block_table = nullptr;
  rows.page_size = p.page_size;
  rows.page_shift = p.page_shift;
  if (p.block_table != nullptr) {
    rows.block_table = p.block_table + b * p.block_table_stride;
  } else {
    rows.first +=
        (p.cu_seqlens_kv != nullptr ? 0 : b * x.batch_stride) * kBytes + s.kv_begin * rows.stride_bytes;
  }
  rows.last_key = maximum(s.len_kv - 1, 0);
  rows.head_dim = head_dim;
  return rows;
}

/// kElements of a row from element `column` on, zeros from head_dim on. kVector: the row is aligned to 16
/// bytes.
template <class Kv, int kElements, bool kVector, bool kPadded>
TESSERA_DEVICE Words<kElements* int{sizeof(Kv)} / 4> load_piece(const char* row, int column, int head_dim) {
  using Piece = Words<kElements* int{sizeof(Kv)} / 4>;
  const auto load = [&](int first) { return *reinterpret_cast<const Piece*>(row + first * int{sizeof(Kv)}); };
  if constexpr (kVector && !kPadded) {
    return load(column);
  } else if constexpr (kVector) {
    const bool valid = column < head_dim;
    const Piece piece = load(valid ? column : 0);
    return valid ? piece : Piece(0u);
  } else {
    constexpr int kOfWord = 4 / int{sizeof(Kv)};
    Piece piece(0u);
    const Kv* elements = reinterpret_cast<const Kv*>(row);
    TESSERA_UNROLL
    for (int e = 0; e < kElements; ++e) {
      if (column + e >= head_dim) continue;
      if constexpr (sizeof(Kv) == 4) {
        piece[e] = bits_of_float(elements[column + e]);
      } else {
        piece[e / kOfWord] |= static_cast<unsigned>(elements[column + e].bits)
                              << e % kOfWord * 8 * int{sizeof(Kv)};
      }
    }
    return piece;
  }
}

/// A thread's part of a tile of kKeys keys x kColumns elements: items of kKeysOfItem keys x 16 bytes of T,
/// stored as Kv, all in the same column and equally many keys apart. A row's items are counted to a power of
/// two, so that threads without an item are left where it has another number of them.
template <class T, class Kv, int kKeys, int kColumns, int kKeysOfItem, int kThreads, bool kVector,
          bool kPadded, bool kPaged>
struct TilePart {
  static constexpr int kElements = 16 / int{sizeof(T)};
  static constexpr bool kIsNarrow = sizeof(Kv) < sizeof(T);
  static constexpr int kWords = kElements * int{sizeof(Kv)} / 4;
  static constexpr int kPieces = kColumns / kElements;  // of a key
  static constexpr int kThreadsOfKey = power_of_two_from(kPieces);
  static constexpr int kKeyStep = kThreads / kThreadsOfKey * kKeysOfItem;
  static constexpr int kPerThread = (kKeys + kKeyStep - 1) / kKeyStep;
  static_assert(kThreads % kThreadsOfKey == 0 && (kKeys % kKeyStep == 0 || kPerThread == 1));

  Words<kWords> piece[kPerThread][kKeysOfItem];

  /// Whether this thread has items.
  static TESSERA_DEVICE bool exists() {
    return (kPieces == kThreadsOfKey || column() < kColumns) && (kKeys % kKeyStep == 0 || key(0) < kKeys);
  }
  /// Of item n: its first key in the tile, and its first element.
  static TESSERA_DEVICE int key(int n) { return thread_x() / kThreadsOfKey * kKeysOfItem + n * kKeyStep; }
  static TESSERA_DEVICE int column() { return thread_x() % kThreadsOfKey * kElements; }

  /// Asks for the tile from first_key on. Keys after the last are copies of it.
  TESSERA_DEVICE void fetch(const KeyRows& rows, int first_key) {
    if (!exists()) return;
    if constexpr (kVector && !kPaged) {
      constexpr int64 kMostStride = (1ll << 31) / kKeys;
      if (first_key + kKeys - 1 <= rows.last_key && rows.stride_bytes < kMostStride) {
        // Within a tile 32 bits hold the distances: a uniform base and one register say where a thread's
        // items are.
        const auto stride = static_cast<unsigned>(rows.stride_bytes);
        const char* tile = rows.first + first_key * rows.stride_bytes;
        const unsigned of_thread = static_cast<unsigned>(key(0)) * stride;
        TESSERA_UNROLL
        for (int n = 0; n < kPerThread; ++n) {
          TESSERA_UNROLL
          for (int r = 0; r < kKeysOfItem; ++r) {
            const char* base = tile + static_cast<int64>((n * kKeyStep + r) * stride);
            piece[n][r] = load_piece<Kv, kElements, true, kPadded>(base + of_thread, column(), rows.head_dim);
          }
        }
        return;
      }
    }
    TESSERA_UNROLL
    for (int n = 0; n < kPerThread; ++n) {
      TESSERA_UNROLL
      for (int r = 0; r < kKeysOfItem; ++r) {
        const int k = minimum(first_key + key(n) + r, rows.last_key);
        piece[n][r] = load_piece<Kv, kElements, kVector, kPadded>(row(rows, k), column(), rows.head_dim);
      }
    }
  }

  static TESSERA_DEVICE const char* row(const KeyRows& rows, int k) {
    if constexpr (kPaged) {
      const int page = rows.page_shift >= 0 ? k >> rows.page_shift : k / rows.page_size;
      return rows.first + rows.block_table[page] * rows.page_bytes +
             (k - page * rows.page_size) * rows.stride_bytes;
    } else {
      return rows.first + k * rows.stride_bytes;
    }
  }

  /// Keys: a row for each.
  template <class Rows>
  TESSERA_DEVICE void store(Word4* slots) const {
    static_assert(kKeysOfItem == 1);
    if (!exists()) return;
    TESSERA_UNROLL
    for (int n = 0; n < kPerThread; ++n) {
      Word4& slot = slots[Rows::at(key(n), column() / kElements)];
      if constexpr (kIsNarrow) {
        constexpr int kOfWord = sizeof(T);  // words that one becomes
        unsigned words[4];
        TESSERA_UNROLL
        for (int w = 0; w < kWords; ++w) widen_word<T>(piece[n][0][w], words + w * kOfWord);
        slot = Word4{words[0], words[1], words[2], words[3]};
      } else {
        slot = piece[n][0];
      }
    }
  }

  /// Values: a row for each dim.
  template <class Rows, int kTile>
  TESSERA_DEVICE void store_transposed(Word4* slots) const {
    static_assert(kKeysOfItem == 4);
    if (!exists()) return;
    TESSERA_UNROLL
    for (int n = 0; n < kPerThread; ++n) {
      const int first = key(n);
      const int position = first / 16 * 16 + position_of_k<kTile>(first % 16);
      const unsigned row_0 =
          opaque(static_cast<unsigned>(Rows::at(column(), position / kElements, column() / kElements) * 16 +
                                       position * int{sizeof(T)} % 16));
      TESSERA_UNROLL
      for (int e = 0; e < kElements; ++e) {
        const unsigned offset = Rows::further(row_0, e, 0);
        if constexpr (kIsNarrow) {
          unsigned words[sizeof(T)];
          TESSERA_UNROLL
          for (int pair = 0; pair < 2; ++pair)
            widen_pair<T>(piece[n][2 * pair][e / 4], e % 4, piece[n][2 * pair + 1][e / 4], e % 4,
                          words + pair * int{sizeof(T)} / 2);
          if constexpr (sizeof(T) == 4) {
            word_at<Word4>(slots, offset) = Word4{words[0], words[1], words[2], words[3]};
          } else {
            word_at<Word2>(slots, offset) = Word2{words[0], words[1]};
          }
        } else if constexpr (sizeof(T) == 4) {
          word_at<Word4>(slots, offset) =
              Word4{piece[n][0][e], piece[n][1][e], piece[n][2][e], piece[n][3][e]};
        } else {
          const unsigned halves = e % 2 == 0 ? 0x05040100u : 0x07060302u;
          word_at<Word2>(slots, offset) =
              Word2{__builtin_amdgcn_perm(piece[n][1][e / 2], piece[n][0][e / 2], halves),
                    __builtin_amdgcn_perm(piece[n][3][e / 2], piece[n][2][e / 2], halves)};
        }
      }
    }
  }

  /// Replaces infinities and NaN by 0. Whether there were some.
  TESSERA_DEVICE bool clean() {
    bool found = false;
    if (!exists()) return false;
    TESSERA_UNROLL
    for (int n = 0; n < kPerThread; ++n) {
      TESSERA_UNROLL
      for (int r = 0; r < kKeysOfItem; ++r) {
        TESSERA_UNROLL
        for (int w = 0; w < kWords; ++w) {
          const unsigned word = piece[n][r][w];
          unsigned kept = ~0u;
          if constexpr (sizeof(Kv) == 1) {
            const unsigned is_nan = ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
            kept = ~((is_nan >> 7) * 0xffu);
          } else if constexpr (sizeof(T) == 4) {
            if ((word & 0x7f800000u) == 0x7f800000u) kept = 0;
          } else {
            constexpr unsigned kExponent = __is_same(T, f16) ? 0x7c00u : 0x7f80u;
            if ((word & kExponent) == kExponent) kept &= 0xffff0000u;
            if ((word >> 16 & kExponent) == kExponent) kept &= 0x0000ffffu;
          }
          found = found || kept != ~0u;
          piece[n][r][w] = word & kept;
        }
      }
    }
    return found;
  }
};

}  // namespace tessera::kernels
