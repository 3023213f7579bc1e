#pragma once

// What the formats' headers need of the compiler that sees them: the host's, or a GPU's, whose kernels define
// TESSERA_DEVICE (common/platform.cuh) first. Nothing is included, since run-time compilers have no headers.

#if defined(TESSERA_DEVICE)
#define TESSERA_FORMAT TESSERA_DEVICE
#else
#define TESSERA_FORMAT constexpr
#endif

namespace tessera::formats {

/// An IEEE single-precision number of its bits.
TESSERA_FORMAT float float_of_word(unsigned bits) { return __builtin_bit_cast(float, bits); }

/// An IEEE half-precision number of its bits.
TESSERA_FORMAT float float_of_half(unsigned short bits) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#elif defined(__HIP__)
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
#else
  const unsigned sign = static_cast<unsigned>(bits & 0x8000u) << 16;
  const unsigned magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return __builtin_bit_cast(float, sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x400u) return __builtin_bit_cast(float, sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(unsigned, subnormal));
#endif
}

/// The same of two bytes at any address.
TESSERA_FORMAT float load_half(const unsigned char* bytes) {
  return float_of_half(static_cast<unsigned short>(bytes[0] | (bytes[1] << 8)));
}

}  // namespace tessera::formats
