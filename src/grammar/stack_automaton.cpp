#include "grammar/stack_automaton.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "tessera/error.h"

namespace tessera::grammar {
namespace {

[[noreturn]] void too_ambiguous() {
  throw Error(
      ErrorCode::kUnsupported,
      "the grammar can be read in too many ways at once; expected a schema whose alternatives differ sooner");
}

}  // namespace

std::size_t StackAutomaton::Hash::operator()(const std::vector<Config>& configs) const {
  std::uint64_t hash = 0x9E3779B97F4A7C15u;
  for (const Config& c : configs) {
    hash ^= (std::uint64_t{c.state} << 32 | c.stack) + (hash << 6) + (hash >> 2);
    hash *= 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 33;
  }
  return static_cast<std::size_t>(hash);
}

StackAutomaton::StackAutomaton(const Pushdown& pushdown) : pushdown_(pushdown) { reset(); }

void StackAutomaton::reset() {
  sets_.clear();
  unfinished_.clear();
  finished_.clear();
  stacks_.assign(1, {0, kBottom});
  stack_ids_.clear();
  sets_.emplace_back();
  sets_[kDead].is_expanded = true;
  sets_[kDead].next.assign(static_cast<std::size_t>(pushdown_.num_byte_classes()), kDead);
  unfinished_.emplace(std::vector<Config>(), kDead);
}

StackId StackAutomaton::push(StateId state, StackId below) {
  // What would only return needs no entry of its own.
  while (pushdown_.accepts(state) && pushdown_.bytes(state).empty() && pushdown_.calls(state).empty() &&
         pushdown_.skips(state).empty()) {
    if (below == kBottom) break;
    state = stacks_[below].state;
    below = stacks_[below].below;
  }
  const auto [entry, is_new] =
      stack_ids_.try_emplace(std::uint64_t{state} << 32 | below, static_cast<StackId>(stacks_.size()));
  if (is_new) stacks_.push_back({state, below});
  return entry->second;
}

void StackAutomaton::add(Config config, std::vector<Config>& configs, bool& is_finished) const {
  while (pushdown_.bytes(config.state).empty() && pushdown_.calls(config.state).empty()) {
    const std::span<const StateId> skips = pushdown_.skips(config.state);
    if (pushdown_.accepts(config.state) && skips.empty()) {
      if (config.stack == kBottom) {
        is_finished = true;
        return;
      }
      const Return& to = stacks_[config.stack];
      config = {to.state, to.below};
    } else if (!pushdown_.accepts(config.state) && skips.size() == 1 && skips[0] != config.state) {
      config.state = skips[0];
    } else {
      break;
    }
  }
  configs.push_back(config);
}

StackAutomaton::SetId StackAutomaton::number(std::vector<Config> configs, bool is_finished) {
  std::ranges::sort(configs);
  configs.erase(std::unique(configs.begin(), configs.end()), configs.end());
  if (configs.size() > kMaxConfigs) too_ambiguous();
  auto& numbers = is_finished ? finished_ : unfinished_;
  const auto found = numbers.find(configs);
  if (found != numbers.end()) return found->second;
  if (sets_.size() >= kMaxSets) too_ambiguous();
  const SetId id = static_cast<SetId>(sets_.size());
  Set set;
  set.configs = configs;
  set.is_finished = is_finished;
  sets_.push_back(std::move(set));
  numbers.emplace(std::move(configs), id);
  return id;
}

StackAutomaton::SetId StackAutomaton::set_of(const Config& config) {
  std::vector<Config> configs;
  bool is_finished = false;
  add(config, configs, is_finished);
  return number(std::move(configs), is_finished);
}

void StackAutomaton::expand(SetId id) {
  // All that is reached without a byte.
  std::vector<Config> reached = sets_[id].configs;
  std::set<Config> seen(reached.begin(), reached.end());
  bool can_finish = sets_[id].is_finished;
  const auto visit = [&](const Config& config) {
    if (!seen.insert(config).second) return;
    if (seen.size() > 16 * kMaxConfigs) too_ambiguous();
    reached.push_back(config);
  };
  struct Step {
    std::uint8_t first, last;
    Config to;
  };
  std::vector<Step> steps;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const Config config = reached[i];
    for (const auto& edge : pushdown_.bytes(config.state)) {
      steps.push_back({pushdown_.byte_classes()[edge.first],
                       pushdown_.byte_classes()[edge.last],
                       {edge.target, config.stack}});
    }
    for (const StateId target : pushdown_.skips(config.state)) visit({target, config.stack});
    for (const auto& edge : pushdown_.calls(config.state))
      visit({edge.start, push(edge.target, config.stack)});
    if (pushdown_.accepts(config.state)) {
      if (config.stack == kBottom) {
        can_finish = true;
      } else {
        visit({stacks_[config.stack].state, stacks_[config.stack].below});
      }
    }
  }
  const int num_classes = pushdown_.num_byte_classes();
  std::vector<std::vector<Config>> targets(static_cast<std::size_t>(num_classes));
  std::vector<std::uint8_t> finished(static_cast<std::size_t>(num_classes));
  for (const Step& step : steps) {
    std::vector<Config> to;
    bool is_finished = false;
    add(step.to, to, is_finished);
    for (std::size_t c = step.first; c <= step.last; ++c) {
      targets[c].insert(targets[c].end(), to.begin(), to.end());
      if (is_finished) finished[c] = 1;
    }
  }
  std::vector<SetId> next(static_cast<std::size_t>(num_classes), kDead);
  for (std::size_t c = 0; c < next.size(); ++c) {
    if (!targets[c].empty() || finished[c] != 0) next[c] = number(std::move(targets[c]), finished[c] != 0);
  }
  Set& set = sets_[id];  // numbering moved it
  set.next = std::move(next);
  set.can_finish = can_finish;
  set.is_expanded = true;
}

StackAutomaton::SetId StackAutomaton::forget_unused(SetId id) {
  const Set set = sets_[id];
  const std::vector<Return> stacks = stacks_;
  reset();
  std::unordered_map<StackId, StackId> renumbered = {{kBottom, kBottom}};
  const auto copy = [&](StackId stack) {
    std::vector<StackId> path;  // from the top down to what is copied
    for (; !renumbered.contains(stack); stack = stacks[stack].below) path.push_back(stack);
    while (!path.empty()) {
      const StackId top = path.back();
      path.pop_back();
      renumbered[top] = push(stacks[top].state, renumbered.at(stacks[top].below));
    }
  };
  std::vector<Config> configs;
  for (const Config& config : set.configs) {
    copy(config.stack);
    configs.push_back({config.state, renumbered.at(config.stack)});
  }
  return number(std::move(configs), set.is_finished);
}

}  // namespace tessera::grammar
