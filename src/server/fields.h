#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace tessera::server {

/// Reads the fields of a JSON object that came from a client. A field that is missing or null is none; one
/// of another type or range is a RequestError that names it and its value.
class Fields {
 public:
  /// `path` names the object in messages: "" for the outermost, "stream_options" for a field of it. Both must
  /// outlive this. Throws RequestError if `object` is no object.
  explicit Fields(const nlohmann::ordered_json& object, std::string path = "");

  /// Null if it is missing or null.
  const nlohmann::ordered_json* find(const char* name) const;
  std::optional<bool> boolean(const char* name) const;
  std::optional<std::int64_t> integer(const char* name, std::int64_t min, std::int64_t max) const;
  std::optional<double> number(const char* name, double min, double max) const;
  std::optional<std::string> text(const char* name) const;
  const nlohmann::ordered_json* object(const char* name) const;
  const nlohmann::ordered_json* list(const char* name) const;

  /// "stream_options.include_usage"
  std::string path_of(const char* name) const;
  /// Throws: `name` is `value`; expected `expected`.
  [[noreturn]] void fail(const char* name, const nlohmann::ordered_json& value,
                         const std::string& expected) const;

 private:
  const nlohmann::ordered_json& object_;
  std::string path_;
};

/// As JSON on one line; what is no UTF-8 replaced.
std::string dump(const nlohmann::ordered_json& value);
/// A value as an error message shows it: JSON on one line, at most 100 bytes.
std::string shown(const nlohmann::ordered_json& value);

/// The outermost object of a request's body. Throws RequestError for what is no JSON, nests deeper than 64 or
/// is no object.
nlohmann::ordered_json parse_body(const std::string& body);

}  // namespace tessera::server
