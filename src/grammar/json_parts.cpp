#include "grammar/json_parts.h"

#include <vector>

#include "grammar/number_texts.h"

namespace tessera::grammar {
namespace {

/// Of a new line's indentation; without a bound models may go on for ever.
constexpr int kMaxIndentation = 60;

}  // namespace

void JsonParts::add_plain_characters(StateId from, StateId to) {
  builder_.add_bytes(from, to, 0x20, 0x21);
  builder_.add_bytes(from, to, 0x23, 0x5B);
  builder_.add_bytes(from, to, 0x5D, 0x7F);
}

void JsonParts::add_long_characters(StateId from, StateId to) {
  builder_.add_chars(from, to, {{0x80, kLastCodePoint}}, Spelling::kUtf8);
  const StateId escape = builder_.add_state(), unicode = builder_.add_state();
  builder_.add_bytes(from, escape, '\\', '\\');
  for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) {
    builder_.add_bytes(escape, to, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c));
  }
  builder_.add_bytes(escape, unicode, 'u', 'u');
  const auto add_hex = [&](StateId a, StateId b) {
    builder_.add_bytes(a, b, '0', '9');
    builder_.add_bytes(a, b, 'A', 'F');
    builder_.add_bytes(a, b, 'a', 'f');
  };
  // The last two and three digits of any; surrogates come in pairs: D8 to DB, then DC to DF.
  const StateId two = builder_.add_state(), one = builder_.add_state(), three = builder_.add_state();
  add_hex(three, two);
  add_hex(two, one);
  add_hex(one, to);
  builder_.add_bytes(unicode, three, '0', '9');
  for (const auto& [first, last] : {std::pair{'A', 'C'}, {'a', 'c'}, {'E', 'F'}, {'e', 'f'}}) {
    builder_.add_bytes(unicode, three, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last));
  }
  const StateId after_d = builder_.add_state(), high_two = builder_.add_state(),
                high_one = builder_.add_state();
  for (const char d : {'D', 'd'})
    builder_.add_bytes(unicode, after_d, static_cast<std::uint8_t>(d), static_cast<std::uint8_t>(d));
  builder_.add_bytes(after_d, two, '0', '7');
  builder_.add_bytes(after_d, high_two, '8', '9');
  builder_.add_bytes(after_d, high_two, 'A', 'B');
  builder_.add_bytes(after_d, high_two, 'a', 'b');
  add_hex(high_two, high_one);
  const StateId low = builder_.add_state(), low_u = builder_.add_state(), low_d = builder_.add_state(),
                low_three = builder_.add_state();
  add_hex(high_one, low);
  builder_.add_bytes(low, low_u, '\\', '\\');
  builder_.add_bytes(low_u, low_d, 'u', 'u');
  for (const char d : {'D', 'd'})
    builder_.add_bytes(low_d, low_three, static_cast<std::uint8_t>(d), static_cast<std::uint8_t>(d));
  builder_.add_bytes(low_three, two, 'C', 'F');
  builder_.add_bytes(low_three, two, 'c', 'f');
}

const Rule& JsonParts::long_character() {
  if (!long_character_) {
    long_character_ = builder_.add_rule();
    add_long_characters(long_character_->start, long_character_->accept);
  }
  return *long_character_;
}

const Rule& JsonParts::string() {
  if (!string_) {
    // All within one rule, so that a character's end is no return: masks of whole strings are made once.
    string_ = builder_.add_rule();
    const StateId body = builder_.add_state();
    builder_.add_bytes(string_->start, body, '"', '"');
    add_plain_characters(body, body);
    add_long_characters(body, body);
    builder_.add_bytes(body, string_->accept, '"', '"');
    builder_.mark_hot(body);
  }
  return *string_;
}

const Rule& JsonParts::integer() {
  if (!integer_) {
    integer_ = builder_.add_rule();
    builder_.add_texts(integer_->start, integer_->accept, NumberTexts{true, {}, {}, {}}.texts("integer"),
                       Spelling::kUtf8);
  }
  return *integer_;
}

const Rule& JsonParts::number() {
  if (!number_) {
    number_ = builder_.add_rule();
    builder_.add_texts(number_->start, number_->accept, NumberTexts{}.texts("number"), Spelling::kUtf8);
  }
  return *number_;
}

void JsonParts::add_space(StateId from, StateId to) {
  if (spacing_ == JsonSpacing::kCompact) return builder_.add_skip(from, to);
  if (!space_) {
    space_ = builder_.add_rule();
    builder_.add_skip(space_->start, space_->accept);
    builder_.add_bytes(space_->start, space_->accept, ' ', ' ');
    StateId at = builder_.add_state();
    builder_.add_bytes(space_->start, at, '\n', '\n');
    for (int i = 0; i < kMaxIndentation; ++i) {
      builder_.add_skip(at, space_->accept);
      const StateId next = builder_.add_state();
      builder_.add_bytes(at, next, ' ', ' ');
      builder_.add_bytes(at, next, '\t', '\t');
      at = next;
    }
    builder_.add_skip(at, space_->accept);
  }
  builder_.add_call(from, to, *space_);
}

void JsonParts::add_comma(StateId from, StateId to) {
  const StateId comma = builder_.add_state();
  builder_.add_bytes(from, comma, ',', ',');
  add_space(comma, to);
}

void JsonParts::add_colon(StateId from, StateId to) {
  const StateId colon = builder_.add_state();
  builder_.add_bytes(from, colon, ':', ':');
  builder_.add_skip(colon, to);
  if (spacing_ == JsonSpacing::kReadable) builder_.add_bytes(colon, to, ' ', ' ');
}

void JsonParts::add_list(StateId from, StateId to, char open, char close, const Rule* key, const Rule& item) {
  const StateId opened = builder_.add_state(), first = builder_.add_state(), begin = builder_.add_state();
  const StateId end = builder_.add_state(), closing = builder_.add_state();
  builder_.add_bytes(from, opened, static_cast<std::uint8_t>(open), static_cast<std::uint8_t>(open));
  add_space(opened, first);
  builder_.add_skip(first, begin);
  builder_.add_bytes(first, to, static_cast<std::uint8_t>(close), static_cast<std::uint8_t>(close));
  StateId before_item = begin;
  if (key != nullptr) {
    const StateId named = builder_.add_state();
    before_item = builder_.add_state();
    builder_.add_call(begin, named, *key);
    add_colon(named, before_item);
  }
  builder_.add_call(before_item, end, item);
  add_comma(end, begin);
  add_space(end, closing);
  builder_.add_bytes(closing, to, static_cast<std::uint8_t>(close), static_cast<std::uint8_t>(close));
}

const Rule& JsonParts::value() {
  if (!value_) {
    value_ = builder_.add_rule();
    const StateId from = value_->start, to = value_->accept;
    for (const char* text : {"null", "true", "false"}) builder_.add_literal(from, to, text);
    builder_.add_call(from, to, string());
    builder_.add_call(from, to, number());
    builder_.add_call(from, to, object());
    builder_.add_call(from, to, array());
  }
  return *value_;
}

const Rule& JsonParts::object() {
  if (!object_) {
    object_ = builder_.add_rule();
    add_list(object_->start, object_->accept, '{', '}', &string(), value());
  }
  return *object_;
}

const Rule& JsonParts::array() {
  if (!array_) {
    array_ = builder_.add_rule();
    add_list(array_->start, array_->accept, '[', ']', nullptr, value());
  }
  return *array_;
}

void JsonParts::add_string_of_length(StateId from, StateId to, std::uint32_t min, std::uint32_t max) {
  const bool is_bounded = max != RegexNode::kUnbounded;
  if (min == 0 && !is_bounded) return builder_.add_call(from, to, string());
  const std::uint32_t last = is_bounded ? max : min;
  const StateId first = builder_.add_state();
  builder_.add_bytes(from, first, '"', '"');
  std::vector<StateId> counted = {first};
  for (std::uint32_t i = 0; i < last; ++i) {
    counted.push_back(builder_.add_state());
    add_plain_characters(counted[i], counted[i + 1]);
    builder_.add_call(counted[i], counted[i + 1], long_character());
  }
  if (!is_bounded) {
    add_plain_characters(counted[last], counted[last]);
    builder_.add_call(counted[last], counted[last], long_character());
  }
  for (std::uint32_t i = min; i <= last; ++i) builder_.add_bytes(counted[i], to, '"', '"');
  // Where no token reaches a bound, one count is like another.
  const auto share = [&](std::uint32_t begin, std::uint32_t end) {
    for (std::uint32_t i = begin; i < end; ++i) builder_.set_representative(counted[i], counted[begin]);
  };
  const auto reach = static_cast<std::uint32_t>(max_token_bytes_);
  if (min > reach) share(0, min - reach);
  if (is_bounded && max > reach && max - reach > min) share(min, max - reach);
}

void JsonParts::add_string_of(StateId from, StateId to, const CharAutomaton& texts) {
  const StateId begin = builder_.add_state(), end = builder_.add_state();
  builder_.add_bytes(from, begin, '"', '"');
  builder_.add_texts(begin, end, texts, Spelling::kJsonString);
  builder_.add_bytes(end, to, '"', '"');
}

void JsonParts::add_constant(StateId from, StateId to, const JsonValue& value) {
  if (!value.is(JsonValue::Kind::kArray) && !value.is(JsonValue::Kind::kObject)) {
    return builder_.add_literal(from, to, to_json(value));
  }
  const bool is_array = value.is(JsonValue::Kind::kArray);
  const std::size_t count = is_array ? value.items.size() : value.members.size();
  StateId at = builder_.add_state();
  builder_.add_literal(from, at, is_array ? "[" : "{");
  for (std::size_t i = 0; i < count; ++i) {
    StateId next = builder_.add_state();
    i == 0 ? add_space(at, next) : add_comma(at, next);
    at = next;
    if (!is_array) {
      const StateId named = builder_.add_state();
      next = builder_.add_state();
      builder_.add_literal(at, named, json_quoted(value.members[i].first));
      add_colon(named, next);
      at = next;
    }
    next = builder_.add_state();
    add_constant(at, next, is_array ? value.items[i] : value.members[i].second);
    at = next;
  }
  const StateId closing = builder_.add_state();
  add_space(at, closing);
  builder_.add_literal(closing, to, is_array ? "]" : "}");
}

}  // namespace tessera::grammar
