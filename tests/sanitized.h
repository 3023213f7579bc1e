#pragma once

// Sanitizers make everything up to ten times slower, and see what code does, not its numbers: the same code
// with other sizes shows them nothing new. Tests of many sizes take a part of them there, another each time.

#include <cstddef>
#include <vector>

namespace tessera {

#if defined(TESSERA_SANITIZE_ADDRESS) || defined(TESSERA_SANITIZE_THREAD)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// All of `cases`; with a sanitizer one in `every`, from call to call beginning with the next one.
template <class T>
std::vector<T> some_if_sanitized(const std::vector<T>& cases, std::size_t every = 4) {
  static std::size_t calls = 0;
  if (!kSanitized) return cases;
  std::vector<T> some;
  for (std::size_t i = calls++ % every; i < cases.size(); i += every) some.push_back(cases[i]);
  return some;
}

/// Counts cases of which a sanitizer sees one in `every`.
class SomeIfSanitized {
 public:
  explicit SomeIfSanitized(std::size_t every) : every_(every) {}

  /// Whether a sanitizer leaves out the next case.
  bool leaves_out_next() { return kSanitized && calls_++ % every_ != 0; }

 private:
  std::size_t every_, calls_ = 0;
};

}  // namespace tessera
