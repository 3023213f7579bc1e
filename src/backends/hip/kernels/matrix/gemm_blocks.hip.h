#pragma once

#include "common/block_units.cuh"
#include "matrix/gemm.hip.h"
#include "matrix/gemm_tiles.h"

// How weights of blocks become operands of the matrix units (gemm_blocks.hip): rows' bytes in LDS, and of
// these a step's integers, exact in 16 bits, with the steps and offsets of their groups; and the sums of x
// that offsets are multiplied with.

namespace tessera::kernels {

/// A unit, as block_units.cuh has them, of a format that is not in the list there: its own functions give
/// integers, a byte each.
template <class Format>
struct IntegerUnit {
  static constexpr int kGroups = 4;
  static constexpr bool kHasOffset = false;
  const unsigned char* block;
  int first;

  TESSERA_DEVICE static int column(int j) { return kUnitColumns * j; }
  TESSERA_DEVICE static constexpr int octet_column(int o) { return kGroupSize * o; }
  TESSERA_DEVICE void load(const StagedBlock<Format>& b, int j) {
    block = b.row + b.begin;
    first = column(j);
  }
  TESSERA_DEVICE Octet octet(int o) const {
    const int begin = first + octet_column(o);
    formats::Eight integers = 0;
    if constexpr (Format::kHasCodebook) {
      integers = Format::integers(block, begin / kGroupSize);
    } else {
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i)
        integers |= static_cast<formats::Eight>(Format::integer(block, begin + i) & 0xff) << (8 * i);
    }
    // A byte and 128 is the byte with its sign the other way.
    integers ^= formats::eight_of(0x80);
    return octet_of_bytes<0xff, 128>(static_cast<unsigned>(integers), static_cast<unsigned>(integers >> 32));
  }
  TESSERA_DEVICE float step(int o) const {
    return Format::template step<float>(block, (first + octet_column(o)) / Format::kGroup).step *
           kOfSubnormal;
  }
  TESSERA_DEVICE float offset(int) const { return 0.0f; }
};

template <class Format>
constexpr bool kHasOwnUnit = !Format::kHasCodebook && !is_same<Format, formats::TQ1_0>;
template <class Format>
using OperandUnit = typename Either<kHasOwnUnit<Format>, BlockUnit<Format>, IntegerUnit<Format>>::Type;

/// What is left of a format's numbers when a group's products are summed: where units (block_units.cuh) have
/// an octet's integers, and the columns that share a step.
template <class Format>
struct OperandTraits {
  /// Whether octets have halves that are normal numbers, and not integers as subnormal ones.
  static constexpr bool kIsNormal = is_same<Format, formats::MXFP4>;
  static constexpr bool kHasNibbles = is_same<Format, formats::Q4_0> || is_same<Format, formats::Q4_1> ||
                                      is_same<Format, formats::Q5_0> || is_same<Format, formats::Q5_1> ||
                                      is_same<Format, formats::Q4_K> || is_same<Format, formats::Q5_K> ||
                                      is_same<Format, formats::Q6_K>;
  static constexpr bool kHasPairs =
      is_same<Format, formats::Q2_K> || is_same<Format, formats::Q3_K> || is_same<Format, formats::TQ2_0>;
  static constexpr int kGroupColumns = Format::kGroup < kUnitColumns ? Format::kGroup : kUnitColumns;
  static_assert(kGroupColumns % kOperandK == 0, "an operand's columns share a step");

  /// Octet o's numbers are integers times 2^(octet_shift(o) - 24).
  TESSERA_DEVICE static constexpr int octet_shift(int o) {
    return kHasNibbles ? o / 2 * 4 : kHasPairs ? 2 * o : 0;
  }
  /// What octet o's numbers are multiplied with to be 2^-9 of integers: normal halves, and small enough for
  /// products with any x.
  TESSERA_DEVICE static constexpr float raise(int o) {
    return kIsNormal ? 1.0f : static_cast<float>(1 << (15 - octet_shift(o)));
  }
};

/// Octet o of a unit as 16 bytes of T, columns in their order.
template <class T, class Format>
TESSERA_DEVICE Word4 operand_of_octet(const Octet& q, int o) {
  const float raise = OperandTraits<Format>::raise(o);
  Word4 words;
  if constexpr (is_same<T, f16>) {
    unsigned halves[4];
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const auto factor = static_cast<_Float16>(raise);
      halves[i] =
          __builtin_bit_cast(unsigned, __builtin_bit_cast(Half2, q.halves[i]) * Half2{factor, factor});
    }
    TESSERA_UNROLL
    for (int i = 0; i < 2; ++i) {
      words[2 * i] = __builtin_amdgcn_perm(halves[2 * i + 1], halves[2 * i], 0x05040100u);
      words[2 * i + 1] = __builtin_amdgcn_perm(halves[2 * i + 1], halves[2 * i], 0x07060302u);
    }
  } else {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      // Integers of at most 8 bits: the upper half is all there is.
      words[i] = __builtin_amdgcn_perm(bits_of_float(q.multiply(2 * i + 1, raise, 0.0f)),
                                       bits_of_float(q.multiply(2 * i, raise, 0.0f)), 0x07060302u);
    }
  }
  return words;
}

/// The bytes of some rows' next blocks, on their way through registers to LDS. Blocks may stand at any
/// address: a row's are moved from the multiple of 16 bytes before on.
template <class Format, int kRows, int kThreads>
struct BlockRows {
  /// Of a row, moved at once: whole blocks, and whole steps.
  static constexpr int kColumns = larger_of(Format::kElements, kBlockStepColumns);
  static constexpr int kUnits = kColumns / kUnitColumns;
  static constexpr int kBytes = kColumns / Format::kElements * Format::kBytes;
  static constexpr int kVectors = step_vectors(Format::kElements, Format::kBytes, kUnits);
  static constexpr int kStride = kVectors | 1;  // lanes of neighbouring rows meet different banks
  static constexpr int kCount = kRows * kVectors;
  static constexpr int kLoads = parts_of(kCount, kThreads);
  static_assert(kRows % kMovedBytes == 0, "a tile's first row stands at a multiple of 16 bytes");
  struct Shared {
    MovedWords vectors[kRows * kStride + 1];  // one more: words on both sides of what is read
  };

  const unsigned char* base;  // of the first row
  unsigned row_bytes;
  unsigned last_row;  // of the tile that exists; it stands for those that don't
  unsigned end;       // bytes of w from `base` on, at most what 32 bits hold
  unsigned moved;     // bytes of a row before those in registers
  unsigned staged;    // before those in LDS
  MovedWords vector[kLoads];

  TESSERA_DEVICE BlockRows(const GemmParams& p, int64 first_row)
      : row_bytes(static_cast<unsigned>(p.k / Format::kElements) * unsigned{Format::kBytes}),
        last_row(static_cast<unsigned>(minimum<int64>(p.n - first_row, kRows)) - 1),
        moved(0),
        staged(0) {
    base = static_cast<const unsigned char*>(p.weight.data) + first_row * int64{row_bytes};
    end = static_cast<unsigned>(minimum<int64>((p.n - first_row) * int64{row_bytes}, 0xfffffff0u));
  }

  /// Asks for the next ones; beyond w's last whole vector, for that.
  TESSERA_DEVICE void load() {
    TESSERA_UNROLL
    for (int n = 0; n < kLoads; ++n) {
      const unsigned from = begin_of(minimum(vector_of_thread(n), unsigned{kCount} - 1));
      vector[n] = *reinterpret_cast<const MovedWords*>(base + minimum(from, last_whole()));
    }
  }

  /// Puts what was asked for where blocks were that nobody reads any longer.
  TESSERA_DEVICE void store(Shared& shared) {
    TESSERA_UNROLL
    for (int n = 0; n < kLoads; ++n) {
      const unsigned i = vector_of_thread(n);
      if (kCount % kThreads == 0 || i < unsigned{kCount}) shared.vectors[place(i)] = vector[n];
    }
    if (end % kMovedBytes != 0 && end == (last_row + 1) * row_bytes) store_cut(shared);
    staged = moved;
    moved += kBytes;
  }

  /// Block `block` of those of a row in LDS.
  TESSERA_DEVICE StagedBlock<Format> block(const Shared& shared, int row, int block) const {
    const unsigned begin = row_begin(static_cast<unsigned>(row)) + staged;
    return {reinterpret_cast<const unsigned char*>(shared.vectors + row * kStride),
            static_cast<int>(begin % kMovedBytes) + block * Format::kBytes};
  }

 private:
  /// What w ends with of a vector that it does not fill, by the thread that stored another in its place.
  TESSERA_DEVICE void store_cut(Shared& shared) const {
    const unsigned from = last_whole() + kMovedBytes;
    const unsigned number = (from - (row_begin(last_row) + moved) / kMovedBytes * kMovedBytes) / kMovedBytes;
    const unsigned i = last_row * kVectors + number;
    if (number >= unsigned{kVectors} || i % kThreads != static_cast<unsigned>(thread_x())) return;
    auto* const to = reinterpret_cast<unsigned char*>(&shared.vectors[last_row * kStride + number]);
    TESSERA_UNROLL_BY(1)
    for (unsigned b = 0; b < end % kMovedBytes; ++b) to[b] = base[from + b];
  }

  TESSERA_DEVICE static unsigned vector_of_thread(int n) {
    return static_cast<unsigned>(thread_x() + n * kThreads);
  }
  /// Where vector i of those moved at once is in LDS.
  TESSERA_DEVICE static unsigned place(unsigned i) { return i / kVectors * kStride + i % kVectors; }
  TESSERA_DEVICE unsigned row_begin(unsigned row) const { return minimum(row, last_row) * row_bytes; }
  /// The last vector that w fills: no block is as short as one.
  TESSERA_DEVICE unsigned last_whole() const { return end / kMovedBytes * kMovedBytes - kMovedBytes; }
  /// Where vector i of those moved at once begins.
  TESSERA_DEVICE unsigned begin_of(unsigned i) const {
    const unsigned begin = row_begin(i / kVectors);
    const unsigned vector_bytes = i % kVectors * kMovedBytes;
    if (Format::kBytes % kMovedBytes == 0) return begin + vector_bytes + moved;
    return (begin + moved) / kMovedBytes * kMovedBytes + vector_bytes;
  }
};

/// A step of rows of blocks as operands, with the factors of their groups.
template <class T, class Format, int kRows, int kThreads>
struct OperandRows {
  static constexpr int kGroupColumns = OperandTraits<Format>::kGroupColumns;
  static constexpr int kGroups = kBlockStepColumns / kGroupColumns;
  static constexpr int kUnits = kBlockStepColumns / kUnitColumns;  // of a row
  static constexpr int kUnitsOfThread = kRows * kUnits / kThreads;
  static_assert(kUnitsOfThread * kThreads == kRows * kUnits && kThreads % kRows == 0);
  static constexpr bool kHasOffset = OperandUnit<Format>::kHasOffset;
  static constexpr bool kIsOneUnit = Format::kElements == kUnitColumns;  // a block; else two steps
  static_assert(kIsOneUnit || Format::kElements == 2 * kBlockStepColumns);
  using SharedRows = SlotRows<kBlockStepColumns / 8>;
  struct Shared {
    Word4 slots[kRows * kBlockStepColumns / 8];
    float steps[kGroups * kRows];
    float offsets[kHasOffset ? kGroups * kRows : 1];
  };

  /// Takes step `number` of the rows in LDS apart, `left` columns before the end of rows.
  template <class Rows>
  TESSERA_DEVICE static void unpack(const Rows& rows, const typename Rows::Shared& staged, unsigned number,
                                    int64 left, Shared& shared) {
    using Unit = OperandUnit<Format>;
    const int row = thread_x() % kRows;
    // Of all lanes of a wave, where they have as many rows.
    const int first_unit = kRows % kWarpSize == 0 ? uniform(thread_x() / kRows) : thread_x() / kRows;
    TESSERA_UNROLL
    for (int n = 0; n < kUnitsOfThread; ++n) {
      const unsigned unit_of_step = static_cast<unsigned>(first_unit + n * (kThreads / kRows));
      const unsigned unit_of_rows = (number * kUnits + unit_of_step) % Rows::kUnits;
      const int j = kIsOneUnit ? 0 : static_cast<int>(unit_of_rows);
      Unit unit;
      unit.load(rows.block(staged, row, kIsOneUnit ? static_cast<int>(unit_of_rows) : 0), j);
      const unsigned first = kIsOneUnit ? unit_of_step * kUnitColumns
                                        : static_cast<unsigned>(Unit::column(j)) % kBlockStepColumns;
      store_unit(unit, row, first, !kIsOneUnit || unit_of_step * kUnitColumns < left, shared);
    }
  }

 private:
  /// `unit`'s columns are those of the step from `first` on; zeros if it does not exist.
  TESSERA_DEVICE static void store_unit(const OperandUnit<Format>& unit, int row, unsigned first, bool exists,
                                        Shared& shared) {
    using Unit = OperandUnit<Format>;
    const auto offset = static_cast<unsigned>(SharedRows::at(row, static_cast<int>(first / 8)) * kSlotBytes);
    TESSERA_UNROLL
    for (int o = 0; o < 4; ++o) {
      // A unit's first slot and its octets' have no bit in common.
      const unsigned octet = SharedRows::further(offset, 0, Unit::octet_column(o) / 8);
      const Word4 words = operand_of_octet<T, Format>(unit.octet(o), o);
      word_at<Word4>(shared.slots, octet) = exists ? words : Word4(0);
      const unsigned column = first + static_cast<unsigned>(Unit::octet_column(o));
      if (column % kGroupColumns != 0) continue;
      const int group = o * Unit::kGroups / 4;
      const unsigned place = column / kGroupColumns * kRows + static_cast<unsigned>(row);
      const float step = unit.step(group) / OperandTraits<Format>::raise(o);
      shared.steps[place] = exists ? step : 0.0f;
      if constexpr (kHasOffset) shared.offsets[place] = exists ? unit.offset(group) : 0.0f;
    }
  }
};

/// Where the sum of a tile's row of x stands among 16: those that a lane needs side by side.
TESSERA_DEVICE int place_of_sum(int row) {
#if defined(__GFX11__)
  return row / 16 * 16 + row % 2 * 8 + row % 16 / 2;
#else
  return row;
#endif
}

/// Sums of x over groups of columns, of type X, from the registers that hold a step of it: kRows for each
/// group.
template <class X, int kGroupColumns, int kRows, class Tile>
TESSERA_DEVICE void store_sums_of_x(const Tile& x, float* sums) {
  constexpr int kLanes = kGroupColumns / Tile::kPieceColumns;  // that share a group
  const int piece = thread_x() % Tile::kRowPieces;
  TESSERA_UNROLL
  for (int n = 0; n < Tile::kPieces; ++n) {
    unsigned words[4];
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) words[i] = x.piece[n][i];
    float sum = packed_element(words, 0, X());
    TESSERA_UNROLL
    for (int i = 1; i < Tile::kPieceColumns; ++i) sum += packed_element(words, i, X());
    TESSERA_UNROLL
    for (int mask = 1; mask < kLanes; mask *= 2) sum += shuffle_xor(sum, mask);
    const int row = thread_x() / Tile::kRowPieces + n * Tile::kRowsApart;
    if (piece % kLanes == 0) sums[piece / kLanes * kRows + place_of_sum(row)] = sum;
  }
}

}  // namespace tessera::kernels
