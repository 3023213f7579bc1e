#pragma once

#include <cstddef>

#include "backends/cpu/simd_target.h"

namespace tessera::cpu {

enum class CacheLevel { kFirst, kSecond };

/// Asks for a line of memory.
template <CacheLevel kLevel>
inline void prefetch_line(const void* line) {
  __builtin_prefetch(line, 0, kLevel == CacheLevel::kFirst ? 3 : 2);
}

/// Asks for the lines of a step of kBytes of a stream. Where steps share a line, both ask for it: that is
/// cheaper than to find out.
template <CacheLevel kLevel, std::size_t kBytes>
inline void prefetch_step(const void* step) {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < kBytes; at += kLine) {
    prefetch_line<kLevel>(static_cast<const char*>(step) + at);
  }
}

/// Asks for the steps that lie each distance ahead of `step`.
template <std::size_t kBytes>
inline void fetch_ahead(const void* step, const FetchAhead& distances) {
  const char* p = static_cast<const char*>(step);
  if (distances.near != 0) prefetch_step<CacheLevel::kFirst, kBytes>(p + distances.near);
  if (distances.far != 0) prefetch_step<CacheLevel::kSecond, kBytes>(p + distances.far);
}

}  // namespace tessera::cpu
