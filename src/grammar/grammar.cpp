#include "grammar/grammar.h"

#include <utility>

#include "grammar/char_automaton.h"
#include "grammar/json_parts.h"
#include "grammar/json_value.h"
#include "grammar/schema_compiler.h"

namespace tessera::grammar {

Grammar::Grammar(Pushdown pushdown, std::shared_ptr<const TokenTrie> tokens)
    : pushdown_(std::move(pushdown)), tokens_(std::move(tokens)) {}

std::shared_ptr<const StateMask> Grammar::find_mask(StateId state) const {
  const std::lock_guard lock(mutex_);
  const auto found = masks_.find(state);
  return found == masks_.end() ? nullptr : found->second;
}

void Grammar::keep_mask(StateId state, std::shared_ptr<const StateMask> mask) const {
  const std::size_t bytes =
      sizeof(StateMask) + 4 * (mask->words.size() + mask->tokens.size() + mask->returns.size());
  const std::lock_guard lock(mutex_);
  if (mask_bytes_ + bytes > kMaskMemory) return;
  if (masks_.try_emplace(state, std::move(mask)).second) mask_bytes_ += bytes;
}

std::shared_ptr<const Grammar> compile_json_schema(std::string_view schema,
                                                   std::shared_ptr<const TokenTrie> tokens,
                                                   JsonSpacing spacing) {
  const JsonValue document = parse_json(schema, "the JSON schema");
  const AutomataLimit limit("the JSON schema");
  PushdownBuilder builder;
  JsonParts parts(builder, spacing, tokens->max_token_bytes());
  const Rule root = builder.add_rule();
  SchemaCompiler(document, builder, parts, "the JSON schema").add(root.start, root.accept);
  return std::make_shared<Grammar>(builder.build(root), std::move(tokens));
}

std::shared_ptr<const Grammar> compile_json_schema_before(std::string_view close, std::string_view schema,
                                                          std::shared_ptr<const TokenTrie> tokens,
                                                          JsonSpacing spacing) {
  const JsonValue document = parse_json(schema, "the JSON schema");
  const AutomataLimit limit("the JSON schema");
  PushdownBuilder builder;
  JsonParts parts(builder, spacing, tokens->max_token_bytes());
  const Rule root = builder.add_rule();
  const StateId begin = builder.add_state(), end = builder.add_state(), closing = builder.add_state();
  const auto add_gap = [&](StateId from, StateId to) {
    builder.add_skip(from, to);
    builder.add_literal(from, to, " ");
    builder.add_literal(from, to, "\n");
  };
  add_gap(root.start, begin);
  SchemaCompiler(document, builder, parts, "the JSON schema").add(begin, end);
  if (close.empty()) {
    builder.add_skip(end, root.accept);
  } else {
    add_gap(end, closing);
    builder.add_literal(closing, root.accept, close);
  }
  return std::make_shared<Grammar>(builder.build(root), std::move(tokens));
}

std::shared_ptr<const Grammar> compile_json_object(std::shared_ptr<const TokenTrie> tokens,
                                                   JsonSpacing spacing) {
  PushdownBuilder builder;
  JsonParts parts(builder, spacing, tokens->max_token_bytes());
  const Rule& object = parts.object();
  return std::make_shared<Grammar>(builder.build(object), std::move(tokens));
}

std::shared_ptr<const Grammar> compile_regex(std::string_view pattern,
                                             std::shared_ptr<const TokenTrie> tokens) {
  const CharAutomaton texts = CharAutomaton::from_regex(pattern, false, "regex");
  PushdownBuilder builder;
  const Rule root = builder.add_rule();
  builder.add_texts(root.start, root.accept, texts, Spelling::kUtf8);
  return std::make_shared<Grammar>(builder.build(root), std::move(tokens));
}

}  // namespace tessera::grammar
