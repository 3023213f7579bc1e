#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_automaton.h"

namespace tessera::grammar {

using StateId = std::uint32_t;

/// A part of a grammar that others call: from `start` to `accept`, which has no edges.
struct Rule {
  StateId start = 0, accept = 0;
};

/// A nondeterministic automaton over bytes with a stack of return states. Immutable.
class Pushdown {
 public:
  struct ByteEdge {
    std::uint8_t first, last;
    StateId target;
  };
  /// Runs what starts at `start`, then goes on at `target`.
  struct CallEdge {
    StateId start, target;
  };
  struct State {
    std::uint32_t bytes_begin = 0, calls_begin = 0, skips_begin = 0;  // until the next state's
    StateId representative = 0;  ///< a state whose token mask is the same, as far as no call ends
    bool accepts = false;        ///< returns to the caller
  };

  std::size_t num_states() const { return states_.size() - 1; }
  StateId start() const { return start_; }
  bool accepts(StateId s) const { return states_[s].accepts; }
  StateId representative(StateId s) const { return states_[s].representative; }
  std::span<const ByteEdge> bytes(StateId s) const {
    return std::span(bytes_).subspan(states_[s].bytes_begin,
                                     states_[s + 1].bytes_begin - states_[s].bytes_begin);
  }
  std::span<const CallEdge> calls(StateId s) const {
    return std::span(calls_).subspan(states_[s].calls_begin,
                                     states_[s + 1].calls_begin - states_[s].calls_begin);
  }
  std::span<const StateId> skips(StateId s) const {
    return std::span(skips_).subspan(states_[s].skips_begin,
                                     states_[s + 1].skips_begin - states_[s].skips_begin);
  }
  /// Bytes that no edge tells apart share a class.
  const std::array<std::uint8_t, 256>& byte_classes() const { return byte_classes_; }
  int num_byte_classes() const { return num_byte_classes_; }
  /// States whose masks are worth making ahead.
  std::span<const StateId> hot_states() const { return hot_states_; }

 private:
  friend class PushdownBuilder;

  std::vector<State> states_;  // and one more, for the ends of the last one's edges
  std::vector<ByteEdge> bytes_;
  std::vector<CallEdge> calls_;
  std::vector<StateId> skips_;
  std::array<std::uint8_t, 256> byte_classes_ = {};
  int num_byte_classes_ = 0;
  StateId start_ = 0;
  std::vector<StateId> hot_states_;
};

/// How the characters of a text are written.
enum class Spelling {
  kUtf8,       ///< as they are
  kJsonString  ///< what must be escaped is, by the shortest escape; all else as it is
};

/// Puts a Pushdown together, state by state. Throws Error{kUnsupported} when it grows beyond its limits.
class PushdownBuilder {
 public:
  static constexpr std::size_t kMaxStates = 400'000;
  static constexpr std::size_t kMaxEdges = 2'000'000;

  StateId add_state();
  Rule add_rule();  ///< two new states, of which the second returns
  void add_bytes(StateId from, StateId to, std::uint8_t first, std::uint8_t last);
  void add_skip(StateId from, StateId to);
  void add_call(StateId from, StateId to, const Rule& rule);
  void add_literal(StateId from, StateId to, std::string_view text);
  /// Any of `texts`: a deterministic automaton in which what begins alike, and what ends alike, is there once
  /// (Daciuk et al., 2000).
  void add_literals(StateId from, StateId to, std::vector<std::string> texts);
  void add_chars(StateId from, StateId to, const CharSet& set, Spelling spelling);
  void add_texts(StateId from, StateId to, const CharAutomaton& texts, Spelling spelling);
  void mark_hot(StateId state) { hot_states_.push_back(state); }
  void set_representative(StateId state, StateId representative);
  std::size_t num_states() const { return states_.size(); }

  /// What starts at root's start. Parts that lead to nothing are left out. Throws Error{kInvalidArgument} if
  /// no text is accepted, or a rule calls itself before a byte is read.
  Pushdown build(const Rule& root) const;

 private:
  struct State {
    std::vector<Pushdown::ByteEdge> bytes;
    std::vector<Pushdown::CallEdge> calls;
    std::vector<StateId> skips;
    StateId representative;
    bool accepts = false;
  };

  void count_edge();
  /// Those from which their rule's accepting state is reached, or is without reading a byte.
  std::vector<bool> states_that_return(bool by_bytes) const;
  /// Throws if a circle of edges that read no byte enters a call: it would stack returns without end.
  void check_recursion(const std::vector<bool>& productive) const;

  std::vector<State> states_;
  std::vector<StateId> hot_states_;
  std::size_t num_edges_ = 0;
};

}  // namespace tessera::grammar
