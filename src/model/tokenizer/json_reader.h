#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::tokenizers {

/// Bytes of a text from a file that an error quotes: what makes a token of ten kilobytes wrong is not all of
/// it.
inline constexpr std::size_t kQuotedBytes = 60;

/// `text` in quotation marks, shortened to kQuotedBytes and with control characters escaped.
std::string quote(std::string_view text);

/// A value in a JSON document that knows its path, so that every error names the file and the field.
/// Only for .cpp files: the JSON header takes long to compile.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, std::string path, const std::string& source)
      : value_(&value), path_(std::move(path)), source_(&source) {}

  /// Throws Error{kCorruptFile}: "source: field path: message".
  [[noreturn]] void fail(const std::string& message) const;
  /// Throws Error{kUnsupported} in the same form.
  [[noreturn]] void unsupported(const std::string& message) const;

  const nlohmann::json& value() const { return *value_; }
  std::string where() const { return path_.empty() ? *source_ : *source_ + ": " + path_; }

  /// The member `name`, if this is an object that has it and it is not null. Fails if this is no object.
  std::optional<JsonField> find(const std::string& name) const;
  JsonField at(const std::string& name) const;  ///< fails if it is missing or null
  std::vector<JsonField> elements() const;

  const std::string& string() const;
  bool boolean() const;
  std::int64_t integer() const;

  bool boolean_or(const char* name, bool otherwise) const;
  /// The only character of the string `name`.
  std::string character(const char* name) const;
  /// The member "type", which says what kind of component this is.
  const std::string& type() const { return at("type").string(); }

 private:
  const nlohmann::json* value_;
  std::string path_;
  const std::string* source_;
};

}  // namespace tessera::tokenizers
