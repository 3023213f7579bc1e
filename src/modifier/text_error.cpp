#include "modifier/text_error.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "core/text.h"
#include "tessera/error.h"

namespace tessera::modifier {

void fail_at(const ScoreModifier& modifier, Position position, const std::string& what) {
  const std::string_view text = position.in_visible ? modifier.visible : modifier.score;
  const std::size_t offset = std::min(position.offset, text.size());
  const std::string_view before = text.substr(0, offset);
  const std::size_t line_begin = before.find_last_of('\n') + 1;  // npos + 1 is 0
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  // A window of a long line around the place.
  constexpr std::size_t kBefore = 80, kShown = 110;
  const std::size_t shown_begin = std::max(line_begin, offset - std::min(offset, kBefore));
  std::string_view shown = text.substr(shown_begin, text.find('\n', offset) - shown_begin).substr(0, kShown);
  // What is no ASCII stands behind the place: the language has none.
  std::string plain;
  for (std::size_t i = 0, size = 0; i < shown.size(); i += size) {
    size = std::max<std::size_t>(utf8_sequence_length(shown.substr(i)), 1);
    const char c = shown[i];
    plain += size > 1 || (c >= ' ' && c <= '~') ? shown.substr(i, size) : c == '\t' ? " " : "?";
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("scores.modifier.{}:{}:{}: {}\n  {}\n  {:>{}}", position.in_visible ? "visible" : "score",
                  line, offset - line_begin + 1, what, plain, "^", offset - shown_begin + 1));
}

std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  const std::size_t difference = a.size() < b.size() ? b.size() - a.size() : a.size() - b.size();
  if (difference > limit) return limit + 1;
  std::vector<std::size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace tessera::modifier
