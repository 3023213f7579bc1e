#include "grammar/schema_compiler.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/text.h"
#include "grammar/formats.h"
#include "grammar/merge_schemas.h"
#include "tessera/error.h"

namespace tessera::grammar {
namespace {

using Kind = JsonValue::Kind;

constexpr int kMaxSchemaDepth = 100;           // of schemas within schemas, merged ones included
constexpr std::size_t kMaxMerged = 1'000'000;  // values of all schemas that are merged
constexpr std::uint32_t kMaxCount = 100'000;

/// Keywords that say something about values of one type only.
struct TypedKeyword {
  std::string_view keyword, type;
};
constexpr std::array kTypedKeywords = {
    TypedKeyword{"minLength", "string"},         TypedKeyword{"maxLength", "string"},
    TypedKeyword{"pattern", "string"},           TypedKeyword{"format", "string"},
    TypedKeyword{kPatterns, "string"},           TypedKeyword{kFormatsKey, "string"},
    TypedKeyword{"minimum", "number"},           TypedKeyword{"maximum", "number"},
    TypedKeyword{"exclusiveMinimum", "number"},  TypedKeyword{"exclusiveMaximum", "number"},
    TypedKeyword{"multipleOf", "number"},        TypedKeyword{"items", "array"},
    TypedKeyword{"prefixItems", "array"},        TypedKeyword{"additionalItems", "array"},
    TypedKeyword{"minItems", "array"},           TypedKeyword{"maxItems", "array"},
    TypedKeyword{"uniqueItems", "array"},        TypedKeyword{"properties", "object"},
    TypedKeyword{"required", "object"},          TypedKeyword{"additionalProperties", "object"},
    TypedKeyword{"patternProperties", "object"}, TypedKeyword{"propertyNames", "object"},
    TypedKeyword{"minProperties", "object"},     TypedKeyword{"maxProperties", "object"}};
constexpr std::array<std::string_view, 8> kOtherKeywords = {"type",  "enum",  "const", "anyOf",
                                                            "oneOf", "allOf", "$ref",  "$anchor"};

std::string_view type_of_keyword(std::string_view keyword) {
  const auto found = std::ranges::find(kTypedKeywords, keyword, &TypedKeyword::keyword);
  return found == kTypedKeywords.end() ? std::string_view() : found->type;
}

/// A schema's members but for some and annotations, as a schema.
JsonValue without(const JsonValue& schema, std::string_view keyword) {
  JsonValue rest;
  rest.kind = Kind::kObject;
  for (const auto& member : schema.members) {
    if (member.first != keyword && !is_annotation(member.first)) rest.members.push_back(member);
  }
  return rest;
}

/// The values of a schema that does nothing but list them; empty for any other.
std::span<const JsonValue> listed_values(const JsonValue& schema) {
  std::span<const JsonValue> values;
  bool is_first = true;
  for (const auto& [keyword, value] : schema.members) {
    if (is_annotation(keyword)) continue;
    const bool is_list = keyword == "enum" && value.is(Kind::kArray);
    if (!std::exchange(is_first, false) || (keyword != "const" && !is_list)) return {};
    values = is_list ? std::span<const JsonValue>(value.items) : std::span(&value, 1);
  }
  return values;
}

bool fits_type(const JsonValue& value, std::string_view type) {
  if (type == "integer") {
    if (!value.is(Kind::kNumber)) return false;
    const std::optional<Decimal> number = parse_decimal(value.text);
    if (number) return number->fraction.empty();
    const double value_in_double = std::strtod(value.text.c_str(), nullptr);
    return value_in_double == std::floor(value_in_double);
  }
  return kind_name(value.kind) == type;
}

}  // namespace

SchemaCompiler::SchemaCompiler(const JsonValue& document, PushdownBuilder& builder, JsonParts& parts,
                               std::string source)
    : document_(document), builder_(builder), parts_(parts), source_(std::move(source)) {}

void SchemaCompiler::add(StateId from, StateId to) {
  add_schema(document_, "#", from, to);
  while (!pending_.empty()) {
    const Pending next = std::move(pending_.back());
    pending_.pop_back();
    add_schema(*next.schema, next.path, next.rule.start, next.rule.accept);
  }
}

void SchemaCompiler::fail(const std::string& path, const std::string& message) const {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} at {}: {}", source_, printable(path, 200), message));
}

void SchemaCompiler::refuse(const std::string& path, const std::string& message) const {
  throw Error(ErrorCode::kUnsupported, fmt::format("{} at {}: {}", source_, printable(path, 200), message));
}

const JsonValue& SchemaCompiler::keep(JsonValue schema) { return made_.emplace_back(std::move(schema)); }

JsonValue SchemaCompiler::merge(const JsonValue& a, const JsonValue& b, const std::string& path) {
  merged_values_ += num_values(a) + num_values(b);
  if (merged_values_ > kMaxMerged) {
    refuse(path,
           fmt::format("combining schemas takes more than {} values of them; expected fewer alternatives, "
                       "or less beside them",
                       kMaxMerged));
  }
  return merge_schemas(a, b, path);
}

void SchemaCompiler::check_keywords(const JsonValue& schema, const std::string& path) const {
  for (const auto& [keyword, value] : schema.members) {
    if (is_annotation(keyword) || !type_of_keyword(keyword).empty() ||
        std::ranges::find(kOtherKeywords, keyword) != kOtherKeywords.end()) {
      continue;
    }
    refuse(path, fmt::format("the keyword \"{}\" is not supported; expected a schema without it",
                             printable(keyword)));
  }
  if (const JsonValue* unique = schema.find("uniqueItems");
      unique != nullptr && !(*unique == boolean_schema(false))) {
    refuse(path, "\"uniqueItems\" is not supported; expected a schema without it");
  }
}

void SchemaCompiler::add_schema(const JsonValue& schema, const std::string& path, StateId from, StateId to) {
  if (schema.is(Kind::kBoolean)) {
    if (schema.boolean) builder_.add_call(from, to, parts_.value());
    return;
  }
  if (!schema.is(Kind::kObject))
    fail(path, fmt::format("a schema is {}; expected an object or a boolean", kind_name(schema.kind)));
  if (++depth_ > kMaxSchemaDepth) {
    refuse(path,
           fmt::format("schemas stand more than {} deep in each other, or combine themselves without end",
                       kMaxSchemaDepth));
  }
  check_keywords(schema, path);
  if (!add_combined(schema, path, from, to)) add_keywords(schema, path, from, to);
  --depth_;
}

bool SchemaCompiler::add_combined(const JsonValue& schema, const std::string& path, StateId from,
                                  StateId to) {
  for (const std::string_view keyword : {"anyOf", "oneOf"}) {
    const JsonValue* alternatives = schema.find(keyword);
    if (alternatives == nullptr) continue;
    if (!alternatives->is(Kind::kArray) || alternatives->items.empty())
      fail(path, fmt::format("\"{}\" is no list of schemas", keyword));
    const JsonValue rest = without(schema, keyword);
    const bool is_type_alone =
        std::ranges::all_of(rest.members, [](const auto& member) { return member.first == "type"; });
    std::vector<JsonValue> listed;  // by alternatives: one automaton, as if it were one list
    for (std::size_t i = 0; i < alternatives->items.size(); ++i) {
      const std::string at = fmt::format("{}/{}/{}", path, keyword, i);
      const JsonValue& alternative = alternatives->items[i];
      const std::span<const JsonValue> values = listed_values(alternative);
      if (is_type_alone && !values.empty()) {
        listed.insert(listed.end(), values.begin(), values.end());
        continue;
      }
      add_schema(rest.members.empty() ? alternative : keep(merge(alternative, rest, at)), at, from, to);
    }
    if (!listed.empty()) add_values(listed, rest, path, from, to);
    return true;
  }
  if (const JsonValue* reference = schema.find("$ref")) {
    if (!reference->is(Kind::kString)) fail(path, "\"$ref\" is no string");
    const JsonValue& target = resolve(reference->text, path);
    const JsonValue rest = without(schema, "$ref");
    if (rest.members.empty()) {
      builder_.add_call(from, to, rule_of(target, reference->text));
    } else {
      add_schema(keep(merge(target, rest, path)), path, from, to);
    }
    return true;
  }
  if (const JsonValue* all = schema.find("allOf")) {
    if (!all->is(Kind::kArray) || all->items.empty()) fail(path, "\"allOf\" is no list of schemas");
    JsonValue merged = without(schema, "allOf");
    if (merged.members.empty() && all->items.size() == 1) {
      add_schema(all->items[0], path + "/allOf/0", from, to);
      return true;
    }
    for (std::size_t i = 0; i < all->items.size(); ++i) {
      const std::string at = fmt::format("{}/allOf/{}", path, i);
      if (all->items[i].is(Kind::kObject)) check_keywords(all->items[i], at);
      merged = merge(merged, all->items[i], at);
    }
    add_schema(keep(std::move(merged)), path, from, to);
    return true;
  }
  return false;
}

void SchemaCompiler::add_keywords(const JsonValue& schema, const std::string& path, StateId from,
                                  StateId to) {
  if (const JsonValue* constant = schema.find("const")) {
    if (schema.find("enum") != nullptr) {
      return add_schema(keep(merge(schema, boolean_schema(true), path)), path, from, to);
    }
    return add_values(std::span(constant, 1), schema, path, from, to);
  }
  if (const JsonValue* values = schema.find("enum")) {
    if (!values->is(Kind::kArray)) fail(path, "\"enum\" is no list");
    return add_values(values->items, schema, path, from, to);
  }
  const std::vector<std::string_view> types = types_of(schema, path);
  if (types.empty()) return builder_.add_call(from, to, parts_.value());
  for (const std::string_view type : types) add_type(type, schema, path, from, to);
}

std::vector<std::string_view> SchemaCompiler::types_of(const JsonValue& schema,
                                                       const std::string& path) const {
  std::vector<std::string_view> types;
  const auto add = [&](std::string_view type) {
    if (std::ranges::find(types, type) == types.end()) types.push_back(type);
  };
  if (const JsonValue* type = schema.find("type")) {
    const std::vector<JsonValue> list = type->is(Kind::kArray) ? type->items : std::vector<JsonValue>{*type};
    for (const JsonValue& name : list) {
      const auto known = std::ranges::find(kSchemaTypes, std::string_view(name.text));
      if (!name.is(Kind::kString) || known == kSchemaTypes.end())
        fail(path, fmt::format("\"type\" is {}; expected a type of JSON or a list of them",
                               printable(to_json(name))));
      add(*known);
    }
    if (std::ranges::find(types, "number") != types.end()) std::erase(types, "integer");
    if (types.empty()) add("");  // nothing fits
    return types;
  }
  for (const auto& [keyword, value] : schema.members) {
    if (const std::string_view type = type_of_keyword(keyword); !type.empty()) add(type);
  }
  return types;
}

void SchemaCompiler::add_values(std::span<const JsonValue> values, const JsonValue& schema,
                                const std::string& path, StateId from, StateId to) {
  std::vector<const JsonValue*> fitting;
  const bool has_types = schema.find("type") != nullptr;
  const std::vector<std::string_view> types = types_of(schema, path);
  for (const JsonValue& value : values) {
    const auto fits = [&](std::string_view type) { return fits_type(value, type); };
    if (!has_types || std::ranges::any_of(types, fits)) fitting.push_back(&value);
  }
  for (const auto& [keyword, value] : schema.members) {
    if (keyword == "enum" || keyword == "const" || keyword == "type" || is_annotation(keyword)) continue;
    // Of other types than the values' it says nothing: OpenAPI's documents have "format" beside numbers.
    const std::string_view type = type_of_keyword(keyword);
    const auto is_meant = [&](const JsonValue* listed) { return fits_type(*listed, type); };
    if (!type.empty() && std::ranges::none_of(fitting, is_meant)) continue;
    refuse(path, fmt::format("\"{}\" beside \"enum\" or \"const\" is not supported; expected only values "
                             "that fit it, without it",
                             printable(written(keyword))));
  }
  std::vector<std::string> texts;
  for (const JsonValue* value : fitting) {
    if (value->is(Kind::kArray) || value->is(Kind::kObject)) {
      parts_.add_constant(from, to, *value);
    } else {
      texts.push_back(to_json(*value));
    }
  }
  builder_.add_literals(from, to, std::move(texts));
}

void SchemaCompiler::add_type(std::string_view type, const JsonValue& schema, const std::string& path,
                              StateId from, StateId to) {
  if (type == "null") {
    builder_.add_literal(from, to, "null");
  } else if (type == "boolean") {
    builder_.add_literal(from, to, "true");
    builder_.add_literal(from, to, "false");
  } else if (type == "string") {
    add_string(schema, path, from, to);
  } else if (type == "integer" || type == "number") {
    add_number(type == "integer", schema, path, from, to);
  } else if (type == "array") {
    add_array(schema, path, from, to);
  } else if (type == "object") {
    add_object(schema, path, from, to);
  }
}

std::uint32_t SchemaCompiler::count_of(const JsonValue& schema, std::string_view keyword,
                                       std::uint32_t otherwise, const std::string& path) const {
  const JsonValue* value = schema.find(keyword);
  if (value == nullptr) return otherwise;
  const std::optional<Decimal> number = value->is(Kind::kNumber) ? parse_decimal(value->text) : std::nullopt;
  if (!number || number->is_negative || !number->fraction.empty())
    fail(path,
         fmt::format("\"{}\" is {}; expected an integer of at least 0", keyword, printable(to_json(*value))));
  if (number->whole.size() > 6 || std::strtoul(number->whole.c_str(), nullptr, 10) > kMaxCount) {
    refuse(path, fmt::format("\"{}\" is {}; expected at most {}", keyword, number->whole, kMaxCount));
  }
  return static_cast<std::uint32_t>(std::strtoul(number->whole.c_str(), nullptr, 10));
}

std::optional<CharAutomaton> SchemaCompiler::texts_of(const JsonValue& schema,
                                                      const std::string& path) const {
  std::optional<CharAutomaton> texts;
  const std::string source = fmt::format("{} at {}", source_, printable(path, 200));
  const auto restrict = [&](const CharAutomaton& more) {
    texts = texts ? texts->intersected(more, source) : more;
  };
  const auto each = [&](std::string_view keyword, std::string_view list, auto&& body) {
    const JsonValue *one = schema.find(keyword), *several = schema.find(list);
    const auto check = [&](const JsonValue& value) {
      if (!value.is(Kind::kString))
        fail(path, fmt::format("\"{}\" is {}; expected a string", keyword, kind_name(value.kind)));
      body(value.text);
    };
    if (one != nullptr) check(*one);
    if (several != nullptr) std::ranges::for_each(several->items, check);
  };
  std::uint32_t longest_of_formats = RegexNode::kUnbounded;
  each("pattern", kPatterns,
       [&](const std::string& pattern) { restrict(CharAutomaton::from_regex(pattern, true, source)); });
  each("format", kFormatsKey, [&](const std::string& format) {
    const std::optional<CharAutomaton> known = format_texts(format, source);
    if (!known)
      refuse(path, fmt::format("\"format\" is \"{}\", which is not supported; expected one of {}",
                               printable(format), format_list()));
    restrict(*known);
    longest_of_formats = std::min(longest_of_formats, format_longest(format));
  });
  if (!texts) return texts;
  const std::uint32_t min = count_of(schema, "minLength", 0, path);
  std::uint32_t max = count_of(schema, "maxLength", RegexNode::kUnbounded, path);
  if (min > max) return CharAutomaton::any_of({});
  // A bound beyond what the formats allow says nothing, but would multiply their states.
  if (max != RegexNode::kUnbounded) max = std::min(max, std::max(min, longest_of_formats));
  if (min > 0 || max != RegexNode::kUnbounded) {
    const std::uint32_t longest = max == RegexNode::kUnbounded ? min : max;
    if (longest >= CharAutomaton::kMaxStates)
      refuse(path, fmt::format("lengths of up to {} with a pattern or format; expected less than {}", longest,
                               CharAutomaton::kMaxStates));
    restrict(CharAutomaton::lengths(min, max));
  }
  return texts;
}

void SchemaCompiler::add_string(const JsonValue& schema, const std::string& path, StateId from, StateId to) {
  // Automata with lengths are large: the same one is made once.
  JsonValue form;
  form.kind = Kind::kObject;
  for (const std::string_view keyword :
       {std::string_view("pattern"), kPatterns, std::string_view("format"), kFormatsKey,
        std::string_view("minLength"), std::string_view("maxLength")}) {
    if (const JsonValue* value = schema.find(keyword)) form.members.emplace_back(keyword, *value);
  }
  const std::string key = to_json(form);
  auto known = strings_.find(key);
  if (known == strings_.end()) {
    if (const std::optional<CharAutomaton> texts = texts_of(schema, path)) {
      std::optional<Rule> rule;
      if (!texts->is_empty()) {
        rule = builder_.add_rule();
        parts_.add_string_of(rule->start, rule->accept, *texts);
      }
      known = strings_.emplace(key, rule).first;
    }
  }
  if (known != strings_.end()) {
    if (known->second) builder_.add_call(from, to, *known->second);
    return;
  }
  const std::uint32_t min = count_of(schema, "minLength", 0, path),
                      max = count_of(schema, "maxLength", RegexNode::kUnbounded, path);
  if (min <= max) parts_.add_string_of_length(from, to, min, max);
}

std::optional<Bound> SchemaCompiler::bound_of(const JsonValue& schema, std::string_view inclusive,
                                              std::string_view exclusive, bool is_lower,
                                              const std::string& path) const {
  std::optional<Bound> bound;
  for (const std::string_view keyword : {inclusive, exclusive}) {
    const JsonValue* value = schema.find(keyword);
    if (value == nullptr) continue;
    if (!value->is(Kind::kNumber))
      fail(path, fmt::format("\"{}\" is {}; expected a number", keyword, printable(to_json(*value))));
    std::optional<Decimal> decimal = parse_decimal(value->text);
    bool is_exclusive = keyword == exclusive;
    const double number = std::strtod(value->text.c_str(), nullptr);
    if (!decimal && (is_lower ? number < -1e39 : number > 1e39)) {
      // Bounds that leave all but the largest numbers, such as those of fp64, leave those of 39 digits.
      decimal = Decimal{is_lower, std::string(39, '9'), ""};
      is_exclusive = false;
    }
    if (!decimal)
      refuse(path, fmt::format("\"{}\" is {}; expected a number of at most 40 digits", keyword,
                               printable(value->text)));
    if (bound) {
      const std::strong_ordering order = compare(*decimal, bound->value);
      const bool is_tighter = is_lower ? order > 0 : order < 0;
      if (!is_tighter && !(order == 0 && is_exclusive)) continue;
    }
    bound = Bound{*decimal, is_exclusive};
  }
  return bound;
}

void SchemaCompiler::add_number(bool is_integer, const JsonValue& schema, const std::string& path,
                                StateId from, StateId to) {
  NumberTexts number{is_integer, bound_of(schema, "minimum", "exclusiveMinimum", true, path),
                     bound_of(schema, "maximum", "exclusiveMaximum", false, path), std::nullopt};
  if (const JsonValue* multiple = schema.find("multipleOf")) {
    number.multiple_of = multiple->is(Kind::kNumber) ? parse_decimal(multiple->text) : std::nullopt;
    if (!number.multiple_of || number.multiple_of->is_negative || number.multiple_of->is_zero()) {
      fail(path, fmt::format("\"multipleOf\" is {}; expected a number above 0 of at most 40 digits",
                             printable(to_json(*multiple))));
    }
  }
  if (!number.lower && !number.upper && !number.multiple_of) {
    return builder_.add_call(from, to, is_integer ? parts_.integer() : parts_.number());
  }
  const CharAutomaton texts = number.texts(fmt::format("{} at {}", source_, printable(path, 200)));
  if (!texts.is_empty()) builder_.add_texts(from, to, texts, Spelling::kUtf8);
}

const JsonValue& SchemaCompiler::resolve(const std::string& reference, const std::string& path) const {
  if (!reference.starts_with('#')) {
    refuse(path, fmt::format("\"$ref\" is \"{}\"; expected a part of the same document: # or #/…",
                             printable(reference)));
  }
  const JsonValue* at = &document_;
  std::size_t begin = 1;
  while (begin < reference.size()) {
    if (reference[begin] != '/')
      refuse(path, fmt::format("\"$ref\" is \"{}\"; expected a path: #/…", printable(reference)));
    const std::size_t end = std::min(reference.find('/', begin + 1), reference.size());
    std::string name;
    for (std::size_t i = begin + 1; i < end; ++i) {
      if (reference[i] == '~' && i + 1 < end) {
        name += reference[++i] == '1' ? '/' : '~';
      } else if (reference[i] == '%' && i + 2 < end) {
        name += static_cast<char>(std::strtol(reference.substr(i + 1, 2).c_str(), nullptr, 16));
        i += 2;
      } else {
        name += reference[i];
      }
    }
    const JsonValue* next = nullptr;
    if (at->is(Kind::kObject)) next = at->find(name);
    if (at->is(Kind::kArray) && !name.empty() && name.size() < 9 &&
        name.find_first_not_of("0123456789") == name.npos) {
      const std::size_t index = std::strtoul(name.c_str(), nullptr, 10);
      if (index < at->items.size()) next = &at->items[index];
    }
    if (next == nullptr)
      fail(path, fmt::format("\"$ref\" is \"{}\", which is not there", printable(reference)));
    at = next;
    begin = end;
  }
  return *at;
}

const Rule& SchemaCompiler::rule_of(const JsonValue& schema, const std::string& path) {
  const auto found = rules_.find(&schema);
  if (found != rules_.end()) return found->second;
  const Rule& rule = rules_[&schema] = builder_.add_rule();
  pending_.push_back(
      {&schema, path, rule});  // made one after the other, however long a chain of references is
  return rule;
}

}  // namespace tessera::grammar
