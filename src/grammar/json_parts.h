#pragma once

#include <cstdint>
#include <optional>

#include "grammar/grammar.h"
#include "grammar/json_value.h"
#include "grammar/pushdown.h"

namespace tessera::grammar {

/// The parts of JSON that schemas share, made when first used.
class JsonParts {
 public:
  JsonParts(PushdownBuilder& builder, JsonSpacing spacing, std::size_t max_token_bytes)
      : builder_(builder), spacing_(spacing), max_token_bytes_(max_token_bytes) {}

  const Rule& string();  ///< any, in any spelling
  const Rule& integer();
  const Rule& number();
  const Rule& value();   ///< any value
  const Rule& object();  ///< any object
  const Rule& array();   ///< any array

  /// White space after an opening or comma, before a closing (or nothing), and after a colon.
  void add_space(StateId from, StateId to);
  void add_comma(StateId from, StateId to);
  void add_colon(StateId from, StateId to);

  /// Strings of min to max characters.
  void add_string_of_length(StateId from, StateId to, std::uint32_t min, std::uint32_t max);
  /// Strings whose texts an automaton accepts, each in the one spelling that needs no escape it could do
  /// without.
  void add_string_of(StateId from, StateId to, const CharAutomaton& texts);
  /// This value, objects' members in this order.
  void add_constant(StateId from, StateId to, const JsonValue& value);

 private:
  /// One character of a string that is not one ASCII byte: an escape, or UTF-8 of several bytes.
  const Rule& long_character();
  void add_plain_characters(StateId from, StateId to);
  void add_long_characters(StateId from, StateId to);
  void add_list(StateId from, StateId to, char open, char close, const Rule* key, const Rule& item);

  PushdownBuilder& builder_;
  JsonSpacing spacing_;
  std::size_t max_token_bytes_;
  std::optional<Rule> string_, integer_, number_, value_, object_, array_, space_, long_character_;
};

}  // namespace tessera::grammar
