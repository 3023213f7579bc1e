#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/regex_syntax.h"

namespace tessera::grammar {

/// A deterministic automaton over code points: the texts that a string, a key or a number may be. State 0 is
/// the first; a character without an edge ends in nothing.
class CharAutomaton {
 public:
  struct Edge {
    char32_t first, last;
    std::uint32_t target;
  };
  struct State {
    std::vector<Edge> edges;  // rising, disjoint
    bool accepts = false;
  };

  /// Sizes beyond which making one is an error.
  static constexpr std::size_t kMaxStates = 65'536;

  /// All texts, and those with min to max characters (kUnbounded: no upper bound).
  static CharAutomaton any_text();
  static CharAutomaton lengths(std::uint32_t min, std::uint32_t max);
  /// One of `texts`, which are UTF-8.
  static CharAutomaton any_of(std::span<const std::string> texts);
  /// Texts that match the whole expression, or that have it somewhere (`search`, JSON Schema's "pattern").
  static CharAutomaton from_regex(std::string_view pattern, bool search, std::string_view source);
  /// Decimal numbers without exponent, of up to `decimals` digits behind the point, that are multiples of
  /// factor / 10^decimals.
  static CharAutomaton decimal_multiples(std::uint32_t factor, int decimals);

  const std::vector<State>& states() const { return states_; }
  /// Whether no text is accepted.
  bool is_empty() const;
  bool accepts(std::string_view text) const;

  /// Throw Error{kUnsupported} with `source` beyond kMaxStates.
  CharAutomaton intersected(const CharAutomaton& other, std::string_view source) const;
  CharAutomaton without(const CharAutomaton& other, std::string_view source) const;
  /// Removes states that lead to nothing, and merges those that can't be told apart.
  CharAutomaton minimized() const;

 private:
  static CharAutomaton from_tree(const RegexNode& tree, bool search, std::string_view source);
  CharAutomaton combined(const CharAutomaton& other, bool complement_other, std::string_view source) const;
  /// Of each state, whether the first one leads to it, and it to an accepting one.
  std::vector<bool> useful_states() const;
  /// Of each useful state, the number of its block: states that can't be told apart, but in long chains of
  /// counted repetitions, whose states are left as they are.
  std::vector<std::uint32_t> blocks_of(const std::vector<bool>& useful) const;

  std::vector<State> states_;
};

/// While it lives, what this thread's automata take counts together, too: a schema may have many patterns,
/// each of which takes less than one may.
class AutomataLimit {
 public:
  /// source: what the automata are made for, as errors name it.
  explicit AutomataLimit(std::string_view source);
  ~AutomataLimit();
  AutomataLimit(const AutomataLimit&) = delete;
  AutomataLimit& operator=(const AutomataLimit&) = delete;

  /// Throws Error{kUnsupported} beyond the limit of all.
  static void count(std::size_t work);

 private:
  std::string_view source_;
  AutomataLimit* outer_;
  std::size_t work_ = 0;
};

}  // namespace tessera::grammar
