#include "grammar/matcher.h"

#include <algorithm>
#include <utility>

namespace tessera::grammar {
namespace {

/// Calls accept(node) for the nodes of a subtree that a set of configurations can go to. The subtree's root
/// itself is not asked.
template <class Accept>
void walk(StackAutomaton& automaton, const TokenTrie& tokens, std::uint32_t root, StackAutomaton::SetId start,
          Accept&& accept) {
  const std::span<const TokenTrie::Node> nodes = tokens.nodes();
  const std::size_t base = nodes[root].depth;
  std::vector<StackAutomaton::SetId> path(tokens.max_token_bytes() + 1 - base);  // the set behind each byte
  path[0] = start;
  for (std::uint32_t i = root + 1; i < nodes[root].end;) {
    const TokenTrie::Node& node = nodes[i];
    const std::size_t depth = node.depth - base;
    const StackAutomaton::SetId next = automaton.next(path[depth - 1], node.byte);
    if (next == StackAutomaton::kDead) {
      i = node.end;
      continue;
    }
    path[depth] = next;
    accept(i, next);
    ++i;
  }
}

void set_bit(std::span<std::uint32_t> mask, std::int32_t token) {
  mask[static_cast<std::size_t>(token) / 32] |= 1u << (static_cast<std::uint32_t>(token) % 32);
}

}  // namespace

Matcher::Matcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)),
      automaton_(grammar_->pushdown()),
      at_(automaton_.set_of({grammar_->pushdown().start(), StackAutomaton::kBottom})) {
  for (const StateId state : grammar_->pushdown().hot_states()) mask_of(state);
}

std::shared_ptr<const StateMask> Matcher::mask_of(StateId state) {
  state = grammar_->pushdown().representative(state);
  std::shared_ptr<const StateMask> mask = grammar_->find_mask(state);
  if (mask == nullptr) {
    mask = make_mask(state);
    grammar_->keep_mask(state, mask);
  }
  return mask;
}

std::shared_ptr<const StateMask> Matcher::make_mask(StateId state) {
  // With nothing known below the state: where it returns, what follows is the caller's.
  const TokenTrie& tokens = grammar_->tokens();
  const StackAutomaton::SetId start = automaton_.set_of({state, StackAutomaton::kBottom});
  auto mask = std::make_shared<StateMask>();
  if (automaton_.can_finish(start)) mask->returns.push_back(0);
  walk(automaton_, tokens, 0, start, [&](std::uint32_t i, StackAutomaton::SetId set) {
    const TokenTrie::Node& node = tokens.nodes()[i];
    tokens.for_each_token(node, [&](std::int32_t token) { mask->tokens.push_back(token); });
    if (node.end > i + 1 && automaton_.can_finish(set)) mask->returns.push_back(i);
  });
  if (mask->tokens.size() > tokens.mask_words()) {
    mask->words.resize(tokens.mask_words());
    for (const std::int32_t token : mask->tokens) set_bit(mask->words, token);
    mask->tokens = {};
  }
  mask->tokens.shrink_to_fit();
  return mask;
}

void Matcher::add_mask(const Config& config, std::span<std::uint32_t> mask) {
  const std::shared_ptr<const StateMask> own = mask_of(config.state);
  for (std::size_t i = 0; i < own->words.size(); ++i) mask[i] |= own->words[i];
  for (const std::int32_t token : own->tokens) set_bit(mask, token);
  if (config.stack == StackAutomaton::kBottom || own->returns.empty()) return;
  const StackAutomaton::Return& to = automaton_.return_of(config.stack);
  const Config caller{to.state, to.below};
  const StackAutomaton::SetId set = automaton_.set_of(caller);
  for (const std::uint32_t node : own->returns) {
    if (node == 0) {  // nothing of the token is read yet
      const std::vector<Config> configs(automaton_.configs(set).begin(), automaton_.configs(set).end());
      for (const Config& c : configs) add_mask(c, mask);
      continue;
    }
    const TokenTrie& tokens = grammar_->tokens();
    walk(automaton_, tokens, node, set, [&](std::uint32_t i, StackAutomaton::SetId) {
      tokens.for_each_token(tokens.nodes()[i], [&](std::int32_t token) { set_bit(mask, token); });
    });
  }
}

void Matcher::fill_mask(std::span<std::uint32_t> mask) {
  std::ranges::fill(mask, 0u);
  if (!ended_) {
    if (automaton_.has_many()) at_ = automaton_.forget_unused(at_);
    const std::vector<Config> configs(automaton_.configs(at_).begin(), automaton_.configs(at_).end());
    for (const Config& config : configs) add_mask(config, mask);
  }
  if (ended_ || automaton_.can_finish(at_)) {
    for (const std::int32_t token : grammar_->tokens().end_tokens()) {
      if (static_cast<std::size_t>(token) < grammar_->tokens().vocab_size()) set_bit(mask, token);
    }
  }
}

bool Matcher::accept_text(std::string_view bytes) {
  if (ended_) return bytes.empty();
  if (automaton_.has_many()) at_ = automaton_.forget_unused(at_);
  StackAutomaton::SetId set = at_;
  for (const char byte : bytes) {
    set = automaton_.next(set, static_cast<std::uint8_t>(byte));
    if (set == StackAutomaton::kDead) return false;
  }
  at_ = set;
  return true;
}

bool Matcher::accept(std::int32_t token) {
  const TokenTrie& tokens = grammar_->tokens();
  if (token < 0 || static_cast<std::size_t>(token) >= tokens.vocab_size()) return false;
  if (tokens.is_end(token)) {
    if (!may_end()) return false;
    ended_ = true;
    return true;
  }
  const std::string_view bytes = tokens.bytes(token);
  return !ended_ && !bytes.empty() && accept_text(bytes);
}

bool Matcher::may_end() { return ended_ || automaton_.can_finish(at_); }

bool Matcher::is_terminated() const { return ended_ || automaton_.configs(at_).empty(); }

}  // namespace tessera::grammar
