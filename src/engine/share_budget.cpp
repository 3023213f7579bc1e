#include "engine/share_budget.h"

#include <algorithm>

namespace tessera {

std::vector<std::int64_t> share_budget(std::int64_t budget, std::int64_t least,
                                       std::span<const std::int64_t> pending) {
  std::vector<std::int64_t> shares(pending.size());
  // Who is in: as many from the front as could all have `least`.
  std::size_t count = 0;
  for (std::int64_t left = budget; count < pending.size() && left > 0; ++count) {
    if (count > 0 && left < std::min(least, pending[count])) break;
    left -= std::min(least, pending[count]);
  }
  std::vector<std::int64_t> ascending(pending.begin(), pending.begin() + static_cast<std::ptrdiff_t>(count));
  std::ranges::sort(ascending);
  std::int64_t left = budget, level = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto others = static_cast<std::int64_t>(count - i);
    level = std::min(ascending[i], left / others);
    if (level < ascending[i]) break;
    left -= ascending[i];
  }
  left = budget;
  for (std::size_t i = 0; i < count; ++i) left -= shares[i] = std::min(pending[i], level);
  for (std::size_t i = 0; i < count && left > 0; ++i) {
    if (shares[i] == pending[i]) continue;
    ++shares[i];
    --left;
  }
  return shares;
}

}  // namespace tessera
