#pragma once

#include <cstdint>
#include <limits>

#include "modifier/interval.h"

namespace tessera::modifier {

inline constexpr Interval<std::int64_t> kAnyInt32 = {std::numeric_limits<std::int32_t>::min(),
                                                     std::numeric_limits<std::int32_t>::max()};

/// Of sums of nodes times factors: far enough below 2^63 that kMaxNodes of them times an int32 fit.
inline constexpr std::int64_t kLargestFactor = std::int64_t{1} << 22;
inline constexpr std::int64_t kLargestConstant = std::int64_t{1} << 60;

}  // namespace tessera::modifier
