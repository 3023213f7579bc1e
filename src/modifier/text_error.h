#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/attention.h"

namespace tessera::modifier {

/// A place in one of a modifier's two texts.
struct Position {
  bool in_visible = false;
  std::size_t offset = 0;  ///< bytes from its start
};

/// Throws Error{kInvalidArgument}: "scores.modifier.visible:1:9: what", the line and a caret under the place.
[[noreturn]] void fail_at(const ScoreModifier& modifier, Position position, const std::string& what);

/// "; did you mean kv_idx?" if one of `names` is a slip away from `name`, else nothing.
template <class Names>
std::string did_you_mean(std::string_view name, const Names& names);

/// How many characters must be inserted, removed, replaced or swapped with the next to make a into b; some
/// number above `limit` if it is more.  Damerau, "A Technique for Computer Detection and Correction of
/// Spelling Errors" (1964).
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit);

template <class Names>
std::string did_you_mean(std::string_view name, const Names& names) {
  const std::size_t limit = name.size() <= 3 ? 1 : 2;
  std::string best;
  std::size_t least = limit + 1;
  for (const auto& candidate : names) {
    const std::size_t distance = edit_distance(name, candidate, limit);
    if (distance < least && distance < candidate.size()) {
      least = distance;
      best = candidate;
    }
  }
  return best.empty() ? best : "; did you mean " + best + "?";
}

}  // namespace tessera::modifier
