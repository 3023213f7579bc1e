#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/stack_automaton.h"

namespace tessera::grammar {

/// Where one text stands in a grammar. For one thread at a time.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Grammar> grammar);

  /// Sets the bits of the tokens that may come next (bit i % 32 of mask[i / 32]), among them those that end
  /// the text where it may end. `mask` has at least mask_words() words, which are overwritten. Throws
  /// Error{kUnsupported} where the grammar is so ambiguous that its states are too many.
  void fill_mask(std::span<std::uint32_t> mask);

  /// Moves on by a token. Returns false, and stays where it was, if the token may not come.
  bool accept(std::int32_t token);
  /// The same by text.
  bool accept_text(std::string_view bytes);

  /// Whether the text may end here.
  bool may_end();
  /// Whether it has: a token that ends it was accepted, or nothing can follow.
  bool is_terminated() const;

  const Grammar& grammar() const { return *grammar_; }

 private:
  std::shared_ptr<const StateMask> mask_of(StateId state);
  std::shared_ptr<const StateMask> make_mask(StateId state);
  void add_mask(const Config& config, std::span<std::uint32_t> mask);

  std::shared_ptr<const Grammar> grammar_;
  StackAutomaton automaton_;
  StackAutomaton::SetId at_;
  bool ended_ = false;
};

}  // namespace tessera::grammar
