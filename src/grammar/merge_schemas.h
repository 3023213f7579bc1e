#pragma once

#include <array>
#include <string>
#include <string_view>

#include "grammar/json_value.h"

namespace tessera::grammar {

// Beside JSON Schema's keywords merged schemas have these, which no text can spell, since they are no UTF-8:
// lists of what "pattern" and "format" have one of.
inline constexpr std::string_view kPatterns = "\377pattern";
inline constexpr std::string_view kFormatsKey = "\377format";

/// What "type" may be.
inline constexpr std::array<std::string_view, 7> kSchemaTypes = {"null",   "boolean", "object", "array",
                                                                 "number", "string",  "integer"};

/// The keyword as the schema's author wrote it.
constexpr std::string_view written(std::string_view keyword) {
  return keyword.starts_with('\377') ? keyword.substr(1) : keyword;
}

/// Whether a keyword says nothing about which documents are valid.
bool is_annotation(std::string_view keyword);

/// A schema that exactly those values fit that fit both. Schemas are objects or booleans. Throws
/// Error{kUnsupported} with `path` for combinations that one schema can't say, Error{kInvalidArgument} for
/// what is no schema.
JsonValue merge_schemas(const JsonValue& a, const JsonValue& b, const std::string& path);

JsonValue boolean_schema(bool value);

}  // namespace tessera::grammar
