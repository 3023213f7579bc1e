#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

/// Element types. kQ4_0 to kIQ3_S are GGUF's formats of blocks, for matrices of weights: kQ8_0, say, has 32
/// int8 values and one fp16 scale in 34 bytes. Of the fp8 types attention takes kF8E4M3 for keys and values;
/// kF8E5M2 is named so that files can speak of it.
enum class DType : std::uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kTQ1_0,
  kTQ2_0,
  kIQ1_S,
  kIQ1_M,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kI64,
  kI32,
  kU8,
  kBool
};

/// "f32", "bf16", "q8_0", …
std::string_view dtype_name(DType dtype) noexcept;

/// The inverse of dtype_name, also taking "float32", "fp32", "half", "bfloat16", …
/// Throws Error{kInvalidArgument} that lists the names.
DType parse_dtype(std::string_view name);

/// Bytes that `elements` consecutive elements take; for block formats `elements` must fill whole blocks.
std::size_t dtype_bytes(DType dtype, std::size_t elements);

/// Unit round-off: half the distance between 1 and the next number. 0 for integers and block formats.
double unit_roundoff(DType dtype) noexcept;

/// A bfloat16 number as stored: the upper half of a float.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  /// Rounds to nearest, ties to even; NaN stays NaN.
  explicit BFloat16(float value) noexcept {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<std::uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const noexcept { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
  explicit operator double() const noexcept { return static_cast<double>(static_cast<float>(*this)); }
};

/// An IEEE half-precision number as stored.
struct Half {
  std::uint16_t bits = 0;

  Half() = default;
  /// Rounds to nearest, ties to even; overflows to infinity; NaN stays NaN.
  explicit Half(float value) noexcept;
  explicit operator float() const noexcept;
  explicit operator double() const noexcept { return static_cast<double>(static_cast<float>(*this)); }
};

/// An 8-bit number as stored: 4 bits of exponent, 3 of mantissa, no infinity, the largest 448; 2^-9 is the
/// smallest above 0. Micikevicius et al., "FP8 Formats for Deep Learning" (2022).
struct Float8E4M3 {
  std::uint8_t bits = 0;

  Float8E4M3() = default;
  /// Rounds to nearest, ties to even; finite numbers beyond 448 become 448; infinities and NaN become NaN.
  explicit Float8E4M3(float value) noexcept;
  explicit operator float() const noexcept;
  explicit operator double() const noexcept { return static_cast<double>(static_cast<float>(*this)); }
};

inline Half::Half(float value) noexcept {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    bits = static_cast<std::uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    bits = static_cast<std::uint16_t>(sign | 0x7c00u);
  } else if (magnitude <
             0x38800000u) {  // below 2^-14: adding 0.5 leaves the subnormal's bits at the bottom, rounded
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  } else {
    const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
    bits = static_cast<std::uint16_t>(sign | (rounded >> 13));
  }
}

inline Half::operator float() const noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

inline Float8E4M3::Float8E4M3(float value) noexcept {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (u >> 24) & 0x80u;
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) {
    bits = static_cast<std::uint8_t>(sign | 0x7fu);
  } else if (magnitude >= 0x43e00000u) {
    bits = static_cast<std::uint8_t>(sign | 0x7eu);
  } else if (magnitude < 0x3c800000u) {  // below 2^-6: as in Half, 2^14 leaves steps of 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    bits = static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000u));
  } else {
    const std::uint32_t rounded = magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u);
    bits = static_cast<std::uint8_t>(sign | (rounded >> 20));
  }
}

inline Float8E4M3::operator float() const noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
  const std::uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude >= 8) return std::bit_cast<float>(sign | ((magnitude << 20) + 0x3c000000u));
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9f));
}

}  // namespace tessera
