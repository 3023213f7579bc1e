#pragma once

#include <type_traits>

namespace tessera {

/// a / b for integers a >= 0 and b > 0, rounded up.
template <class T>
constexpr T divide_up(T a, std::type_identity_t<T> b) {
  return (a + b - 1) / b;
}

/// The least multiple of `multiple` that is not below `value`.
template <class T>
constexpr T round_up(T value, std::type_identity_t<T> multiple) {
  return divide_up(value, multiple) * multiple;
}

}  // namespace tessera
