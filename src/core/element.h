#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "core/block_format.h"
#include "tessera/dtype.h"
#include "tessera/error.h"

namespace tessera {

/// `value` as a T with a single rounding. Going through float would round 16-bit results twice, so the float
/// in between is rounded to odd: its last bit remembers that something was cut off and the second rounding
/// decides as it would on the double.  Boldo and Melquiond, "Emulation of FMA and Correctly Rounded Sums"
/// (2008).
template <class T>
T round_to(double value) noexcept {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
    return static_cast<T>(value);
  } else {
    const float nearest = static_cast<float>(value);
    if (!std::isfinite(nearest) || static_cast<double>(nearest) == value) return T(nearest);
    std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
    if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
    return T(std::bit_cast<float>(bits | 1u));
  }
}

/// Calls f.operator()<T>() with the C++ type of a floating-point `dtype`.
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64:
      return f.template operator()<double>();
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return dispatch_activation(dtype, f);
    default:
      throw Error(ErrorCode::kUnsupported, "dtype '" + std::string(dtype_name(dtype)) +
                                               "' has no arithmetic here; expected f64, f32, f16 or bf16");
  }
}

/// dispatch_float with the types that numbers are stored in but not computed with, which keys and values may
/// be of.
template <class F>
decltype(auto) dispatch_stored(DType dtype, F&& f) {
  if (dtype == DType::kF8E4M3) return f.template operator()<Float8E4M3>();
  return dispatch_float(dtype, f);
}

/// Element `index` of a floating-point array.
inline double load_element(const void* data, DType dtype, std::int64_t index) {
  return dispatch_stored(dtype,
                         [&]<class T>() { return static_cast<double>(static_cast<const T*>(data)[index]); });
}

/// Writes element `index` of a floating-point array, rounded once.
inline void store_element(void* data, DType dtype, std::int64_t index, double value) {
  dispatch_stored(dtype, [&]<class T>() { static_cast<T*>(data)[index] = round_to<T>(value); });
}

}  // namespace tessera
