// JSON with errors that name the field.
#include "model/tokenizer/json_reader.h"

#include <fmt/core.h>

#include "core/text.h"
#include "model/tokenizer/unicode.h"
#include "tessera/error.h"

namespace tessera::tokenizers {

std::string quote(std::string_view text) { return '"' + printable(text, kQuotedBytes) + '"'; }

void JsonField::fail(const std::string& message) const {
  throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", where(), message));
}

void JsonField::unsupported(const std::string& message) const {
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", where(), message));
}

std::optional<JsonField> JsonField::find(const std::string& name) const {
  if (!value_->is_object()) fail(fmt::format("is {}, expected an object", value_->type_name()));
  const auto found = value_->find(name);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  const std::string shown = printable(name, kQuotedBytes);
  return JsonField(*found, path_.empty() ? shown : path_ + '.' + shown, *source_);
}

JsonField JsonField::at(const std::string& name) const {
  if (auto member = find(name)) return *member;
  fail(fmt::format("has no member {}", quote(name)));
}

std::vector<JsonField> JsonField::elements() const {
  if (!value_->is_array()) fail(fmt::format("is {}, expected an array", value_->type_name()));
  std::vector<JsonField> fields;
  fields.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i)
    fields.emplace_back((*value_)[i], fmt::format("{}[{}]", path_, i), *source_);
  return fields;
}

const std::string& JsonField::string() const {
  if (!value_->is_string()) fail(fmt::format("is {}, expected a string", value_->type_name()));
  return value_->get_ref<const std::string&>();
}

bool JsonField::boolean() const {
  if (!value_->is_boolean()) fail(fmt::format("is {}, expected true or false", value_->type_name()));
  return value_->get<bool>();
}

std::int64_t JsonField::integer() const {
  if (!value_->is_number_integer()) fail(fmt::format("is {}, expected an integer", value_->type_name()));
  if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > INT64_MAX) fail("is too large");
  return value_->get<std::int64_t>();
}

bool JsonField::boolean_or(const char* name, bool otherwise) const {
  const auto member = find(name);
  return member ? member->boolean() : otherwise;
}

std::string JsonField::character(const char* name) const {
  const JsonField member = at(name);
  const std::string& text = member.string();
  if (text.empty() || unicode::utf8_length(text[0]) != text.size())
    member.fail(fmt::format("has {} bytes, expected one character", text.size()));
  return text;
}

}  // namespace tessera::tokenizers
