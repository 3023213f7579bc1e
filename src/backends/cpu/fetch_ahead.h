#pragma once

#include <cstddef>

#include "backends/cpu/simd_target.h"

namespace tessera::cpu {

/// Asks for the kBytes of a stream that lie each distance ahead of `at`. The distances' lines are asked for
/// by whole steps, of which the parts of a line are too cheap to tell apart.
template <std::size_t kBytes>
inline void fetch_ahead(const void* at, const FetchAhead& distances) {
  constexpr std::size_t kLine = 64;
  constexpr int kToFirstLevel = 3, kToSecondLevel = 2;
  const char* p = static_cast<const char*>(at);
  if (distances.near != 0) {
    for (std::size_t line = 0; line < kBytes; line += kLine) {
      __builtin_prefetch(p + distances.near + line, 0, kToFirstLevel);
    }
  }
  if (distances.far != 0) {
    for (std::size_t line = 0; line < kBytes; line += kLine) {
      __builtin_prefetch(p + distances.far + line, 0, kToSecondLevel);
    }
  }
}

}  // namespace tessera::cpu
