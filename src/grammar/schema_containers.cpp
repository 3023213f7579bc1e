#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "core/text.h"
#include "grammar/merge_schemas.h"
#include "grammar/schema_compiler.h"

// Arrays and objects.

namespace tessera::grammar {
namespace {

using Kind = JsonValue::Kind;

}  // namespace

void SchemaCompiler::add_array(const JsonValue& schema, const std::string& path, StateId from, StateId to) {
  static const JsonValue kAny = boolean_schema(true);
  const std::uint32_t min = count_of(schema, "minItems", 0, path);
  std::uint32_t max = count_of(schema, "maxItems", RegexNode::kUnbounded, path);
  const JsonValue* prefix = schema.find("prefixItems");
  const JsonValue* items = schema.find("items");
  if (prefix != nullptr && !prefix->is(Kind::kArray)) fail(path, "\"prefixItems\" is no list");
  // Before the draft of 2020 "items" was the list, and "additionalItems" what follows it.
  const bool is_older = items != nullptr && items->is(Kind::kArray);
  if (is_older) {
    if (prefix != nullptr) fail(path, "\"items\" is a list beside \"prefixItems\"");
    prefix = items;
    items = schema.find("additionalItems");
  }
  const std::string prefix_path = path + (is_older ? "/items/" : "/prefixItems/"),
                    items_path = path + (is_older ? "/additionalItems" : "/items");
  const std::size_t num_prefix = prefix == nullptr ? 0 : prefix->items.size();
  if (items != nullptr && items->is(Kind::kBoolean) && !items->boolean) {
    max = std::min(max, static_cast<std::uint32_t>(num_prefix));
    items = nullptr;
  }
  if (min > max) return;

  const StateId opened = builder_.add_state();
  StateId at = builder_.add_state();
  builder_.add_bytes(from, opened, '[', '[');
  parts_.add_space(opened, at);
  const auto close = [&](StateId end, bool with_space) {
    const StateId closing = builder_.add_state();
    with_space ? parts_.add_space(end, closing) : builder_.add_skip(end, closing);
    builder_.add_bytes(closing, to, ']', ']');
  };
  const auto add_item = [&](StateId begin, StateId end, std::size_t index) {
    if (index < num_prefix) {
      add_schema(prefix->items[index], prefix_path + std::to_string(index), begin, end);
    } else {
      builder_.add_call(begin, end, rule_of(items == nullptr ? kAny : *items, items_path));
    }
  };
  if (min == 0) close(at, false);
  const bool is_bounded = max != RegexNode::kUnbounded;
  const std::size_t counted = is_bounded ? max : std::max<std::size_t>({min, num_prefix, 1});
  for (std::size_t i = 0; i < counted; ++i) {
    const StateId begin = builder_.add_state(), end = builder_.add_state();
    i == 0 ? builder_.add_skip(at, begin) : parts_.add_comma(at, begin);
    add_item(begin, end, i);
    if (i + 1 >= min) close(end, true);
    at = end;
  }
  if (!is_bounded) {
    const StateId begin = builder_.add_state();
    parts_.add_comma(at, begin);
    add_item(begin, at, counted);
  }
}

CharAutomaton SchemaCompiler::key_texts(const JsonValue& schema, const std::string& path) {
  const JsonValue* names = schema.find("propertyNames");
  if (names == nullptr || *names == boolean_schema(true)) return CharAutomaton::any_text();
  const std::string at = path + "/propertyNames";
  if (*names == boolean_schema(false)) return CharAutomaton::any_of({});
  if (!names->is(Kind::kObject))
    fail(at, fmt::format("a schema is {}; expected an object or a boolean", kind_name(names->kind)));
  check_keywords(*names, at);
  for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
    if (names->find(keyword) != nullptr) refuse(at, fmt::format("\"{}\" is not supported here", keyword));
  }
  if (const JsonValue* reference = names->find("$ref")) {
    if (!reference->is(Kind::kString)) fail(at, "\"$ref\" is no string");
    JsonValue rest = *names, inner;
    std::erase_if(rest.members, [](const auto& member) { return member.first == "$ref"; });
    inner.kind = Kind::kObject;
    inner.members = {{"propertyNames", merge(resolve(reference->text, at), rest, at)}};
    if (inner.members[0].second.find("$ref") != nullptr)
      refuse(at, "\"$ref\" to another \"$ref\" is not supported here");
    return key_texts(inner, path);
  }
  if (names->find("type") != nullptr) {
    const std::vector<std::string_view> types = types_of(*names, at);
    if (std::ranges::find(types, "string") == types.end()) return CharAutomaton::any_of({});
  }
  const std::string source = fmt::format("{} at {}", source_, printable(at, 200));
  std::optional<CharAutomaton> texts = texts_of(*names, at);
  if (!texts) {
    const std::uint32_t min = count_of(*names, "minLength", 0, at),
                        max = count_of(*names, "maxLength", RegexNode::kUnbounded, at);
    if (std::max(min, max == RegexNode::kUnbounded ? 0 : max) >= CharAutomaton::kMaxStates)
      refuse(at, "lengths of keys are too large");
    texts = min <= max ? CharAutomaton::lengths(min, max) : CharAutomaton::any_of({});
  }
  const auto restrict_to = [&](std::span<const JsonValue> values) {
    std::vector<std::string> allowed;
    for (const JsonValue& value : values) {
      if (value.is(Kind::kString)) allowed.push_back(value.text);
    }
    texts = texts->intersected(CharAutomaton::any_of(allowed), source);
  };
  if (const JsonValue* constant = names->find("const")) restrict_to(std::span(constant, 1));
  if (const JsonValue* values = names->find("enum")) {
    if (!values->is(Kind::kArray)) fail(at, "\"enum\" is no list");
    restrict_to(values->items);
  }
  return *texts;
}

/// What an object's schema says of its keys.
struct SchemaCompiler::ObjectKeys {
  const JsonValue* properties;  // null: none
  const JsonValue* required;    // null: none
  const JsonValue* additional;
  std::vector<PatternKey> patterns;
  CharAutomaton allowed;  // by propertyNames
  bool are_all_allowed;
  std::string path, source;
};

SchemaCompiler::ObjectKeys SchemaCompiler::keys_of(const JsonValue& schema, const std::string& path) {
  static const JsonValue kAny = boolean_schema(true);
  ObjectKeys keys = {.properties = schema.find("properties"),
                     .required = schema.find("required"),
                     .additional = schema.find("additionalProperties"),
                     .patterns = {},
                     .allowed = key_texts(schema, path),
                     .are_all_allowed = schema.find("propertyNames") == nullptr,
                     .path = path,
                     .source = fmt::format("{} at {}", source_, printable(path, 200))};
  const JsonValue* patterns = schema.find("patternProperties");
  if (keys.properties != nullptr && !keys.properties->is(Kind::kObject))
    fail(path, "\"properties\" is no object");
  if (patterns != nullptr && !patterns->is(Kind::kObject)) fail(path, "\"patternProperties\" is no object");
  if (keys.required != nullptr && !keys.required->is(Kind::kArray)) fail(path, "\"required\" is no list");
  if (keys.additional == nullptr) keys.additional = &kAny;
  if (patterns == nullptr) return keys;
  for (const auto& [pattern, value] : patterns->members) {
    PatternKey key{CharAutomaton::from_regex(pattern, true, keys.source), &value,
                   path + "/patternProperties/" + pattern};
    for (const PatternKey& other : keys.patterns) {
      if (!other.keys.intersected(key.keys, keys.source).is_empty()) {
        refuse(path,
               "\"patternProperties\" has patterns that fit the same key; expected patterns that exclude "
               "each other");
      }
    }
    keys.patterns.push_back(std::move(key));
  }
  return keys;
}

std::vector<SchemaCompiler::Member> SchemaCompiler::named_members(const ObjectKeys& keys) {
  std::vector<Member> members;
  std::unordered_set<std::string_view> required, known;  // lists may be as long as the schema
  if (keys.required != nullptr) {
    for (const JsonValue& name : keys.required->items) required.insert(name.text);
  }
  const auto is_required = [&](const std::string& name) { return required.contains(name); };
  const auto add_member = [&](const std::string& name, const JsonValue& value, const std::string& at) {
    if (keys.are_all_allowed || keys.allowed.accepts(name)) {
      members.push_back({name, &value, at, is_required(name)});
    } else if (is_required(name)) {
      members.push_back({name, &keep(boolean_schema(false)), at, true});
    }
  };
  if (keys.properties != nullptr) {
    for (const auto& [name, value] : keys.properties->members) {
      known.insert(name);
      const std::string at = keys.path + "/properties/" + name;
      const JsonValue* merged = &value;
      for (const PatternKey& key : keys.patterns) {
        if (key.keys.accepts(name)) merged = &keep(merge(*merged, *key.schema, at));
      }
      add_member(name, *merged, at);
    }
  }
  if (keys.required == nullptr) return members;
  for (const JsonValue& name : keys.required->items) {
    if (!name.is(Kind::kString)) fail(keys.path, "\"required\" has something that is no string");
    if (!known.insert(name.text).second) continue;
    const auto key =
        std::ranges::find_if(keys.patterns, [&](const PatternKey& k) { return k.keys.accepts(name.text); });
    add_member(name.text, key == keys.patterns.end() ? *keys.additional : *key->schema,
               keys.path + "/additionalProperties");
  }
  return members;
}

bool SchemaCompiler::add_other_members(const ObjectKeys& keys, std::span<const Member> named,
                                       StateId before_key, StateId after_value) {
  bool has_others = false;
  const auto add_others = [&](const CharAutomaton* texts, const JsonValue& value, const std::string& at) {
    if (value.is(Kind::kBoolean) && !value.boolean) return;
    if (texts != nullptr && texts->is_empty()) return;
    has_others = true;
    const StateId key_end = builder_.add_state(), before_value = builder_.add_state();
    if (texts == nullptr) {
      builder_.add_call(before_key, key_end, parts_.string());
    } else {
      parts_.add_string_of(before_key, key_end, *texts);
    }
    parts_.add_colon(key_end, before_value);
    builder_.add_call(before_value, after_value, rule_of(value, at));
  };
  std::vector<std::string> names;
  for (const Member& member : named) names.push_back(member.name);
  CharAutomaton others =
      names.empty() ? keys.allowed : keys.allowed.without(CharAutomaton::any_of(names), keys.source);
  for (const PatternKey& key : keys.patterns) {
    const CharAutomaton fitting = others.intersected(key.keys, keys.source);
    add_others(&fitting, *key.schema, key.path);
    others = others.without(key.keys, keys.source);
  }
  const bool are_all = keys.are_all_allowed && names.empty() && keys.patterns.empty();
  add_others(are_all ? nullptr : &others, *keys.additional, keys.path + "/additionalProperties");
  return has_others;
}

void SchemaCompiler::add_object(const JsonValue& schema, const std::string& path, StateId from, StateId to) {
  const ObjectKeys keys = keys_of(schema, path);
  const std::vector<Member> members = named_members(keys);
  const StateId before_key = builder_.add_state(), after_value = builder_.add_state();
  const bool has_others = add_other_members(keys, members, before_key, after_value);
  const std::uint32_t min = count_of(schema, "minProperties", 0, path),
                      max = count_of(schema, "maxProperties", RegexNode::kUnbounded, path);
  const auto num_required = static_cast<std::uint32_t>(std::ranges::count_if(members, &Member::is_required));
  if (members.empty()) {
    if (min > 1 && has_others)
      refuse(path,
             "\"minProperties\" above 1 is not supported, since keys could repeat; expected \"required\" "
             "properties");
    if (min > 0 && !has_others) return;
    return add_dictionary(from, to, before_key, after_value, min, has_others ? max : 0);
  }
  if (min > num_required)
    refuse(path,
           "\"minProperties\" above the number of \"required\" properties is not supported beside "
           "\"properties\"");
  if (max != RegexNode::kUnbounded && (has_others || max < members.size())) {
    refuse(
        path,
        "\"maxProperties\" is not supported beside \"properties\"; expected \"additionalProperties\": false");
  }
  const StateId opened = builder_.add_state();
  BetweenMembers at = {builder_.add_state(), builder_.add_state(), true};
  builder_.add_bytes(from, opened, '{', '{');
  parts_.add_space(opened, at.empty);
  at = add_named_members(members, at);
  if (has_others) {
    const StateId loop = builder_.add_state();
    if (at.may_be_empty) builder_.add_skip(at.empty, before_key);
    builder_.add_skip(at.filled, loop);
    parts_.add_comma(loop, before_key);
    builder_.add_skip(after_value, loop);
    at.filled = loop;
  }
  if (at.may_be_empty) builder_.add_bytes(at.empty, to, '}', '}');
  const StateId closing = builder_.add_state();
  parts_.add_space(at.filled, closing);
  builder_.add_bytes(closing, to, '}', '}');
}

SchemaCompiler::BetweenMembers SchemaCompiler::add_named_members(std::span<const Member> members,
                                                                 BetweenMembers at) {
  for (const Member& member : members) {
    const StateId begin = builder_.add_state(), key_end = builder_.add_state(),
                  value_begin = builder_.add_state();
    const StateId next_empty = builder_.add_state(), next_filled = builder_.add_state();
    if (at.may_be_empty) builder_.add_skip(at.empty, begin);
    parts_.add_comma(at.filled, begin);
    builder_.add_literal(begin, key_end, json_quoted(member.name));
    parts_.add_colon(key_end, value_begin);
    add_schema(*member.schema, member.path, value_begin, next_filled);
    if (!member.is_required) {
      if (at.may_be_empty) builder_.add_skip(at.empty, next_empty);
      builder_.add_skip(at.filled, next_filled);
    } else {
      at.may_be_empty = false;
    }
    at.empty = next_empty;
    at.filled = next_filled;
  }
  return at;
}

void SchemaCompiler::add_dictionary(StateId from, StateId to, StateId before_key, StateId after_value,
                                    std::uint32_t min, std::uint32_t max) {
  const StateId opened = builder_.add_state();
  StateId at = builder_.add_state();
  builder_.add_bytes(from, opened, '{', '{');
  parts_.add_space(opened, at);
  if (min == 0) builder_.add_bytes(at, to, '}', '}');
  if (max == 0) return;
  const auto close = [&](StateId end) {
    const StateId closing = builder_.add_state();
    parts_.add_space(end, closing);
    builder_.add_bytes(closing, to, '}', '}');
  };
  if (max == RegexNode::kUnbounded) {
    builder_.add_skip(at, before_key);
    parts_.add_comma(after_value, before_key);
    close(after_value);
    return;
  }
  const Rule member = builder_.add_rule();
  builder_.add_skip(member.start, before_key);
  builder_.add_skip(after_value, member.accept);
  for (std::uint32_t i = 0; i < max; ++i) {
    const StateId begin = builder_.add_state(), end = builder_.add_state();
    i == 0 ? builder_.add_skip(at, begin) : parts_.add_comma(at, begin);
    builder_.add_call(begin, end, member);
    if (i + 1 >= min) close(end);
    at = end;
  }
}

}  // namespace tessera::grammar
