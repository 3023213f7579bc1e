#pragma once

#include "common/rows.cuh"
#include "matrix/matrix.hip.h"

// Tiles of a product on their way from memory to LDS, as operands of the matrix units: a step is kDepth
// columns of x and w. Loads of a step are under way while the one before it is multiplied; then they are
// stored.

namespace tessera::kernels {

template <bool kCondition, class A, class B>
struct Either {
  using Type = A;
};
template <class A, class B>
struct Either<false, A, B> {
  using Type = B;
};

struct Q8 {};  // a weight's type: blocks of 32 int8 values and an fp16 scale

constexpr int kDepth = 64;              // columns of x and w in a step of gemm.hip
constexpr int kStepSlots = kDepth / 8;  // 16-byte slots of a row of 16-bit elements
using StepRows = SlotRows<kStepSlots>;

/// Rows [first_row, first_row + kRows) of 16-bit elements, which stand at multiples of 16 bytes, in steps of
/// kColumns. Rows and columns that do not exist are zeros.
template <int kColumns, int kRows, int kThreads>
struct PlainTile {
  static constexpr int kPieceColumns = 8;
  static constexpr int kRowPieces = kColumns / kPieceColumns;
  static constexpr int kPieces = kRows * kRowPieces / kThreads;  // of 16 bytes, a thread's
  static constexpr int kRowsApart = kThreads / kRowPieces;       // between a thread's pieces
  static_assert(kPieces * kThreads == kRows * kRowPieces);
  using SharedRows = SlotRows<kRowPieces>;
  struct Shared {
    Word4 slots[kRows * kRowPieces];
  };

  const char* base;  // of this tile's first row, at the step's first column
  unsigned row_bytes;
  int rows;  // of the tile that exist
  Word4 piece[kPieces];

  TESSERA_DEVICE PlainTile(const RowsArgument& matrix, int64 first_row, int64 num_rows)
      : base(static_cast<const char*>(matrix.data) + first_row * matrix.row_stride * 2),
        row_bytes(static_cast<unsigned>(matrix.row_stride) * 2),
        rows(static_cast<int>(minimum<int64>(num_rows - first_row, kRows))) {}

  /// Loads the step; `left` columns of the matrix are left, a multiple of 8.
  TESSERA_DEVICE void load(int64 left) {
    const int slot = thread_x() % kRowPieces;
    const int first = thread_x() / kRowPieces;
    TESSERA_UNROLL
    for (int n = 0; n < kPieces; ++n) {
      const int row = first + n * kRowsApart;
      const bool exists = row < rows && slot * 8 < left;
      piece[n] = exists ? load_16(base + (static_cast<unsigned>(row) * row_bytes + slot * 16)) : Word4(0);
    }
    base += kColumns * 2;
  }

  TESSERA_DEVICE void store(Shared& shared) const {
    const int slot = thread_x() % kRowPieces;
    const int first = thread_x() / kRowPieces;
    TESSERA_UNROLL
    for (int n = 0; n < kPieces; ++n) shared.slots[SharedRows::at(first + n * kRowsApart, slot)] = piece[n];
  }
};

/// The same of fp32 or f16, each number as a sum of bf16: three or two, which have all of its bits.
template <class X, int kColumns, int kRows, int kThreads>
struct SplitTile {
  static constexpr int kParts = sizeof(X) == 4 ? 3 : 2;
  static constexpr int kPieceColumns = 16 / sizeof(X);
  static constexpr int kRowPieces = kColumns / kPieceColumns;
  static constexpr int kPieces = kRows * kRowPieces / kThreads;
  static constexpr int kRowsApart = kThreads / kRowPieces;
  static_assert(kPieces * kThreads == kRows * kRowPieces);
  using SharedRows = SlotRows<kColumns / 8>;
  struct Shared {
    Word4 slots[kParts][kRows * kColumns / 8];
  };

  const char* base;
  unsigned row_bytes;
  int rows;
  Word4 piece[kPieces];

  TESSERA_DEVICE SplitTile(const RowsArgument& matrix, int64 first_row, int64 num_rows)
      : base(static_cast<const char*>(matrix.data) + first_row * matrix.row_stride * int{sizeof(X)}),
        row_bytes(static_cast<unsigned>(matrix.row_stride) * unsigned{sizeof(X)}),
        rows(static_cast<int>(minimum<int64>(num_rows - first_row, kRows))) {}

  TESSERA_DEVICE void load(int64 left) {
    const int column = thread_x() % kRowPieces * kPieceColumns;
    const int first = thread_x() / kRowPieces;
    TESSERA_UNROLL
    for (int n = 0; n < kPieces; ++n) {
      const int row = first + n * kRowsApart;
      const bool exists = row < rows && column < left;
      const unsigned offset = static_cast<unsigned>(row) * row_bytes + column * unsigned{sizeof(X)};
      piece[n] = exists ? load_16(base + offset) : Word4(0);
    }
    base += kColumns * int{sizeof(X)};
  }

  TESSERA_DEVICE void store(Shared& shared) const {
    constexpr int kSlotPieces = 8 / kPieceColumns;  // of the 16 bytes that 8 columns have as bf16
    using Part = Words<kPieceColumns / 2>;
    const int row_piece = thread_x() % kRowPieces;
    const int first = thread_x() / kRowPieces;
    TESSERA_UNROLL
    for (int n = 0; n < kPieces; ++n) {
      const int slot = SharedRows::at(first + n * kRowsApart, row_piece / kSlotPieces);
      unsigned words[4], rest[kPieceColumns];
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) words[i] = piece[n][i];
      TESSERA_UNROLL
      for (int i = 0; i < kPieceColumns; ++i) rest[i] = bits_of_float(packed_element(words, i, X()));
      TESSERA_UNROLL
      for (int part = 0; part < kParts; ++part) {
        // The upper halves are numbers whose difference from the whole is exact.
        Part upper_halves;
        TESSERA_UNROLL
        for (int i = 0; i < kPieceColumns / 2; ++i)
          upper_halves[i] = __builtin_amdgcn_perm(rest[2 * i + 1], rest[2 * i], 0x07060302u);
        reinterpret_cast<Part*>(&shared.slots[part][slot])[row_piece % kSlotPieces] = upper_halves;
        TESSERA_UNROLL
        for (int i = 0; i < kPieceColumns; ++i) {
          const unsigned whole = rest[i];
          const unsigned upper = whole & 0xffff0000u;
          // Of an infinity, and of a NaN, there is no rest, and of no other rest one that is not finite.
          const bool is_finite = part > 0 || (whole & 0x7f800000u) != 0x7f800000u;
          rest[i] = is_finite ? bits_of_float(float_of_bits(whole) - float_of_bits(upper)) : 0u;
        }
      }
    }
  }
};

/// Integers of 8 bits, exact in T: bytes 0 and 1 of `four`, or 2 and 3.
template <class T, bool kIsUpper>
TESSERA_DEVICE unsigned pack_integers(unsigned four) {
  if constexpr (__is_same(T, f16)) {
    // 0x6400 + u is 1024 + u, u being the integer + 128.
    const unsigned pair =
        __builtin_amdgcn_perm(0x64646464u, four ^ 0x80808080u, kIsUpper ? 0x04030402u : 0x04010400u);
    const Half2 offset = {static_cast<_Float16>(1152), static_cast<_Float16>(1152)};
    return __builtin_bit_cast(unsigned, __builtin_bit_cast(Half2, pair) - offset);
  } else {
    const unsigned pair = kIsUpper ? four >> 16 : four;
    const float low = static_cast<float>(static_cast<signed char>(pair & 0xff));
    const float high = static_cast<float>(static_cast<signed char>(pair >> 8 & 0xff));
    return __builtin_amdgcn_perm(bits_of_float(high), bits_of_float(low), 0x07060302u);
  }
}

/// Rows of Q8_0 blocks, two of which are a step: their integers as T, and their scales. A step's 17 words
/// stand at a multiple of 4 bytes. Each has two pairs of integers, but word 0 begins with the first scale and
/// word 8 ends with the second. A thread loads one of the first 16 of several rows, then the last of a row.
template <class T, int kRows, int kThreads>
struct BlocksTile {
  static constexpr int kBlocks = kDepth / formats::Q8_0::kElements;
  static constexpr int kRowWords = kBlocks * formats::Q8_0::kBytes / 4;
  static constexpr int kRowsApart = kThreads / 16;
  static constexpr int kPieces = kRows / kRowsApart;
  static_assert(kBlocks == 2 && kRowWords == 17 && kPieces * kRowsApart == kRows && kRows <= kThreads);
  static_assert(kRowsApart % 8 == 0, "the slots of a thread's rows are exchanged alike");
  struct Shared {
    Word4 slots[kRows * kStepSlots + kBlocks * kRows / 4];  // the last ones: scales, (kBlocks, kRows) floats
  };

  const char* base;
  unsigned row_bytes;
  int rows;
  unsigned piece[kPieces];
  unsigned last;

  TESSERA_DEVICE BlocksTile(const RowsArgument& matrix, int64 first_row, int64 num_rows)
      : base(static_cast<const char*>(matrix.data) +
             first_row * (matrix.row_stride / formats::Q8_0::kElements * formats::Q8_0::kBytes)),
        row_bytes(static_cast<unsigned>(matrix.row_stride / formats::Q8_0::kElements) *
                  unsigned{formats::Q8_0::kBytes}),
        rows(static_cast<int>(minimum<int64>(num_rows - first_row, kRows))) {}

  /// Columns are a multiple of kDepth.
  TESSERA_DEVICE void load(int64) {
    const auto word_of = [&](int row, int word) {
      const unsigned offset = static_cast<unsigned>(row) * row_bytes + static_cast<unsigned>(word) * 4;
      return row < rows ? *reinterpret_cast<const unsigned*>(base + offset) : 0u;
    };
    TESSERA_UNROLL
    for (int n = 0; n < kPieces; ++n) piece[n] = word_of(thread_x() / 16 + n * kRowsApart, thread_x() % 16);
    last = word_of(thread_x(), 16);
    base += kRowWords * 4;
  }

  TESSERA_DEVICE void store(Shared& shared) const {
    unsigned* const words = reinterpret_cast<unsigned*>(shared.slots);
    const int word = thread_x() % 16;
    const bool low_is_scale = word == 0;
    const bool high_is_scale = word == 8;
    const int row = thread_x() / 16;
    const int low =
        low_is_scale ? scale_place(0, row) : pair_place(row, word < 9 ? 2 * word - 1 : 2 * word - 2);
    const int high =
        high_is_scale ? scale_place(1, row) : pair_place(row, word < 8 ? 2 * word : 2 * word - 1);
    const int low_apart = low_is_scale ? kRowsApart : kRowsApart * kStepSlots * 4;
    const int high_apart = high_is_scale ? kRowsApart : kRowsApart * kStepSlots * 4;
    TESSERA_UNROLL
    for (int n = 0; n < kPieces; ++n) {
      const unsigned lower = pack_integers<T, false>(piece[n]);
      const unsigned upper = pack_integers<T, true>(piece[n]);
      words[low + n * low_apart] = low_is_scale ? scale_of(piece[n] & 0xffffu) : lower;
      words[high + n * high_apart] = high_is_scale ? scale_of(piece[n] >> 16) : upper;
    }
    if (thread_x() < kRows) {
      words[pair_place(thread_x(), 30)] = pack_integers<T, false>(last);
      words[pair_place(thread_x(), 31)] = pack_integers<T, true>(last);
    }
  }

  TESSERA_DEVICE static float scale(const Shared& shared, int block, int row) {
    return reinterpret_cast<const float*>(shared.slots)[scale_place(block, row)];
  }

 private:
  // Places of words in Shared.
  TESSERA_DEVICE static int pair_place(int row, int pair) {
    return StepRows::at(row, pair / 4) * 4 + pair % 4;
  }
  TESSERA_DEVICE static int scale_place(int block, int row) {
    return kRows * kStepSlots * 4 + block * kRows + row;
  }
  TESSERA_DEVICE static unsigned scale_of(unsigned half) {
    return bits_of_float(to_float(f16{static_cast<unsigned short>(half)}));
  }
};

}  // namespace tessera::kernels
