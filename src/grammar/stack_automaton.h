#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/pushdown.h"

namespace tessera::grammar {

using StackId = std::uint32_t;

/// A state and the states to return to behind it.
struct Config {
  StateId state;
  StackId stack;
  auto operator<=>(const Config&) const = default;
};

/// A pushdown automaton made deterministic while it runs: sets of configurations are numbered, and what
/// follows a set by a byte is remembered. Stacks are lists that share their ends.
class StackAutomaton {
 public:
  using SetId = std::uint32_t;
  static constexpr SetId kDead = 0;
  static constexpr StackId kBottom = 0;
  /// Configurations of a set, and sets in all: beyond them a grammar counts as too ambiguous.
  static constexpr std::size_t kMaxConfigs = 4096;
  static constexpr std::size_t kMaxSets = 100'000;
  /// With more sets than this forget_unused() has something to do.
  static constexpr std::size_t kManySets = 10'000;

  explicit StackAutomaton(const Pushdown& pushdown);

  struct Return {
    StateId state;
    StackId below;
  };
  const Return& return_of(StackId stack) const { return stacks_[stack]; }

  SetId set_of(const Config& config);
  std::span<const Config> configs(SetId set) const { return sets_[set].configs; }
  /// Whether one of the set's configurations has returned from the bottom of its stack.
  bool is_finished(SetId set) const { return sets_[set].is_finished; }
  /// Whether it may be finished without a byte more.
  bool can_finish(SetId set) {
    if (!sets_[set].is_expanded) expand(set);
    return sets_[set].can_finish;
  }

  SetId next(SetId set, std::uint8_t byte) {
    const std::uint8_t byte_class = pushdown_.byte_classes()[byte];
    if (!sets_[set].is_expanded) expand(set);
    return sets_[set].next[byte_class];
  }

  /// Whether it keeps more sets than need be; forget_unused then drops all but what `set` needs, and returns
  /// its new number.
  bool has_many() const { return sets_.size() > kManySets || stacks_.size() > 20 * kManySets; }
  SetId forget_unused(SetId set);

 private:
  struct Set {
    std::vector<Config> configs;  // sorted
    std::vector<SetId> next;      // by class of bytes, once expanded
    bool is_finished = false;
    bool is_expanded = false;
    bool can_finish = false;
  };
  struct Hash {
    std::size_t operator()(const std::vector<Config>& configs) const;
  };

  StackId push(StateId state, StackId below);
  /// Adds a configuration, without those that do nothing but skip or return; kBottom's return finishes.
  void add(Config config, std::vector<Config>& configs, bool& is_finished) const;
  SetId number(std::vector<Config> configs, bool is_finished);
  void expand(SetId set);
  void reset();

  const Pushdown& pushdown_;
  std::vector<Set> sets_;
  std::unordered_map<std::vector<Config>, SetId, Hash> unfinished_, finished_;
  std::vector<Return> stacks_;  // [kBottom]: not used
  std::unordered_map<std::uint64_t, StackId> stack_ids_;
};

}  // namespace tessera::grammar
