#include "modifier/parse_cache.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tessera::modifier {
namespace {

/// What parse() looks at of a modifier.
struct Key {
  std::string score, visible;
  std::vector<std::pair<std::string, TensorType>> tensors;
  std::vector<std::pair<std::string, double>> scalars;

  explicit Key(const ScoreModifier& m) : score(m.score), visible(m.visible), scalars(m.scalars) {
    for (const CapturedTensor& t : m.tensors) tensors.emplace_back(t.name, type_of(t));
  }

  static TensorType type_of(const CapturedTensor& t) { return {t.dtype, static_cast<int>(t.sizes.size())}; }

  bool is_of(const ScoreModifier& m) const {
    return score == m.score && visible == m.visible && scalars == m.scalars &&
           std::ranges::equal(tensors, m.tensors, [](const auto& known, const CapturedTensor& t) {
             return known.first == t.name && known.second == type_of(t);
           });
  }
};

struct Entry {
  Key key;
  std::shared_ptr<const Parsed> parsed;
};

constexpr std::size_t kMostEntries = 8;  // of models, a text or two are usual

}  // namespace

std::shared_ptr<const Parsed> parse_once(const ScoreModifier& modifier) {
  thread_local std::vector<Entry> entries;  // the last used first
  const auto found = std::ranges::find_if(entries, [&](const Entry& e) { return e.key.is_of(modifier); });
  if (found != entries.end()) {
    std::rotate(entries.begin(), found, found + 1);
  } else {
    auto parsed = std::make_shared<const Parsed>(parse(modifier));
    if (entries.size() == kMostEntries) entries.pop_back();
    entries.insert(entries.begin(), Entry{Key(modifier), std::move(parsed)});
  }
  return entries.front().parsed;
}

}  // namespace tessera::modifier
