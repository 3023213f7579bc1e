#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// Shares `budget` tokens of a step out between prompts that lack so many (`pending`, 1 or more each, the one
/// whose turn is first in front): all get the same, what one doesn't need goes to the others, and what a
/// division leaves to those in front. A share is not made smaller than `least`, so that kernels have enough
/// rows; those further behind then get nothing this time.
std::vector<std::int64_t> share_budget(std::int64_t budget, std::int64_t least,
                                       std::span<const std::int64_t> pending);

}  // namespace tessera
