#include "grammar/char_automaton.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/error.h"

namespace tessera::grammar {
namespace {

constexpr std::uint32_t kNone = ~0u;

/// Transitions that making an automaton may look at, so that no pattern takes long, nor many together.
constexpr std::size_t kMaxWork = 20'000'000;
constexpr std::size_t kMaxWorkOfAll = 3 * kMaxWork;
constexpr std::size_t kMaxNfaStates = 200'000;

thread_local AutomataLimit* limit_of_thread = nullptr;

[[noreturn]] void too_large(std::string_view source) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format(
          "{}: the regular expression, or its combination with lengths and other patterns, has more than "
          "{} states; expected a simpler one, or smaller counts",
          source, CharAutomaton::kMaxStates));
}

[[noreturn]] void too_much_work(std::string_view source) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{}: the regular expression, or its combination with lengths and other patterns, takes "
                  "more than {} steps to make; expected a simpler one, fewer alternatives, smaller "
                  "counts, or ^ and $ around a pattern that may stand anywhere",
                  source, kMaxWork));
}

/// Thompson's automaton of an expression. Conditions are on skips: the beginning, the end.
class Nfa {
 public:
  enum class When : std::uint8_t { kAlways, kAtStart, kAtEnd };
  struct Skip {
    std::uint32_t target;
    When when;
  };
  struct State {
    CharSet set;  // one step by a character of it leads to `target`
    std::uint32_t target = kNone;
    std::vector<Skip> skips;
  };

  explicit Nfa(std::string_view source) : source_(source) {}

  std::uint32_t add() {
    if (states.size() >= kMaxNfaStates) too_large(source_);
    states.emplace_back();
    return static_cast<std::uint32_t>(states.size() - 1);
  }
  void skip(std::uint32_t from, std::uint32_t to, When when = When::kAlways) {
    states[from].skips.push_back({to, when});
  }

  /// Adds the node's texts from `from` on and returns where they end.
  std::uint32_t append(const RegexNode& node, std::uint32_t from) {
    using Kind = RegexNode::Kind;
    switch (node.kind) {
      case Kind::kEmpty:
        return from;
      case Kind::kSet: {
        const std::uint32_t at = add(), to = add();
        skip(from, at);
        states[at].set = node.set;
        states[at].target = to;
        return to;
      }
      case Kind::kSequence:
        for (const RegexNode& child : node.children) from = append(child, from);
        return from;
      case Kind::kAlternative: {
        const std::uint32_t to = add();
        for (const RegexNode& child : node.children) {
          const std::uint32_t begin = add();
          skip(from, begin);
          skip(append(child, begin), to);
        }
        return to;
      }
      case Kind::kRepeat: {
        for (std::uint32_t i = 0; i < node.min; ++i) from = append(node.children[0], from);
        if (node.max == RegexNode::kUnbounded) {
          const std::uint32_t loop = add();
          skip(from, loop);
          skip(append(node.children[0], loop), loop);
          return loop;
        }
        const std::uint32_t to = add();
        for (std::uint32_t i = node.min; i < node.max; ++i) {
          skip(from, to);
          const std::uint32_t begin = add();
          skip(from, begin);
          from = append(node.children[0], begin);
        }
        skip(from, to);
        return to;
      }
      case Kind::kStart:
      case Kind::kEnd: {
        const std::uint32_t to = add();
        skip(from, to, node.kind == Kind::kStart ? When::kAtStart : When::kAtEnd);
        return to;
      }
    }
    return from;
  }

  std::vector<State> states;

 private:
  std::string_view source_;
};

/// The subset construction.
class Determinizer {
 public:
  /// anything: `accept` if every text is accepted from there, or kNone.
  Determinizer(const Nfa& nfa, std::uint32_t accept, std::uint32_t anything, std::string_view source)
      : nfa_(nfa), accept_(accept), anything_(anything), source_(source), marks_(nfa.states.size()) {}

  std::vector<CharAutomaton::State> run(std::uint32_t start) {
    number(closure({start}, true));
    for (std::size_t i = 0; i < sets_.size(); ++i) {
      const std::vector<std::uint32_t> set = sets_[i];
      states_[i].accepts = can_end(set);
      expand(i, set);
    }
    return std::move(states_);
  }

 private:
  void count(std::size_t work) {
    AutomataLimit::count(work);
    work_ += work;
    if (work_ > kMaxWork) too_much_work(source_);
  }

  /// What is reached by skips: `at_start` says that no character came before. Where everything is accepted
  /// nothing else matters.
  std::vector<std::uint32_t> closure(std::vector<std::uint32_t> states, bool at_start, bool at_end = false) {
    ++mark_;
    std::vector<std::uint32_t> result;
    const auto visit = [&](std::uint32_t state) {
      if (marks_[state] == mark_) return;
      marks_[state] = mark_;
      result.push_back(state);
    };
    for (const std::uint32_t state : states) visit(state);
    for (std::size_t i = 0; i < result.size(); ++i) {
      count(1 + nfa_.states[result[i]].skips.size());
      for (const Nfa::Skip& skip : nfa_.states[result[i]].skips) {
        if (skip.when == Nfa::When::kAtStart && !at_start) continue;
        if (skip.when == Nfa::When::kAtEnd && !at_end) continue;
        if (skip.target == anything_ && states != std::vector{anything_})
          return closure({anything_}, at_start, at_end);
        visit(skip.target);
      }
    }
    std::ranges::sort(result);
    return result;
  }

  /// Whether the text may end in this set. What lies behind $ alone has no characters left to take.
  bool can_end(const std::vector<std::uint32_t>& set) {
    // In the first set ^ was followed already; `a$^` never matches, and ^ behind $ in an empty text does.
    const bool is_first = set == sets_[0];  // no other has the beginning's state
    const std::vector<std::uint32_t> all = closure(set, is_first, true);
    return std::ranges::binary_search(all, accept_);
  }

  std::uint32_t number(std::vector<std::uint32_t> set) {
    const auto [entry, is_new] = numbers_.try_emplace(set, static_cast<std::uint32_t>(sets_.size()));
    if (is_new) {
      if (sets_.size() >= CharAutomaton::kMaxStates) too_large(source_);
      sets_.push_back(std::move(set));
      states_.emplace_back();
    }
    return entry->second;
  }

  void expand(std::size_t index, const std::vector<std::uint32_t>& set) {
    std::vector<char32_t> begins;
    for (const std::uint32_t state : set) {
      for (const CharRange& range : nfa_.states[state].set) {
        begins.push_back(range.first);
        begins.push_back(range.last + 1);
      }
    }
    std::ranges::sort(begins);
    begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
    for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
      std::vector<std::uint32_t> targets;
      for (const std::uint32_t state : set) {
        const CharSet& ranges = nfa_.states[state].set;
        const auto after = std::ranges::upper_bound(ranges, begins[i], {}, &CharRange::first);
        count(1);
        if (after != ranges.begin() && std::prev(after)->last >= begins[i])
          targets.push_back(nfa_.states[state].target);
      }
      if (targets.empty()) continue;
      const std::uint32_t target = number(closure(std::move(targets), false));
      std::vector<CharAutomaton::Edge>& edges = states_[index].edges;
      if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == begins[i]) {
        edges.back().last = begins[i + 1] - 1;
      } else {
        edges.push_back({begins[i], begins[i + 1] - 1, target});
      }
    }
  }

  const Nfa& nfa_;
  std::uint32_t accept_, anything_;
  std::string_view source_;
  std::vector<std::uint32_t> marks_;
  std::uint32_t mark_ = 0;
  std::size_t work_ = 0;
  std::map<std::vector<std::uint32_t>, std::uint32_t> numbers_;
  std::vector<std::vector<std::uint32_t>> sets_;
  std::vector<CharAutomaton::State> states_;
};

/// The code points of valid UTF-8.
std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> result;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t n) {
      return static_cast<char32_t>(static_cast<unsigned char>(text[n]));
    };
    const char32_t lead = byte(i++);
    const int more = lead < 0x80 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    char32_t c = more == 0 ? lead : lead & (0x3Fu >> more);
    for (int n = 0; n < more && i < text.size(); ++n) c = c << 6 | (byte(i++) & 0x3F);
    result.push_back(c);
  }
  return result;
}

std::uint32_t target_of(const CharAutomaton::State& state, char32_t c) {
  const auto after = std::ranges::upper_bound(state.edges, c, {}, &CharAutomaton::Edge::first);
  if (after == state.edges.begin() || std::prev(after)->last < c) return kNone;
  return std::prev(after)->target;
}

/// The useful states, each behind those that its edges lead to; empty if some lead back.
std::vector<std::uint32_t> targets_first(std::span<const CharAutomaton::State> states,
                                         const std::vector<bool>& useful) {
  if (!useful[0]) return {};
  enum class Seen : char { kNot, kOpen, kDone };
  std::vector<Seen> seen(states.size(), Seen::kNot);
  std::vector<std::pair<std::uint32_t, std::size_t>> path = {{0, 0}};  // with the next edge to follow
  std::vector<std::uint32_t> order;
  seen[0] = Seen::kOpen;
  while (!path.empty()) {
    auto& [at, next] = path.back();
    const std::vector<CharAutomaton::Edge>& edges = states[at].edges;
    if (next == edges.size()) {
      seen[at] = Seen::kDone;
      order.push_back(at);
      path.pop_back();
      continue;
    }
    const std::uint32_t target = edges[next++].target;
    if (!useful[target] || seen[target] == Seen::kDone) continue;
    if (seen[target] == Seen::kOpen) return {};
    seen[target] = Seen::kOpen;
    path.emplace_back(target, 0);
  }
  return order;
}

/// Moore's refinement: blocks split until states of one have edges to the same blocks. Chains of counted
/// repetitions take a round a state; long ones are left as they are.
template <class Signature>
void refine(const std::vector<bool>& useful, const Signature& signature, std::vector<std::uint32_t>& block) {
  const std::size_t n = block.size();
  const std::size_t rounds = std::max(200'000 / n, std::min<std::size_t>(50, 1'000'000 / n));
  constexpr std::size_t kWorkOfASignature = 8;  // takes as long as so many steps of making an automaton
  std::size_t num_blocks = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    AutomataLimit::count(n * kWorkOfASignature);
    std::map<std::vector<std::uint32_t>, std::uint32_t> numbers;
    std::vector<std::uint32_t> next(n);
    for (std::size_t i = 0; i < n; ++i) {
      if (useful[i])
        next[i] = numbers.try_emplace(signature(i), static_cast<std::uint32_t>(numbers.size())).first->second;
    }
    block = std::move(next);
    if (numbers.size() == num_blocks) return;
    num_blocks = numbers.size();
  }
  for (std::uint32_t i = 0; i < n; ++i) block[i] = i;
}

}  // namespace

CharAutomaton CharAutomaton::any_text() {
  CharAutomaton result;
  result.states_ = {{{{0, kLastCodePoint, 0}}, true}};
  return result;
}

CharAutomaton CharAutomaton::lengths(std::uint32_t min, std::uint32_t max) {
  CharAutomaton result;
  const std::uint32_t last = max == RegexNode::kUnbounded ? min : max;
  for (std::uint32_t i = 0; i <= last; ++i) {
    State state;
    state.accepts = i >= min;
    if (i < last) state.edges = {{0, kLastCodePoint, i + 1}};
    if (i == last && max == RegexNode::kUnbounded) state.edges = {{0, kLastCodePoint, i}};
    result.states_.push_back(std::move(state));
  }
  return result;
}

CharAutomaton CharAutomaton::any_of(std::span<const std::string> texts) {
  CharAutomaton result;
  result.states_.emplace_back();
  for (const std::string& text : texts) {
    std::uint32_t at = 0;
    for (const char32_t c : code_points(text)) {
      std::uint32_t next = target_of(result.states_[at], c);
      if (next == kNone) {
        next = static_cast<std::uint32_t>(result.states_.size());
        result.states_.emplace_back();
        std::vector<Edge>& edges = result.states_[at].edges;
        edges.insert(std::ranges::upper_bound(edges, c, {}, &Edge::first), {c, c, next});
      }
      at = next;
    }
    result.states_[at].accepts = true;
  }
  return result;
}

CharAutomaton CharAutomaton::from_tree(const RegexNode& tree, bool search, std::string_view source) {
  Nfa nfa(source);
  const std::uint32_t start = nfa.add();
  std::uint32_t begin = start;
  const auto add_any = [&](std::uint32_t from) {
    const std::uint32_t loop = nfa.add();
    nfa.skip(from, loop);
    nfa.states[loop].set = {{0, kLastCodePoint}};
    nfa.states[loop].target = loop;
    return loop;
  };
  if (search) begin = add_any(start);
  std::uint32_t end = nfa.append(tree, begin);
  if (search) end = add_any(end);
  CharAutomaton result;
  result.states_ = Determinizer(nfa, end, search ? end : kNone, source).run(start);
  return result.minimized();
}

CharAutomaton CharAutomaton::from_regex(std::string_view pattern, bool search, std::string_view source) {
  const Regex regex = parse_regex(pattern, !search, source);
  CharAutomaton result = from_tree(regex.tree, search, source);
  for (const Regex::Ahead& ahead : regex.ahead) {
    RegexNode at_start{RegexNode::Kind::kSequence};
    at_start.children = {{RegexNode::Kind::kStart}, ahead.tree};
    const CharAutomaton texts = from_tree(at_start, true, source);
    result = ahead.is_wanted ? result.intersected(texts, source) : result.without(texts, source);
  }
  return result;
}

CharAutomaton CharAutomaton::decimal_multiples(std::uint32_t factor, int decimals) {
  // States: 0 the beginning; 1 behind '-'; 2 behind a leading 0; then for each number of digits behind the
  // point (0: none yet) and remainder one. Trailing digits that are missing count as zeros.
  CharAutomaton result;
  const std::uint32_t kFirst = 3;
  const auto state_of = [&](int places, std::uint32_t remainder) {
    return kFirst + static_cast<std::uint32_t>(places) * factor + remainder;
  };
  const std::uint32_t count = state_of(decimals + 1, 0);
  const std::uint32_t points = count;  // behind the point, with no digit yet: one a remainder
  result.states_.resize(count + (decimals > 0 ? factor : 0));
  const auto digit_edges = [&](std::uint32_t remainder, int places, std::uint32_t first_digit) {
    std::vector<Edge> edges;
    for (std::uint32_t digit = first_digit; digit < 10; ++digit) {
      edges.push_back(
          {U'0' + digit, U'0' + digit,
           state_of(places, static_cast<std::uint32_t>((std::uint64_t{remainder} * 10 + digit) % factor))});
    }
    return edges;
  };
  const auto point_edge = [&](std::uint32_t remainder) { return Edge{U'.', U'.', points + remainder}; };
  std::vector<Edge> leading = digit_edges(0, 0, 1);
  leading.insert(leading.begin(), Edge{U'0', U'0', 2});
  result.states_[1].edges = leading;
  leading.insert(leading.begin(), Edge{U'-', U'-', 1});
  result.states_[0].edges = leading;
  result.states_[2].accepts = true;
  if (decimals > 0) result.states_[2].edges = {point_edge(0)};
  std::uint64_t scale = 1;  // 10^(decimals - places)
  for (int places = decimals; places >= 0; --places) {
    for (std::uint32_t remainder = 0; remainder < factor; ++remainder) {
      State& state = result.states_[state_of(places, remainder)];
      state.accepts = remainder * scale % factor == 0;
      if (places == 0) {
        state.edges = digit_edges(remainder, 0, 0);
        if (decimals > 0) state.edges.insert(state.edges.begin(), point_edge(remainder));
      } else if (places < decimals) {
        state.edges = digit_edges(remainder, places + 1, 0);
      }
    }
    scale = scale * 10 % factor;
  }
  for (std::uint32_t remainder = 0; decimals > 0 && remainder < factor; ++remainder) {
    result.states_[points + remainder].edges = digit_edges(remainder, 1, 0);
  }
  return result.minimized();
}

bool CharAutomaton::is_empty() const {
  // States that are not reached come from operations that make none.
  return std::ranges::none_of(minimized().states_, &State::accepts);
}

bool CharAutomaton::accepts(std::string_view text) const {
  std::uint32_t at = 0;
  for (const char32_t c : code_points(text)) {
    at = target_of(states_[at], c);
    if (at == kNone) return false;
  }
  return states_[at].accepts;
}

CharAutomaton CharAutomaton::intersected(const CharAutomaton& other, std::string_view source) const {
  return combined(other, false, source);
}

CharAutomaton CharAutomaton::without(const CharAutomaton& other, std::string_view source) const {
  return combined(other, true, source);
}

CharAutomaton CharAutomaton::combined(const CharAutomaton& other, bool complement_other,
                                      std::string_view source) const {
  using Pair = std::pair<std::uint32_t, std::uint32_t>;  // the second kNone: the other has nothing left
  std::map<Pair, std::uint32_t> numbers = {{{0, 0}, 0}};
  std::vector<Pair> pairs = {{0, 0}};
  CharAutomaton result;
  std::size_t work = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto [a, b] = pairs[i];
    const std::size_t work_before = work;
    State state;
    const bool other_accepts = b != kNone && other.states_[b].accepts;
    state.accepts = states_[a].accepts && other_accepts != complement_other;
    static const std::vector<Edge> kNoEdges;
    const std::vector<Edge>& others = b == kNone ? kNoEdges : other.states_[b].edges;
    const auto add = [&](char32_t first, char32_t last, std::uint32_t to_a, std::uint32_t to_b) {
      const auto [entry, is_new] =
          numbers.try_emplace({to_a, to_b}, static_cast<std::uint32_t>(pairs.size()));
      if (is_new) pairs.push_back({to_a, to_b});
      state.edges.push_back({first, last, entry->second});
    };
    for (const Edge& edge : states_[a].edges) {
      char32_t next = edge.first;
      auto overlapping = std::ranges::lower_bound(others, edge.first, {}, &Edge::last);
      for (; overlapping != others.end() && overlapping->first <= edge.last; ++overlapping) {
        const char32_t first = std::max(edge.first, overlapping->first),
                       last = std::min(edge.last, overlapping->last);
        if (complement_other && first > next) add(next, first - 1, edge.target, kNone);
        add(first, last, edge.target, overlapping->target);
        next = last + 1;
        ++work;
      }
      if (complement_other && next <= edge.last) add(next, edge.last, edge.target, kNone);
      ++work;
    }
    if (pairs.size() > kMaxStates) too_large(source);
    AutomataLimit::count(work - work_before);
    if (work > kMaxWork) too_much_work(source);
    result.states_.push_back(std::move(state));
  }
  return result.minimized();
}

std::vector<bool> CharAutomaton::useful_states() const {
  const std::size_t n = states_.size();
  std::vector<bool> reached(n), useful(n);
  std::vector<std::vector<std::uint32_t>> sources(n);
  std::vector<std::uint32_t> pending = {0};
  reached[0] = true;
  while (!pending.empty()) {
    const std::uint32_t at = pending.back();
    pending.pop_back();
    for (const Edge& edge : states_[at].edges) {
      sources[edge.target].push_back(at);
      if (!reached[edge.target]) {
        reached[edge.target] = true;
        pending.push_back(edge.target);
      }
    }
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    if (reached[i] && states_[i].accepts) {
      useful[i] = true;
      pending.push_back(i);
    }
  }
  while (!pending.empty()) {
    const std::uint32_t at = pending.back();
    pending.pop_back();
    for (const std::uint32_t source : sources[at]) {
      if (useful[source]) continue;
      useful[source] = true;
      pending.push_back(source);
    }
  }
  return useful;
}

std::vector<std::uint32_t> CharAutomaton::blocks_of(const std::vector<bool>& useful) const {
  const std::size_t n = states_.size();
  std::vector<std::uint32_t> block(n);
  for (std::size_t i = 0; i < n; ++i) block[i] = states_[i].accepts ? 1 : 0;
  const auto signature = [&](std::size_t i) {
    std::vector<std::uint32_t> key = {block[i]};
    for (const Edge& edge : states_[i].edges) {
      if (!useful[edge.target]) continue;
      const std::uint32_t to = block[edge.target];
      if (key.size() > 1 && key.back() == to && key[key.size() - 2] + 1 == edge.first) {
        key[key.size() - 2] = edge.last;
      } else {
        key.insert(key.end(), {edge.first, edge.last, to});
      }
    }
    return key;
  };
  if (const std::vector<std::uint32_t> order = targets_first(states_, useful); !order.empty()) {
    // Texts of bounded length: what a state's edges lead to has its block before.
    std::map<std::vector<std::uint32_t>, std::uint32_t> numbers;
    for (const std::uint32_t i : order)
      block[i] = numbers.try_emplace(signature(i), static_cast<std::uint32_t>(numbers.size())).first->second;
  } else {
    refine(useful, signature, block);
  }
  return block;
}

CharAutomaton CharAutomaton::minimized() const {
  const std::vector<bool> useful = useful_states();
  CharAutomaton result;
  if (!useful[0]) {
    result.states_.emplace_back();  // nothing is accepted
    return result;
  }
  const std::vector<std::uint32_t> block = blocks_of(useful);
  std::map<std::uint32_t, std::uint32_t> numbers;
  std::vector<std::uint32_t> members;  // one of each block
  const auto number = [&](std::uint32_t state) {
    const auto [entry, is_new] =
        numbers.try_emplace(block[state], static_cast<std::uint32_t>(members.size()));
    if (is_new) members.push_back(state);
    return entry->second;
  };
  number(0);
  for (std::size_t i = 0; i < members.size(); ++i) {
    State state;
    const State& member = states_[members[i]];
    state.accepts = member.accepts;
    for (const Edge& edge : member.edges) {
      if (!useful[edge.target]) continue;
      const std::uint32_t target = number(edge.target);
      if (!state.edges.empty() && state.edges.back().target == target &&
          state.edges.back().last + 1 == edge.first) {
        state.edges.back().last = edge.last;
      } else {
        state.edges.push_back({edge.first, edge.last, target});
      }
    }
    result.states_.push_back(std::move(state));
  }
  return result;
}

AutomataLimit::AutomataLimit(std::string_view source) : source_(source), outer_(limit_of_thread) {
  limit_of_thread = this;
}

AutomataLimit::~AutomataLimit() { limit_of_thread = outer_; }

void AutomataLimit::count(std::size_t work) {
  if (limit_of_thread == nullptr) return;
  limit_of_thread->work_ += work;
  if (limit_of_thread->work_ <= kMaxWorkOfAll) return;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{}: its regular expressions and their combinations take more than {} steps to make "
                  "together; expected fewer or simpler ones",
                  limit_of_thread->source_, kMaxWorkOfAll));
}

}  // namespace tessera::grammar
