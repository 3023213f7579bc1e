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

template <>
TESSERA_DEVICE f8e4m3 from_float<f8e4m3>(float x) {
  return {formats::e4m3_of_float(x)};
}

/// N elements that load and store as one access of their total size.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T element[N];
};

/// 16 bytes on their way. Clang leaves arrays of structs that are only copied in memory.
#if defined(__HIP__)
using MovedWords = unsigned __attribute__((ext_vector_type(4)));
#else
using MovedWords = Vector<unsigned, 4>;
#endif

}  // namespace tessera::kernels
