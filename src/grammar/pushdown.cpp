#include "grammar/pushdown.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "grammar/json_value.h"
#include "tessera/error.h"

namespace tessera::grammar {
namespace {

struct ByteRange {
  std::uint8_t first, last;
};

/// Calls body(ranges) for sequences of byte ranges that together are the UTF-8 of [first, last] without
/// surrogates.
template <class Body>
void split_utf8(char32_t first, char32_t last, Body&& body) {
  constexpr char32_t kLimits[] = {0x7F, 0x7FF, 0xFFFF, kLastCodePoint};
  if (first <= 0xDFFF && last >= 0xD800) {
    if (first < 0xD800) split_utf8(first, 0xD7FF, body);
    if (last > 0xDFFF) split_utf8(0xE000, last, body);
    return;
  }
  for (const char32_t limit : kLimits) {
    if (first <= limit && last > limit) {
      split_utf8(first, limit, body);
      split_utf8(limit + 1, last, body);
      return;
    }
  }
  const int length = first <= 0x7F ? 1 : first <= 0x7FF ? 2 : first <= 0xFFFF ? 3 : 4;
  // Where all but the leading bytes that agree may be anything, one sequence says it.
  for (int i = 1; i < length; ++i) {
    const char32_t low = (char32_t{1} << 6 * i) - 1;
    if ((first & ~low) == (last & ~low)) continue;
    if ((first & low) != 0) {
      split_utf8(first, first | low, body);
      split_utf8((first | low) + 1, last, body);
      return;
    }
    if ((last & low) != low) {
      split_utf8(first, (last & ~low) - 1, body);
      split_utf8(last & ~low, last, body);
      return;
    }
  }
  std::array<ByteRange, 4> ranges{};
  for (int i = 0; i < length; ++i) {
    const int shift = 6 * (length - 1 - i);
    const auto byte = [&](char32_t c) {
      constexpr std::uint8_t kLeads[] = {0, 0, 0xC0, 0xE0, 0xF0};
      if (i > 0) return static_cast<std::uint8_t>(0x80 | (c >> shift & 0x3F));
      return static_cast<std::uint8_t>(kLeads[length] | c >> shift);
    };
    ranges[static_cast<std::size_t>(i)] = {byte(first), byte(last)};
  }
  body(std::span(ranges.data(), static_cast<std::size_t>(length)));
}

/// What JSON writes differently in a string.
const CharSet kEscaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};

/// Of each of n states the number of its strongly connected component, by an iterative depth-first search
/// (Tarjan, 1972). targets_of: the Targets of a state's edges, each with a `state`.
template <class Target, class TargetsOf>
std::vector<std::uint32_t> strong_components(std::size_t n, const TargetsOf& targets_of) {
  constexpr std::uint32_t kUnseen = ~0u;
  std::vector<std::uint32_t> index(n, kUnseen), low(n), component(n, kUnseen);
  std::vector<StateId> stack;
  struct Frame {
    StateId state;
    std::vector<Target> targets;
    std::size_t next;
  };
  std::vector<Frame> frames;
  std::uint32_t counter = 0, components = 0;
  const auto open = [&](StateId s) {
    index[s] = low[s] = counter++;
    stack.push_back(s);
    frames.push_back({s, targets_of(s), 0});
  };
  for (StateId root = 0; root < n; ++root) {
    if (index[root] != kUnseen) continue;
    open(root);
    while (!frames.empty()) {
      Frame& frame = frames.back();
      if (frame.next < frame.targets.size()) {
        const StateId t = frame.targets[frame.next++].state;
        if (index[t] == kUnseen) {
          open(t);
        } else if (component[t] == kUnseen) {
          low[frame.state] = std::min(low[frame.state], index[t]);
        }
        continue;
      }
      const StateId s = frame.state;
      if (low[s] == index[s]) {
        StateId member;
        do {
          member = stack.back();
          stack.pop_back();
          component[member] = components;
        } while (member != s);
        ++components;
      }
      frames.pop_back();
      if (!frames.empty()) low[frames.back().state] = std::min(low[frames.back().state], low[s]);
    }
  }
  return component;
}

}  // namespace

StateId PushdownBuilder::add_state() {
  if (states_.size() >= kMaxStates) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("the grammar has more than {} states; expected a smaller schema, or smaller counts",
                    kMaxStates));
  }
  states_.push_back({{}, {}, {}, static_cast<StateId>(states_.size()), false});
  return static_cast<StateId>(states_.size() - 1);
}

Rule PushdownBuilder::add_rule() {
  const Rule rule{add_state(), add_state()};
  states_[rule.accept].accepts = true;
  return rule;
}

void PushdownBuilder::count_edge() {
  if (++num_edges_ > kMaxEdges) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("the grammar has more than {} edges; expected a smaller schema, or simpler patterns",
                    kMaxEdges));
  }
}

void PushdownBuilder::add_bytes(StateId from, StateId to, std::uint8_t first, std::uint8_t last) {
  count_edge();
  states_[from].bytes.push_back({first, last, to});
}

void PushdownBuilder::add_skip(StateId from, StateId to) {
  count_edge();
  states_[from].skips.push_back(to);
}

void PushdownBuilder::add_call(StateId from, StateId to, const Rule& rule) {
  count_edge();
  states_[from].calls.push_back({rule.start, to});
}

void PushdownBuilder::add_literal(StateId from, StateId to, std::string_view text) {
  if (text.empty()) return add_skip(from, to);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const StateId next = i + 1 == text.size() ? to : add_state();
    const auto byte = static_cast<std::uint8_t>(text[i]);
    add_bytes(from, next, byte, byte);
    from = next;
  }
}

void PushdownBuilder::add_literals(StateId from, StateId to, std::vector<std::string> texts) {
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  // The states along the text that was read last; in the order of the texts nothing more comes into those
  // behind where the next one differs.
  using Edges = std::vector<std::pair<std::uint8_t, StateId>>;
  struct Open {
    Edges edges;  // the last one's target is the next open state, which has no id yet
    bool is_end = false;
  };
  std::vector<Open> path(1);
  std::map<std::pair<bool, Edges>, StateId> closed = {{{true, {}}, to}};
  const auto close = [&] {
    const Open last = std::move(path.back());
    path.pop_back();
    const auto [entry, is_new] = closed.try_emplace({last.is_end, last.edges}, 0);
    if (is_new) {
      entry->second = add_state();
      for (const auto& [byte, target] : last.edges) add_bytes(entry->second, target, byte, byte);
      if (last.is_end) add_skip(entry->second, to);
    }
    path.back().edges.back().second = entry->second;
  };
  std::string_view before;
  for (const std::string& text : texts) {
    const auto differs = std::ranges::mismatch(before, text).in1;
    const auto same = static_cast<std::size_t>(differs - before.begin());
    while (path.size() > same + 1) close();
    for (std::size_t i = same; i < text.size(); ++i) {
      path.back().edges.emplace_back(static_cast<std::uint8_t>(text[i]), 0);
      path.emplace_back();
    }
    path.back().is_end = true;
    before = text;
  }
  while (path.size() > 1) close();
  for (const auto& [byte, target] : path[0].edges) add_bytes(from, target, byte, byte);
  if (path[0].is_end) add_skip(from, to);
}

void PushdownBuilder::add_chars(StateId from, StateId to, const CharSet& set, Spelling spelling) {
  // Sequences that end alike share their ends.
  std::map<std::tuple<StateId, std::uint8_t, std::uint8_t>, StateId> before;
  const auto state_before = [&](StateId target, const ByteRange& range) {
    const auto [entry, is_new] = before.try_emplace({target, range.first, range.last}, 0);
    if (is_new) {
      entry->second = add_state();
      add_bytes(entry->second, target, range.first, range.last);
    }
    return entry->second;
  };
  const auto add_plain = [&](const CharRange& range) {
    split_utf8(range.first, range.last, [&](std::span<const ByteRange> bytes) {
      StateId target = to;
      for (std::size_t i = bytes.size() - 1; i > 0; --i) target = state_before(target, bytes[i]);
      add_bytes(from, target, bytes[0].first, bytes[0].last);
    });
  };
  for (const CharRange& range : set) {
    if (spelling == Spelling::kUtf8) {
      add_plain(range);
      continue;
    }
    char32_t next = range.first;
    for (const CharRange& escaped : kEscaped) {
      if (escaped.last < range.first || escaped.first > range.last) continue;
      if (escaped.first > next) add_plain({next, escaped.first - 1});
      for (char32_t c = std::max(next, escaped.first); c <= std::min(range.last, escaped.last); ++c) {
        const std::string text = json_quoted(std::string_view(reinterpret_cast<const char*>(&c), 1));
        add_literal(from, to, std::string_view(text).substr(1, text.size() - 2));
      }
      next = escaped.last + 1;
    }
    if (next <= range.last) add_plain({next, range.last});
  }
}

void PushdownBuilder::add_texts(StateId from, StateId to, const CharAutomaton& texts, Spelling spelling) {
  const std::vector<CharAutomaton::State>& states = texts.states();
  std::vector<StateId> ids;
  for (std::size_t i = 0; i < states.size(); ++i) ids.push_back(add_state());
  add_skip(from, ids[0]);
  for (std::size_t i = 0; i < states.size(); ++i) {
    std::map<std::uint32_t, CharSet> sets;
    for (const CharAutomaton::Edge& edge : states[i].edges)
      sets[edge.target].push_back({edge.first, edge.last});
    for (const auto& [target, set] : sets) add_chars(ids[i], ids[target], set, spelling);
    if (states[i].accepts) add_skip(ids[i], to);
  }
}

void PushdownBuilder::set_representative(StateId state, StateId representative) {
  states_[state].representative = representative;
}

std::vector<bool> PushdownBuilder::states_that_return(bool by_bytes) const {
  // A worklist over reversed edges; a call counts when both its start and its target return.
  struct User {
    StateId state;
    StateId other;  // must return, too
  };
  const std::size_t n = states_.size();
  std::vector<std::vector<User>> users(n);
  std::vector<bool> returns(n);
  std::vector<StateId> pending;
  for (StateId s = 0; s < n; ++s) {
    if (by_bytes) {
      for (const auto& edge : states_[s].bytes) users[edge.target].push_back({s, edge.target});
    }
    for (const StateId target : states_[s].skips) users[target].push_back({s, target});
    for (const auto& edge : states_[s].calls) {
      users[edge.start].push_back({s, edge.target});
      users[edge.target].push_back({s, edge.start});
    }
    if (states_[s].accepts) {
      returns[s] = true;
      pending.push_back(s);
    }
  }
  while (!pending.empty()) {
    const StateId done = pending.back();
    pending.pop_back();
    for (const User& user : users[done]) {
      if (returns[user.state] || !returns[user.other]) continue;
      returns[user.state] = true;
      pending.push_back(user.state);
    }
  }
  return returns;
}

void PushdownBuilder::check_recursion(const std::vector<bool>& productive) const {
  const std::vector<bool> nullable = states_that_return(false);
  struct Target {
    StateId state;
    bool enters;
  };
  // Edges that read no byte: skips, into calls, and past calls that may read nothing.
  const auto targets_of = [&](StateId s) {
    std::vector<Target> result;
    for (const StateId t : states_[s].skips) result.push_back({t, false});
    for (const auto& edge : states_[s].calls) {
      if (!productive[edge.start] || !productive[edge.target]) continue;
      result.push_back({edge.start, true});
      if (nullable[edge.start]) result.push_back({edge.target, false});
    }
    return result;
  };
  const std::vector<std::uint32_t> component = strong_components<Target>(states_.size(), targets_of);
  for (StateId s = 0; s < states_.size(); ++s) {
    for (const Target& t : targets_of(s)) {
      if (t.enters && component[s] == component[t.state]) {
        throw Error(
            ErrorCode::kInvalidArgument,
            "the schema refers to itself where nothing has been read yet; expected that a reference to a "
            "schema stands within an object's or array's part of it");
      }
    }
  }
}

Pushdown PushdownBuilder::build(const Rule& root) const {
  const std::vector<bool> productive = states_that_return(true);
  if (!productive[root.start]) {
    throw Error(ErrorCode::kInvalidArgument,
                "no text fits the grammar; expected a schema or regular expression that something fits");
  }
  check_recursion(productive);
  Pushdown result;
  std::array<bool, 257> is_border{};
  is_border[0] = true;
  for (const State& state : states_) {
    result.states_.push_back(
        {static_cast<std::uint32_t>(result.bytes_.size()), static_cast<std::uint32_t>(result.calls_.size()),
         static_cast<std::uint32_t>(result.skips_.size()), state.representative, state.accepts});
    for (const auto& edge : state.bytes) {
      if (!productive[edge.target]) continue;
      result.bytes_.push_back(edge);
      is_border[edge.first] = is_border[edge.last + 1u] = true;
    }
    for (const auto& edge : state.calls) {
      if (productive[edge.start] && productive[edge.target]) result.calls_.push_back(edge);
    }
    for (const StateId target : state.skips) {
      if (productive[target]) result.skips_.push_back(target);
    }
  }
  result.states_.push_back({static_cast<std::uint32_t>(result.bytes_.size()),
                            static_cast<std::uint32_t>(result.calls_.size()),
                            static_cast<std::uint32_t>(result.skips_.size()), 0, false});
  int byte_class = -1;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (is_border[byte]) ++byte_class;
    result.byte_classes_[byte] = static_cast<std::uint8_t>(byte_class);
  }
  result.num_byte_classes_ = byte_class + 1;
  result.start_ = root.start;
  result.hot_states_ = hot_states_;
  std::erase_if(result.hot_states_, [&](StateId s) { return !productive[s]; });
  return result;
}

}  // namespace tessera::grammar
