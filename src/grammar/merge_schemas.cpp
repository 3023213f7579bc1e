#include "grammar/merge_schemas.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/text.h"
#include "grammar/number_texts.h"
#include "tessera/error.h"

namespace tessera::grammar {
namespace {

using Kind = JsonValue::Kind;

JsonValue string_value(std::string_view text) {
  JsonValue value;
  value.kind = Kind::kString;
  value.text = text;
  return value;
}

JsonValue array_value(std::vector<JsonValue> items) {
  JsonValue value;
  value.kind = Kind::kArray;
  value.items = std::move(items);
  return value;
}

std::vector<JsonValue> as_list(const JsonValue& value) {
  return value.is(Kind::kArray) ? value.items : std::vector<JsonValue>{value};
}

void set(JsonValue& schema, std::string_view key, JsonValue value) {
  for (auto& [name, old] : schema.members) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  schema.members.emplace_back(std::string(key), std::move(value));
}

void append(JsonValue& schema, std::string_view key, JsonValue item) {
  const JsonValue* old = schema.find(key);
  std::vector<JsonValue> items = old == nullptr ? std::vector<JsonValue>() : old->items;
  items.push_back(std::move(item));
  set(schema, key, array_value(std::move(items)));
}

/// That what merging takes apart has the form it must have: what is dropped nobody looks at later.
void check_forms(const JsonValue& schema, const std::string& path) {
  const auto check = [&](std::string_view key, Kind kind, std::string_view expected) {
    const JsonValue* value = schema.find(key);
    if (value == nullptr || value->is(kind)) return;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("schema {}: \"{}\" is {}; expected {}", path, key,
                                                         kind_name(value->kind), expected));
  };
  check("properties", Kind::kObject, "an object");
  check("required", Kind::kArray, "a list");
  check("enum", Kind::kArray, "a list");
  const JsonValue* type = schema.find("type");
  if (type == nullptr) return;
  for (const JsonValue& name : as_list(*type)) {
    if (name.is(Kind::kString) && std::ranges::find(kSchemaTypes, name.text) != kSchemaTypes.end()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("schema {}: \"type\" is {}; expected a type of JSON or a list of them", path,
                            printable(to_json(name))));
  }
}

/// Types that both lists allow.
JsonValue merged_types(const JsonValue& a, const JsonValue& b) {
  const std::vector<JsonValue> ours = as_list(a), theirs = as_list(b);
  const auto allows = [](const std::vector<JsonValue>& types, std::string_view type) {
    return std::ranges::find(types, type, &JsonValue::text) != types.end() ||
           (type == "integer" && std::ranges::find(types, "number", &JsonValue::text) != types.end());
  };
  std::vector<JsonValue> both;
  for (const std::string_view type : kSchemaTypes) {
    if (allows(ours, type) && allows(theirs, type)) both.push_back(string_value(type));
  }
  return array_value(std::move(both));
}

/// Those of the first that are among the second, or those of both: lists may be as long as the schema.
JsonValue merged_values(const JsonValue& a, const JsonValue& b, bool of_both) {
  std::unordered_set<std::string> known;
  for (const JsonValue& value : (of_both ? b : a).items) known.insert(canonical_json(value));
  std::vector<JsonValue> result;
  if (of_both) {
    std::ranges::copy_if(a.items, std::back_inserter(result),
                         [&](const JsonValue& value) { return known.contains(canonical_json(value)); });
  } else {
    result = a.items;
    std::ranges::copy_if(b.items, std::back_inserter(result),
                         [&](const JsonValue& value) { return known.insert(canonical_json(value)).second; });
  }
  return array_value(std::move(result));
}

JsonValue merged_properties(const JsonValue& a, const JsonValue& b, const std::string& path) {
  JsonValue result;
  result.kind = Kind::kObject;
  static const JsonValue kNone = [] {
    JsonValue none;
    none.kind = Kind::kObject;
    return none;
  }();
  const auto properties_of = [](const JsonValue& schema) -> const JsonValue& {
    const JsonValue* found = schema.find("properties");
    return found == nullptr ? kNone : *found;
  };
  const JsonValue &ours = properties_of(a), &theirs = properties_of(b);
  const auto add = [&](const std::string& name, const JsonValue& schema, const JsonValue& other_schema,
                       const JsonValue& others) {
    const std::string at = path + "/properties/" + name;
    if (const JsonValue* other = others.find(name)) {
      result.members.emplace_back(name, merge_schemas(schema, *other, at));
    } else if (const JsonValue* additional = other_schema.find("additionalProperties")) {
      result.members.emplace_back(name, merge_schemas(schema, *additional, at));
    } else {
      result.members.emplace_back(name, schema);
    }
  };
  for (const auto& [name, schema] : ours.members) add(name, schema, b, theirs);
  for (const auto& [name, schema] : theirs.members) {
    if (ours.find(name) == nullptr) add(name, schema, a, ours);
  }
  return result;
}

constexpr std::array<std::string_view, 6> kLargest = {"minimum",  "exclusiveMinimum", "minLength",
                                                      "minItems", "minProperties",    "minContains"};
constexpr std::array<std::string_view, 5> kSmallest = {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                                       "maxProperties"};
constexpr std::array<std::string_view, 17> kAnnotations = {
    "title",         "description",      "default",         "examples",      "example", "deprecated",
    "readOnly",      "writeOnly",        "$comment",        "$schema",       "$defs",   "definitions",
    "discriminator", "contentMediaType", "contentEncoding", "contentSchema", "$id"};

void merge_keyword(JsonValue& result, const std::string& key, const JsonValue& value,
                   const std::string& path) {
  const JsonValue* old = result.find(key);
  if (key == "pattern" || key == "format") {
    append(result, key == "pattern" ? kPatterns : kFormatsKey, value);
  } else if (key == kPatterns || key == kFormatsKey) {
    for (const JsonValue& item : value.items) append(result, key, item);
  } else if (old == nullptr) {
    result.members.emplace_back(key, value);
  } else if (key == "type") {
    set(result, key, merged_types(*old, value));
  } else if (key == "required") {
    set(result, key, merged_values(*old, value, /*of_both=*/false));
  } else if (key == "enum") {
    set(result, key, merged_values(*old, value, /*of_both=*/true));
  } else if (std::ranges::find(kLargest, key) != kLargest.end()) {
    if (compare_numbers(value.text, old->text) > 0) set(result, key, value);
  } else if (std::ranges::find(kSmallest, key) != kSmallest.end()) {
    if (compare_numbers(value.text, old->text) < 0) set(result, key, value);
  } else if (key == "items" || key == "additionalProperties" || key == "propertyNames") {
    set(result, key, merge_schemas(*old, value, path + "/" + key));
  } else if (key == "anyOf" || key == "oneOf" || key == "$ref" || key == "allOf") {
    JsonValue rest;  // one schema can't have two of these, but one of their conjunction
    rest.kind = Kind::kObject;
    rest.members.emplace_back(key, value);
    append(result, "allOf", std::move(rest));
  } else if (!(*old == value)) {
    throw Error(ErrorCode::kUnsupported, fmt::format("schema {}: two values of \"{}\" that must both hold "
                                                     "can't be made one; expected the keyword in one of "
                                                     "the combined schemas only",
                                                     path, key));
  }
}

}  // namespace

bool is_annotation(std::string_view keyword) {
  return keyword.starts_with("x-") || std::ranges::find(kAnnotations, keyword) != kAnnotations.end();
}

JsonValue boolean_schema(bool value) {
  JsonValue schema;
  schema.kind = Kind::kBoolean;
  schema.boolean = value;
  return schema;
}

JsonValue merge_schemas(const JsonValue& a, const JsonValue& b, const std::string& path) {
  if (a.is(Kind::kBoolean)) return a.boolean ? b : a;
  if (b.is(Kind::kBoolean)) return b.boolean ? a : b;
  if (!a.is(Kind::kObject) || !b.is(Kind::kObject)) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("schema {}: expected an object or a boolean", path));
  }
  check_forms(a, path);
  check_forms(b, path);
  const auto has = [&](std::string_view key) { return a.find(key) != nullptr || b.find(key) != nullptr; };
  const auto has_items = [](const JsonValue& schema) {
    return schema.find("items") != nullptr || schema.find("prefixItems") != nullptr ||
           schema.find("additionalItems") != nullptr;
  };
  const auto lists_items = [](const JsonValue& schema) {
    const JsonValue* items = schema.find("items");
    return schema.find("prefixItems") != nullptr || schema.find("additionalItems") != nullptr ||
           (items != nullptr && items->is(Kind::kArray));
  };
  if ((lists_items(a) || lists_items(b)) && has_items(a) && has_items(b)) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("schema {}: a list of schemas of items (\"prefixItems\") beside another schema of "
                    "items that must hold, too, is not supported",
                    path));
  }
  const bool both_objects = has("patternProperties") &&
                            (a.find("properties") != nullptr || a.find("additionalProperties") != nullptr ||
                             a.find("patternProperties") != nullptr) &&
                            (b.find("properties") != nullptr || b.find("additionalProperties") != nullptr ||
                             b.find("patternProperties") != nullptr);
  if (both_objects) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("schema {}: \"patternProperties\" beside another schema of properties that must "
                            "hold, too, is not supported",
                            path));
  }
  JsonValue result;
  result.kind = Kind::kObject;
  const auto add_all = [&](const JsonValue& schema) {
    for (const auto& [key, value] : schema.members) {
      if (key == "properties" || is_annotation(key)) continue;
      if (key == "const") {
        merge_keyword(result, "enum", array_value({value}), path);
      } else {
        merge_keyword(result, key, value, path);
      }
    }
  };
  if (has("properties")) set(result, "properties", merged_properties(a, b, path));
  add_all(a);
  add_all(b);
  return result;
}

}  // namespace tessera::grammar
