#pragma once

#include <type_traits>

namespace tessera::testing {

/// The same to a caller: identical, or integers and enumerations of one size, or structs of one size and
/// alignment, or pointers to such; where ours points to void theirs may point to a struct that is never
/// looked into.
template <class Ours, class Theirs>
constexpr bool same_parameter() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_void_v<Ours>) {
    return std::is_class_v<Theirs>;
  } else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    return same_parameter<std::remove_cv_t<std::remove_pointer_t<Ours>>,
                          std::remove_cv_t<std::remove_pointer_t<Theirs>>>();
  } else if constexpr (std::is_integral_v<Ours> && (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>)) {
    return sizeof(Ours) == sizeof(Theirs);
  } else {
    return false;
  }
}

template <class Ours, class Theirs>
struct SameFunction : std::false_type {};

template <class R1, class... A1, class R2, class... A2>
struct SameFunction<R1(A1...), R2(A2...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A1) != sizeof...(A2)) {
      return false;
    } else {
      return sizeof(R1) == sizeof(R2) && (same_parameter<A1, A2>() && ...);
    }
  }();
};

}  // namespace tessera::testing
