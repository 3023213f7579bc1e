#pragma once

#include "common/platform.cuh"
#include "core/formats/numbers.h"

// 16-bit floats as stored, without the toolkit's headers (which the run-time compiler does not have).

namespace tessera::kernels {

struct alignas(2) bf16 {
  unsigned short bits;
};
struct alignas(2) f16 {
  unsigned short bits;
};

/// 8 bits with 4 of exponent, of keys and values.
struct f8e4m3 {
  unsigned char bits;
};

TESSERA_DEVICE float to_float(float x) { return x; }

TESSERA_DEVICE float to_float(bf16 x) { return float_of_bits(static_cast<unsigned>(x.bits) << 16); }

TESSERA_DEVICE float to_float(f16 x) { return formats::float_of_half(x.bits); }

TESSERA_DEVICE float to_float(f8e4m3 x) { return formats::float_of_e4m3(x.bits); }

#if defined(__CUDA_ARCH__)
template <class T>
TESSERA_DEVICE T from_float(float x);
template <>
TESSERA_DEVICE float from_float<float>(float x) {
  return x;
}
template <>
TESSERA_DEVICE bf16 from_float<bf16>(float x) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
template <>
TESSERA_DEVICE f16 from_float<f16>(float x) {
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
#else
// Without PTX.
template <class T>
TESSERA_DEVICE T from_float(float x);
template <>
TESSERA_DEVICE float from_float<float>(float x) {
  return x;
}
template <>
TESSERA_DEVICE bf16 from_float<bf16>(float x) {
  const unsigned u = bits_of_float(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<unsigned short>((u >> 16) | 0x40u)};
  return {static_cast<unsigned short>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
#if defined(__HIP__)
template <>
TESSERA_DEVICE f16 from_float<f16>(float x) {
  return {__builtin_bit_cast(unsigned short, static_cast<_Float16>(x))};
}
#else
template <>
TESSERA_DEVICE f16 from_float<f16>(float x) {
  const unsigned u = bits_of_float(x);
  const unsigned sign = (u >> 16) & 0x8000u;
  const unsigned magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<unsigned short>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<unsigned short>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    const unsigned shifted = bits_of_float(float_of_bits(magnitude) + 0.5f);
    return {static_cast<unsigned short>(sign | (shifted - 0x3f000000u))};
  }
  return {static_cast<unsigned short>(sign |
                                      ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13))};
}
#endif
#endif

/// 2^exponent for -126 <= exponent <= 127.
TESSERA_DEVICE float power_of_two(int exponent) {
  return float_of_bits(static_cast<unsigned>(exponent + 127) << 23);
}

/// Two numbers that an instruction of some GPUs computes with together. fma_pair: a * x + sum, rounded once.
#if defined(__HIP__)
using FloatPair = float __attribute__((ext_vector_type(2)));
TESSERA_DEVICE FloatPair make_pair_of(float a, float b) { return {a, b}; }
TESSERA_DEVICE FloatPair add_pair(FloatPair a, FloatPair b) { return a + b; }
TESSERA_DEVICE float of_pair(FloatPair pair, int i) { return pair[i]; }
TESSERA_DEVICE FloatPair fma_pair(float a, FloatPair x, FloatPair sum) {
#if __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(FloatPair{a, a}, x, sum);
#else
  return {fmaf(a, x[0], sum[0]), fmaf(a, x[1], sum[1])};
#endif
}
#else
struct FloatPair {
  float element[2];
};
TESSERA_DEVICE FloatPair make_pair_of(float a, float b) { return {{a, b}}; }
TESSERA_DEVICE FloatPair add_pair(FloatPair a, FloatPair b) {
  return {{a.element[0] + b.element[0], a.element[1] + b.element[1]}};
}
TESSERA_DEVICE float of_pair(FloatPair pair, int i) { return pair.element[i]; }
TESSERA_DEVICE FloatPair fma_pair(float a, FloatPair x, FloatPair sum) {
  return {{fmaf(a, x.element[0], sum.element[0]), fmaf(a, x.element[1], sum.element[1])}};
}
#endif

/// half * x + sum, of the half in a word's lower or upper bits, rounded once.
#if defined(__HIP__)
TESSERA_DEVICE float fma_low_half(unsigned halves, float x, float sum) {
  float result;
  asm("v_fma_mix_f32 %0, %1, %2, %3 op_sel_hi:[1,0,0]" : "=v"(result) : "v"(halves), "v"(x), "v"(sum));
  return result;
}
TESSERA_DEVICE float fma_high_half(unsigned halves, float x, float sum) {
  float result;
  asm("v_fma_mix_f32 %0, %1, %2, %3 op_sel:[1,0,0] op_sel_hi:[1,0,0]"
      : "=v"(result)
      : "v"(halves), "v"(x), "v"(sum));
  return result;
}
#else
TESSERA_DEVICE float fma_low_half(unsigned halves, float x, float sum) {
  return fmaf(formats::float_of_half(static_cast<unsigned short>(halves & 0xffffu)), x, sum);
}
TESSERA_DEVICE float fma_high_half(unsigned halves, float x, float sum) {
  return fmaf(formats::float_of_half(static_cast<unsigned short>(halves >> 16)), x, sum);
}
#endif

/// The sums of two pairs of halves.
TESSERA_DEVICE unsigned add_halves(unsigned a, unsigned b) {
#if defined(__CUDA_ARCH__)
  unsigned sum;
  asm("add.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
#elif defined(__HIP__)
  using Halves = _Float16 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(unsigned, __builtin_bit_cast(Halves, a) + __builtin_bit_cast(Halves, b));
#else
  const auto sum_of = [](unsigned x, unsigned y) {
    return from_float<f16>(to_float(f16{static_cast<unsigned short>(x)}) +
                           to_float(f16{static_cast<unsigned short>(y)}))
        .bits;
  };
  return sum_of(a & 0xffffu, b & 0xffffu) | static_cast<unsigned>(sum_of(a >> 16, b >> 16)) << 16;
#endif
}

template <>
TESSERA_DEVICE f8e4m3 from_float<f8e4m3>(float x) {
  return {formats::e4m3_of_float(x)};
}

/// N elements that load and store as one access of their total size.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T element[N];
};

/// Words that are loaded and stored as one. Of structs, clang leaves arrays that are only copied in memory,
/// and loads their members one by one.
#if defined(__HIP__)
template <int N>
struct WordsOfCompiler {
  using Type = unsigned __attribute__((ext_vector_type(N)));
};
template <int N>
using WordsAtOnce = typename WordsOfCompiler<N>::Type;
template <class Words>
TESSERA_DEVICE unsigned word_of(const Words& words, int i) {
  return words[i];
}
#else
template <int N>
using WordsAtOnce = Vector<unsigned, N>;
template <class Words>
TESSERA_DEVICE unsigned word_of(const Words& words, int i) {
  return words.element[i];
}
#endif

/// 16 bytes on their way.
using MovedWords = WordsAtOnce<4>;

}  // namespace tessera::kernels
