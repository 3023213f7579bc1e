#pragma once

#include "common/rows.cuh"
#include "sm80/gemm_q8_traits.h"
#include "sm80/ptx.cuh"

// Q8_0 weights on the 16-bit tensor cores, without rounding. A block is an fp16 scale and 32 int8 values: the
// values are exact in bf16 and in fp16, so their products with 16-bit x are exact in the tensor cores' fp32;
// a block's sum is then multiplied with its scale. fp32 x is cut into two or three 16-bit numbers.
//
// bf16 values are those of the block times 2^-12, so that no sum of a block overflows where the product with
// the scale doesn't.
//
// Rows of w come in pieces of 256 columns, 272 bytes. Lane 4 g + t takes rows g and g + 8 of a tile of w, row
// g of a tile of x, and of each block columns 4 t to 4 t + 3 and 16 + 4 t to 16 + 4 t + 3. A warp's loads of
// a word of each lane then fall into different banks.

namespace tessera::kernels {

constexpr int kQ8PieceVectors = kQ8PieceBytes / 16;
constexpr int kQ8PairBytes = 2 * Q8_0::kBytes;  // of two blocks

/// Bytes `kFirst` and `kSecond` of `word`, each below a byte of `above`.
template <int kFirst, int kSecond>
TESSERA_DEVICE unsigned spread_bytes(unsigned word, unsigned above) {
  return __byte_perm(word, above, kFirst | 4 << 4 | kSecond << 8 | 5 << 12);
}

/// int8 values as floats of 16 bits; sums of products are to be multiplied with kFactor.
template <class T>
struct Int8As;

/// 1024 + (q + 128), whose last place is 1, less 1152.
template <>
struct Int8As<f16> {
  static constexpr float kFactor = 1.0f;

  template <int kFirst, int kSecond>
  TESSERA_DEVICE static unsigned pair(unsigned word) {
    unsigned r;
    asm("add.rn.f16x2 %0, %1, %2;"
        : "=r"(r)
        : "r"(spread_bytes<kFirst, kSecond>(word ^ 0x80808080u, 0x64646464u)), "r"(0xe480e480u));
    return r;
  }
};

/// In units of 2^-12: 128 + the low seven bits, whose last place is 1, less 128, or less 256 if q < 0.
template <>
struct Int8As<bf16> {
  static constexpr float kFactor = 4096.0f;

  template <int kFirst, int kSecond>
  TESSERA_DEVICE static unsigned pair(unsigned word) {
    const unsigned spread = spread_bytes<kFirst, kSecond>(word, 0x3d3d3d3du);
    unsigned r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(r)
        : "r"(spread & 0xff80ff80u), "r"(0xbf80bf80u), "r"(spread & 0xff7fff7fu));
    return r;
  }
};

TESSERA_DEVICE float scale_of_bits(unsigned bits) { return to_float(f16{static_cast<unsigned short>(bits)}); }

/// A lane's part of a tile's block.
struct Q8Fragment {
  unsigned step[2][4];  // operand a of the products of columns 4 t and on and of 16 + 4 t and on
  float scale[2];       // of rows g and g + 8

  /// One of two blocks that stand side by side, `blocks` being those of row g and kRowBytes the bytes between
  /// rows.
  template <class T, bool kIsSecond, int kRowBytes>
  TESSERA_DEVICE void load(const unsigned char* blocks, int t) {
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const unsigned char* row = blocks + half * 8 * kRowBytes;
      const unsigned* words = reinterpret_cast<const unsigned*>(row) + t;
      TESSERA_UNROLL
      for (int s = 0; s < 2; ++s) {
        if constexpr (kIsSecond) {
          step[s][half] = Int8As<T>::template pair<0, 1>(words[9 + 4 * s]);
          step[s][half + 2] = Int8As<T>::template pair<2, 3>(words[9 + 4 * s]);
        } else {  // values from the third byte on
          step[s][half] = Int8As<T>::template pair<2, 3>(words[4 * s]);
          step[s][half + 2] = Int8As<T>::template pair<0, 1>(words[4 * s + 1]);
        }
      }
      scale[half] = scale_of_bits(reinterpret_cast<const unsigned short*>(row)[kIsSecond ? 17 : 0]);
    }
  }
};

/// A lane's columns of a block of a row of x, as stored.
template <class X>
struct XColumns {
  static constexpr int kWords = sizeof(X);  // of 4 columns
  Vector<unsigned, kWords> half[2];

  /// From the block's first column on.
  TESSERA_DEVICE void load(const X* block, int t) {
    TESSERA_UNROLL
    for (int s = 0; s < 2; ++s) half[s] = reinterpret_cast<const Vector<unsigned, kWords>*>(block)[s * 4 + t];
  }
};

/// A lane's part of a block of a tile of x: pairs of columns as operand b takes them; x is the sum of the
/// parts, the first being the largest.
template <int kParts>
struct XFragment {
  unsigned pair[kParts][4];
};

template <class X>
TESSERA_DEVICE void set_fragment(XFragment<1>& fragment, const XColumns<X>& x) {
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) fragment.pair[0][i] = x.half[i / 2].element[i % 2];
}

/// fp32 as three bf16 numbers of 8 bits each, whose sum it is.
TESSERA_DEVICE void set_fragment(XFragment<3>& fragment, const XColumns<float>& x) {
  constexpr unsigned kHighHalf = 0xffff0000u;
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) {
    unsigned first = x.half[i / 2].element[i % 2 * 2];
    unsigned second = x.half[i / 2].element[i % 2 * 2 + 1];
    TESSERA_UNROLL
    for (int part = 0; part < 3; ++part) {
      fragment.pair[part][i] = __byte_perm(first, second, 0x7632);
      first = bits_of_float(float_of_bits(first) - float_of_bits(first & kHighHalf));
      second = bits_of_float(float_of_bits(second) - float_of_bits(second & kHighHalf));
    }
  }
}

/// c[i] (16 x 8) = the values of block w_of(i) times x_of(i), without the scales, each instruction for all i
/// before the next, which waits for it.
template <class T, int kParts, int kCount, class WOf, class XOf>
TESSERA_DEVICE void multiply_blocks(float (&c)[kCount][4], WOf w_of, XOf x_of) {
  TESSERA_UNROLL
  for (int part = kParts - 1; part >= 0; --part) {  // the smallest first
    TESSERA_UNROLL
    for (int step = 0; step < 2; ++step) {
      TESSERA_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const Q8Fragment& w = w_of(i);
        const XFragment<kParts>& x = x_of(i);
        if (part == kParts - 1 && step == 0) {
          mma_m16n8k16_first<T>(c[i], w.step[step], x.pair[part][0], x.pair[part][1]);
        } else {
          mma_m16n8k16<T>(c[i], w.step[step], x.pair[part][2 * step], x.pair[part][2 * step + 1]);
        }
      }
    }
  }
}

/// sum += c, rows times their scales.
TESSERA_DEVICE void add_scaled(float (&sum)[4], const float (&c)[4], const float (&scale)[2]) {
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) sum[i] = fmaf(c[i], scale[i / 2], sum[i]);
}

}  // namespace tessera::kernels
