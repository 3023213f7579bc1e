#pragma once

#include "common/score_terms.cuh"
#include "sm80/ptx.cuh"

// Products with keys and values of 8 bits (e4m3), which are widened to the 16 bits of q and the weights in
// registers, exactly. A register that ldmatrix fills has four of them, x0 x1 x2 x3; what is widened at once
// are x0 and x2, or x1 and x3. So the order of q's columns and of o's is another.

namespace tessera::kernels {

/// In widen_e4m3's found_nan.
constexpr unsigned kFoundNan = 0x80808080u;

template <class T>
struct E4M3Widening;
/// Exponent and mantissa of e4m3 begin those of bf16, whose exponent is then 120 too small; subnormal numbers
/// stay right.
template <>
struct E4M3Widening<bf16> {
  static constexpr int kShift = 4;
  static constexpr unsigned kMagnitude = 0x07f007f0u;
  static TESSERA_DEVICE unsigned scaled(unsigned x) {
    unsigned r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(0x7b807b80u), "r"(0x80008000u));
    return r;
  }
};
/// Of f16 8 too small.
template <>
struct E4M3Widening<f16> {
  static constexpr int kShift = 1;
  static constexpr unsigned kMagnitude = 0x3f803f80u;
  static TESSERA_DEVICE unsigned scaled(unsigned x) {
    unsigned r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(0x5c005c00u), "r"(0x80008000u));
    return r;
  }
};

/// even = x0 x2, odd = x1 x3. A NaN becomes a number, and sets some bit of kFoundNan in found_nan.
template <class T>
TESSERA_DEVICE void widen_e4m3(unsigned x, unsigned& even, unsigned& odd, unsigned& found_nan) {
  using W = E4M3Widening<T>;
  constexpr unsigned kSign = 0x80008000u;
  // The addition turns the sign of a byte whose other bits are all set (and maybe of its neighbour).
  found_nan |= (x + 0x01010101u) ^ x;
  odd = W::scaled((x & kSign) | ((x >> W::kShift) & W::kMagnitude));
  const unsigned y = x << 8;
  even = W::scaled((y & kSign) | ((y >> W::kShift) & W::kMagnitude));
}

TESSERA_DEVICE float not_a_number() { return __int_as_float(0x7fc00000); }

/// Puts the columns of q's 16 rows into the order in which multiply_q_narrow_k takes them: of 16, columns 4 t
/// and 4 t + 2 stand at 2 t, columns 4 t + 1 and 4 t + 3 at 8 + 2 t. By all threads of the block.
template <int kColumns, int kStride, class T>
TESSERA_DEVICE void order_for_narrow_k(T* q_smem) {
  constexpr int kGroups = kColumns / 16;
  for (int i = thread_x(); i < 16 * kGroups; i += block_size()) {
    T* group = q_smem + i / kGroups * kStride + i % kGroups * 16;
    T columns[16];
    TESSERA_UNROLL
    for (int c = 0; c < 16; ++c) columns[c] = group[c];
    TESSERA_UNROLL
    for (int c = 0; c < 16; ++c) group[c % 4 % 2 * 8 + c / 4 * 2 + c % 4 / 2] = columns[c];
  }
}

/// scores = q k^T of 16 rows and 16 keys. Strides in bytes.
template <class T, int kHeadDim>
TESSERA_DEVICE void multiply_q_narrow_k(unsigned q, int q_stride, unsigned k, int k_stride,
                                        float (&scores)[2][4], unsigned& found_nan) {
  const int lane = thread_x() % 32;
  const unsigned q_address = q + lane % 16 * q_stride + lane / 16 * 16;
  const unsigned k_address = k + (lane % 8 + lane / 16 * 8) * k_stride + lane / 8 % 2 * 16;
  TESSERA_UNROLL
  for (int n = 0; n < 2; ++n) {
    TESSERA_UNROLL
    for (int e = 0; e < 4; ++e) scores[n][e] = 0.0f;
  }
  TESSERA_UNROLL
  for (int first = 0; first < kHeadDim; first += 32) {
    unsigned key[4];  // keys 0-7 and 8-15, each of 16 columns and the next 16
    ldmatrix_x4(key, k_address + first);
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (first + 16 * half >= kHeadDim) break;
      unsigned rows[4];
      ldmatrix_x4(rows, q_address + (first + 16 * half) * 2);
      TESSERA_UNROLL
      for (int n = 0; n < 2; ++n) {
        unsigned even, odd;
        widen_e4m3<T>(key[2 * n + half], even, odd, found_nan);
        mma_m16n8k16<T>(scores[n], rows, even, odd);
      }
    }
  }
}

/// The column of v that is column 2 t + e of tile n of multiply_p_narrow_v's o.
TESSERA_DEVICE int narrow_v_column(int n, int t, int e) { return n / 2 * 16 + t * 4 + e * 2 + n % 2; }

/// o += p v of 16 keys. v_stride in bytes.
template <class T, int kHeadDim>
TESSERA_DEVICE void multiply_p_narrow_v(const unsigned (&p)[4], unsigned v, int v_stride,
                                        float (&o)[kHeadDim / 8][4], unsigned& found_nan) {
  const int lane = thread_x() % 32;
  const unsigned v_address = v + lane % 16 * v_stride + lane / 16 * 16;
  TESSERA_UNROLL
  for (int first = 0; first < kHeadDim; first += 32) {
    unsigned values[4];  // keys 0-7 and 8-15 of 16 columns, and of the next 16
    ldmatrix_x4_trans(values, v_address + first);
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (first + 16 * half >= kHeadDim) break;
      unsigned even[2], odd[2];
      TESSERA_UNROLL
      for (int i = 0; i < 2; ++i) widen_e4m3<T>(values[2 * half + i], even[i], odd[i], found_nan);
      const int tile = (first + 16 * half) / 8;
      mma_m16n8k16<T>(o[tile], p, even[0], even[1]);
      mma_m16n8k16<T>(o[tile + 1], p, odd[0], odd[1]);
    }
  }
}

}  // namespace tessera::kernels
