#pragma once

// What the formats' headers need of the compiler that sees them: the host's, or a GPU's, whose kernels define
// TESSERA_DEVICE (common/platform.cuh) first. Nothing is included, since run-time compilers have no headers.

#if defined(TESSERA_DEVICE)
#define TESSERA_FORMAT TESSERA_DEVICE
#else
#define TESSERA_FORMAT constexpr
#endif

// TESSERA_FORMAT_TABLE(name, count, numbers…): name(i) is number i of them, below 2^16. On a GPU the numbers
// belong to the function, so that modules that do not call it do not have them.
#if defined(TESSERA_DEVICE)
#define TESSERA_FORMAT_TABLE(name, count, ...)                       \
  TESSERA_FORMAT unsigned name(unsigned i) {                         \
    static constexpr unsigned short kNumbers[count] = {__VA_ARGS__}; \
    return kNumbers[i];                                              \
  }
#else
#define TESSERA_FORMAT_TABLE(name, count, ...)                           \
  inline constexpr unsigned short name##_numbers[count] = {__VA_ARGS__}; \
  constexpr unsigned name(unsigned i) { return name##_numbers[i]; }
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

/// The number of an e4m3 byte. A half whose exponent and mantissa begin with its bits is 2^-8 of it,
/// subnormal ones too.
TESSERA_FORMAT float float_of_e4m3(unsigned char bits) {
  const unsigned magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return float_of_word(0x7fc00000u);
  return float_of_half(static_cast<unsigned short>(((bits & 0x80u) << 8) | (magnitude << 7))) * 256.0f;
}

/// The e4m3 byte of a number, rounded to nearest even; finite numbers beyond 448 become 448, infinities and
/// NaN become NaN.
TESSERA_FORMAT unsigned char e4m3_of_float(float value) {
  const unsigned u = __builtin_bit_cast(unsigned, value);
  const unsigned sign = (u >> 24) & 0x80u;
  const unsigned magnitude = u & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return static_cast<unsigned char>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<unsigned char>(sign | 0x7eu);
  if (magnitude < 0x3c800000u) {
    // 2^14 leaves steps of 2^-9.
    const float shifted = float_of_word(magnitude) + 16384.0f;
    return static_cast<unsigned char>(sign | (__builtin_bit_cast(unsigned, shifted) - 0x46800000u));
  }
  return static_cast<unsigned char>(sign |
                                    ((magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20));
}

}  // namespace tessera::formats
