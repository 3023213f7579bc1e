#pragma once

#include "common/types.cuh"
#include "matrix/matrix_traits.h"

// AMD's matrix instructions under one set of names: MFMA of CDNA (gfx90a, gfx942), WMMA of RDNA3 (gfx11) and
// RDNA4 (gfx12). Layouts: AMD's CDNA3 and RDNA3 instruction set guides, and its matrix instruction
// calculator.
//
//   C (kTile x kTile, fp32) += A (kTile x 16) B (16 x kTile)
//
// A wave's lanes are kTile columns times kGroups groups: lane l belongs to row (of A) or column (of B and C)
// l % kTile and to group l / kTile. What it holds, i counting its elements and g being its group:
//
//              kTile   A and B: i is the k                 C: i is the row
//   CDNA         16    4g + i               i < 4          4g + i
//                32    8(i/4) + 4g + i%4    i < 8          8(i/4) + 4g + i%4
//   RDNA3        16    i (all groups)       i < 16         2i + g
//   RDNA4        16    8g + i               i < 8          8g + i
//
// So on CDNA and RDNA4 a lane's part of C, rounded, is its part of B for a product whose k are C's rows;
// RDNA3 exchanges halves with the other group. Where both operands come from memory their k may be in any
// order that is the same for both: a lane then takes kElements that lie side by side.

namespace tessera::kernels {

#if defined(__gfx90a__) || defined(__gfx942__)
#define TESSERA_MFMA 1
#elif defined(__GFX11__) || defined(__GFX12__)
#define TESSERA_MFMA 0
#else
#error "no matrix instructions are known here for this target: gfx90a, gfx942, gfx11 and gfx12 have some"
#endif

using Half2 = _Float16 __attribute__((ext_vector_type(2)));
using Half4 = _Float16 __attribute__((ext_vector_type(4)));
using Half8 = _Float16 __attribute__((ext_vector_type(8)));
using Half16 = _Float16 __attribute__((ext_vector_type(16)));
using Short2 = short __attribute__((ext_vector_type(2)));
using Short4 = short __attribute__((ext_vector_type(4)));
using Short8 = short __attribute__((ext_vector_type(8)));
using Short16 = short __attribute__((ext_vector_type(16)));
template <int kCount>
using Words = unsigned __attribute__((ext_vector_type(kCount)));
using Word2 = Words<2>;
using Word4 = Words<4>;
template <int kCount>
using Floats = float __attribute__((ext_vector_type(kCount)));

/// Whether T has matrix instructions here: RDNA has none for fp32.
template <class T>
constexpr bool kHasMatrixInstructions = TESSERA_MFMA != 0 || sizeof(T) == 2;

#if TESSERA_MFMA
constexpr MatrixUnitTraits kMatrixUnit = kMfmaTraits;
#elif defined(__GFX11__)
constexpr MatrixUnitTraits kMatrixUnit = kWmma11Traits;
#else
constexpr MatrixUnitTraits kMatrixUnit = kWmma12Traits;
#endif
static_assert(kMatrixUnit.wave_size == kWarpSize);
constexpr int kLargestTile = kMatrixUnit.largest_tile;
constexpr int kOperandCopies = kMatrixUnit.operand_copies;

constexpr int kSharedBytes = 64 * 1024;  // of LDS that a workgroup may have, on all targets

/// What a lane holds of A or B. T: f16, bf16, float.
template <class T, int kTile>
struct Operand {
  static_assert(kHasMatrixInstructions<T> && (kTile == 16 || kTile == kLargestTile));
  static constexpr int kElements = kTile * kOperandK * kOperandCopies / kWarpSize;
  static constexpr int kWords = kElements * int{sizeof(T)} / 4;

  Words<kWords> words;
};

/// What a lane holds of C.
template <int kTile>
using Accumulator = Floats<kTile * kTile / kWarpSize>;

/// The row of A, or the column of B and C, that this lane has.
template <int kTile>
TESSERA_DEVICE int operand_row() {
  return thread_x() % kTile;
}

template <int kTile>
TESSERA_DEVICE int lane_group() {
  return thread_x() % kWarpSize / kTile;
}

/// How many rows of C this lane's element i is below its element 0.
template <int kTile>
TESSERA_DEVICE constexpr int accumulator_step(int i) {
#if defined(__GFX11__)
  return 2 * i;
#elif defined(__GFX12__)
  return i;
#else
  return 8 * (i / 4) + i % 4;
#endif
}

/// Row of C of this lane's element i.
template <int kTile>
TESSERA_DEVICE int accumulator_row(int i) {
#if defined(__GFX11__)
  constexpr int kRowsOfGroup = 1;
#elif defined(__GFX12__)
  constexpr int kRowsOfGroup = 8;
#else
  constexpr int kRowsOfGroup = 4;
#endif
  return lane_group<kTile>() * kRowsOfGroup + accumulator_step<kTile>(i);
}

/// Where element k of 16 stands among operands that lie in memory in the order in which lanes hold the
/// elements of C: group 0's, then group 1's, …. Four elements at a multiple of 4 stay together.
template <int kTile>
TESSERA_DEVICE constexpr int position_of_k(int k) {
#if TESSERA_MFMA
  if (kTile == 32) return k / 4 % 2 * 8 + k / 8 * 4 + k % 4;
#endif
  return k;
}

/// First of the 16 positions that this lane's elements of an operand are taken from, side by side.
template <class T, int kTile>
TESSERA_DEVICE int operand_position() {
  return kOperandCopies > 1 ? 0 : lane_group<kTile>() * Operand<T, kTile>::kElements;
}

#if TESSERA_MFMA
/// c + a b, of one element of both operands.
template <int kTile>
TESSERA_DEVICE Accumulator<kTile> multiply_add_f32(float a, float b, Accumulator<kTile> c) {
  if constexpr (kTile == 32) return __builtin_amdgcn_mfma_f32_32x32x2f32(a, b, c, 0, 0, 0);
  if constexpr (kTile == 16) return __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0);
}
#endif

/// c + a b.
template <class T, int kTile>
TESSERA_DEVICE Accumulator<kTile> multiply_add(const Operand<T, kTile>& a, const Operand<T, kTile>& b,
                                               Accumulator<kTile> c) {
  constexpr bool kIsHalf = __is_same(T, f16);
#if TESSERA_MFMA
  if constexpr (sizeof(T) == 4) {
    TESSERA_UNROLL
    for (int i = 0; i < Operand<T, kTile>::kElements; ++i) {
      // float_of_bits copies the word: __builtin_bit_cast of a vector's element takes its first one (clang
      // 19).
      c = multiply_add_f32<kTile>(float_of_bits(a.words[i]), float_of_bits(b.words[i]), c);
    }
  } else if constexpr (kTile == 32) {
    const Word2 x[2] = {a.words.lo, a.words.hi};
    const Word2 y[2] = {b.words.lo, b.words.hi};
    TESSERA_UNROLL
    for (int i = 0; i < 2; ++i) {
      if constexpr (kIsHalf) {
        c = __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(Half4, x[i]),
                                                 __builtin_bit_cast(Half4, y[i]), c, 0, 0, 0);
      } else {
        c = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(Short4, x[i]),
                                                     __builtin_bit_cast(Short4, y[i]), c, 0, 0, 0);
      }
    }
  } else if constexpr (kIsHalf) {
    c = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Half4, a.words),
                                              __builtin_bit_cast(Half4, b.words), c, 0, 0, 0);
  } else {
    c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Short4, a.words),
                                                  __builtin_bit_cast(Short4, b.words), c, 0, 0, 0);
  }
#elif defined(__GFX12__)
  if constexpr (kIsHalf) {
    c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(Half8, a.words),
                                                         __builtin_bit_cast(Half8, b.words), c);
  } else {
    c = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(Short8, a.words),
                                                          __builtin_bit_cast(Short8, b.words), c);
  }
#else
  if constexpr (kIsHalf) {
    c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(Half16, a.words),
                                                   __builtin_bit_cast(Half16, b.words), c);
  } else {
    c = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(Short16, a.words),
                                                    __builtin_bit_cast(Short16, b.words), c);
  }
#endif
  return c;
}

/// Two numbers as f16 or bf16 in one word, a in the low half, to nearest. A bf16 that is halfway between two
/// becomes the larger one; a NaN whose upper bits are all ones is not kept.
template <class T>
TESSERA_DEVICE unsigned pack_pair(float a, float b) {
  if constexpr (__is_same(T, f16)) {
    return __builtin_bit_cast(unsigned, Half2{static_cast<_Float16>(a), static_cast<_Float16>(b)});
  } else {
    return __builtin_amdgcn_perm(bits_of_float(b) + 0x8000u, bits_of_float(a) + 0x8000u, 0x07060302u);
  }
}

#if defined(__GFX11__)
/// What the lane 16 further or before has.
TESSERA_DEVICE unsigned of_other_group(unsigned x) {
  return __builtin_amdgcn_permlanex16(x, x, 0x76543210u, 0xfedcba98u, false, false);
}
#endif

/// Rows [16 n, 16 n + 16) of C, rounded to T, as an operand whose k are these rows.
template <class T, int kTile>
TESSERA_DEVICE Operand<T, kTile> operand_of(const Accumulator<kTile>& c, int n = 0) {
  Operand<T, kTile> b;
#if defined(__GFX11__)
  TESSERA_UNROLL
  for (int j = 0; j < 4; ++j) {
    // Rows 4j + g and 4j + 2 + g; the other group has the odd, or even, ones.
    const unsigned own = pack_pair<T>(c[2 * j], c[2 * j + 1]);
    const unsigned other = of_other_group(own);
    const bool is_odd = lane_group<kTile>() != 0;
    const unsigned even_rows = is_odd ? other : own;
    const unsigned odd_rows = is_odd ? own : other;
    b.words[2 * j] = __builtin_amdgcn_perm(odd_rows, even_rows, 0x05040100u);
    b.words[2 * j + 1] = __builtin_amdgcn_perm(odd_rows, even_rows, 0x07060302u);
  }
#else
  constexpr int kElements = Operand<T, kTile>::kElements;
  TESSERA_UNROLL
  for (int j = 0; j < Operand<T, kTile>::kWords; ++j) {
    if constexpr (sizeof(T) == 4) {
      b.words[j] = bits_of_float(c[n * kElements + j]);
    } else {
      b.words[j] = pack_pair<T>(c[n * kElements + 2 * j], c[n * kElements + 2 * j + 1]);
    }
  }
#endif
  return b;
}

/// Element i of words full of T.
template <class T, int kCount>
TESSERA_DEVICE T element_of(Words<kCount> words, int i) {
  if constexpr (sizeof(T) == 4) {
    return float_of_bits(words[i]);
  } else {
    return T{static_cast<unsigned short>(words[i / 2] >> i % 2 * 16)};
  }
}

/// Whether T's products lose what attention's bounds do not allow: gfx90a's of f16 take numbers below 2^-14
/// as 0 (AMD: "MI200 MFMA behavior specifics"). They are multiplied as fp32 there, at a quarter of the rate.
template <class T>
constexpr bool kWidens = false;
#if defined(__gfx90a__)
template <>
constexpr bool kWidens<f16> = true;
#endif

template <class T>
struct WeightOf {
  using Type = T;
};
template <class T>
requires kWidens<T>
struct WeightOf<T> {
  using Type = float;
};
/// What attention's weights are rounded to for their product with values of type T.
template <class T>
using Weight = typename WeightOf<T>::Type;

/// c + a b, numbers of all sizes included.
template <class A, class B, int kTile>
TESSERA_DEVICE Accumulator<kTile> multiply_add_all(const Operand<A, kTile>& a, const Operand<B, kTile>& b,
                                                   Accumulator<kTile> c) {
#if TESSERA_MFMA
  if constexpr (kWidens<A>) {
    TESSERA_UNROLL
    for (int i = 0; i < Operand<A, kTile>::kElements; ++i)
      c = multiply_add_f32<kTile>(to_float(element_of<A>(a.words, i)), to_float(element_of<B>(b.words, i)),
                                  c);
    return c;
  }
#endif
  if constexpr (!kWidens<A>) return multiply_add<A, kTile>(a, b, c);
}

/// 16 bytes at a multiple of 16.
TESSERA_DEVICE Word4 load_16(const void* from) { return *static_cast<const Word4*>(from); }

/// Rows of 16-byte slots in LDS. Eight lanes that take the same slot of consecutive rows, or different slots
/// of a row, fall into different banks: slots are exchanged by the row's number where their count is a power
/// of two or a multiple of 8, and rows are an odd number of slots apart elsewhere.
template <int kSlots>
struct SlotRows {
  static constexpr int kPowerOfTwo = kSlots & -kSlots;
  static constexpr bool kExchanges = exchanges_slots(kSlots);
  static constexpr int kMask = !kExchanges ? 0 : kPowerOfTwo >= 8 ? 7 : kPowerOfTwo - 1;
  static constexpr int kRowsOfLine = kExchanges && kSlots < 8 ? 8 / kSlots : 1;  // that fill all banks once
  static constexpr int kStride = slot_stride(kSlots);

  /// The slot's number. `scatter`: exchanges the slots of rows further, where lanes write distant ones.
  static TESSERA_DEVICE int at(int row, int slot, int scatter = 0) {
    return row * kStride + (slot ^ ((row / kRowsOfLine ^ scatter) & kMask));
  }

  /// at() in bytes of the slot `rows` rows and `slots` slots further than the one at `offset`, whose own
  /// numbers of row, slot and scatter have no bit in common with these: one exclusive or, and an
  /// instruction's constant.
  static TESSERA_DEVICE unsigned further(unsigned offset, int rows, int slots, int scatter = 0) {
    const auto exchanged = static_cast<unsigned>((slots ^ rows / kRowsOfLine ^ scatter) & kMask);
    return (offset ^ exchanged * unsigned{kSlotBytes}) +
           static_cast<unsigned>(rows * kStride + (slots & ~kMask)) * unsigned{kSlotBytes};
  }
};

/// What is `offset` bytes after `slots`.
template <class Word>
TESSERA_DEVICE Word& word_at(Word4* slots, unsigned offset) {
  return *reinterpret_cast<Word*>(reinterpret_cast<char*>(slots) + offset);
}
template <class Word>
TESSERA_DEVICE Word word_at(const Word4* slots, unsigned offset) {
  return *reinterpret_cast<const Word*>(reinterpret_cast<const char*>(slots) + offset);
}

/// Where in LDS this lane's part of an operand begins, in bytes: of a row's elements from a multiple of 16
/// on.
template <class T, int kTile, class Rows>
TESSERA_DEVICE unsigned operand_offset(int row, int element = 0, int scatter = 0) {
  const int begin = (element + operand_position<T, kTile>()) * int{sizeof(T)};
  return static_cast<unsigned>(Rows::at(row, begin / 16, scatter) * 16 + begin % 16);
}

/// This lane's elements of the operand that is `rows` rows and `elements` elements further than the one at
/// `offset`, as Rows::further() takes them.
template <class T, int kTile, class Rows>
TESSERA_DEVICE Operand<T, kTile> load_operand(const Word4* slots, unsigned offset, int rows = 0,
                                              int elements = 0, int scatter = 0) {
  using O = Operand<T, kTile>;
  const int first_slot = elements * int{sizeof(T)} / 16;
  O o;
  if constexpr (O::kWords == 8) {
    o.words.lo = word_at<Word4>(slots, Rows::further(offset, rows, first_slot, scatter));
    o.words.hi = word_at<Word4>(slots, Rows::further(offset, rows, first_slot + 1, scatter));
  } else {
    o.words = word_at<Words<O::kWords>>(slots, Rows::further(offset, rows, first_slot, scatter));
  }
  return o;
}

/// The larger, or the sum, of what the groups of a column hold.
template <int kTile>
TESSERA_DEVICE float max_over_groups(float x) {
  TESSERA_UNROLL
  for (int mask = kTile; mask < kWarpSize; mask *= 2) x = __builtin_fmaxf(x, shuffle_xor(x, mask));
  return x;
}
template <int kTile>
TESSERA_DEVICE float sum_over_groups(float x) {
  TESSERA_UNROLL
  for (int mask = kTile; mask < kWarpSize; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}

/// 2^x, 0 for an x below -126.
TESSERA_DEVICE float exp2_of(float x) { return __builtin_amdgcn_exp2f(x); }

}  // namespace tessera::kernels
