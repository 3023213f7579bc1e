#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::grammar {

/// A JSON value as it was written: members in their order, numbers as text, since schemas' properties have
/// an order and bounds are compared exactly.
struct JsonValue {
  enum class Kind { kNull, kBoolean, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  std::string text;                                        ///< of a string, or a number as written
  std::vector<JsonValue> items;                            ///< of an array
  std::vector<std::pair<std::string, JsonValue>> members;  ///< of an object

  JsonValue();  // in its file: clang 14 would need pairs with JsonValue to know whether it can throw

  bool is(Kind k) const { return kind == k; }
  /// A member by name, or null.
  const JsonValue* find(std::string_view name) const;
  /// Equal as JSON Schema compares: numbers by value (as far as fp64 has it), objects without order.
  bool operator==(const JsonValue& other) const;
};

/// Of the value itself and all within it.
std::size_t num_values(const JsonValue& value);

/// "null", "boolean", "number", "string", "array" or "object".
std::string_view kind_name(JsonValue::Kind kind);

/// As JSON, without white space; strings with the escapes that must be.
std::string to_json(const JsonValue& value);
/// The same text for values that are equal.
std::string canonical_json(const JsonValue& value);
/// `text` between quotes.
std::string json_quoted(std::string_view text);

struct ParseLimits {
  int max_depth = 64;
  std::size_t max_values = 100'000;
};

/// Throws Error{kInvalidArgument} with `source` and the byte for what is no JSON or no UTF-8, a key that
/// stands twice in an object, and text beyond the limits.
JsonValue parse_json(std::string_view text, const std::string& source, const ParseLimits& limits = {});

}  // namespace tessera::grammar
