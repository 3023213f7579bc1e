#include "grammar/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/text.h"
#include "grammar/number_texts.h"
#include "tessera/error.h"

namespace tessera::grammar {
namespace {

using Kind = JsonValue::Kind;

/// Receives the parser's events.
class Builder {
 public:
  Builder(const std::string& source, const ParseLimits& limits) : source_(source), limits_(limits) {}

  bool null() { return add({}); }
  bool boolean(bool value) {
    JsonValue v;
    v.kind = Kind::kBoolean;
    v.boolean = value;
    return add(std::move(v));
  }
  bool number_integer(std::int64_t value) { return number(std::to_string(value)); }
  bool number_unsigned(std::uint64_t value) { return number(std::to_string(value)); }
  bool number_float(double, const std::string& text) { return number(text); }
  bool string(std::string& value) {
    JsonValue v;
    v.kind = Kind::kString;
    v.text = std::move(value);
    return add(std::move(v));
  }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Kind::kObject); }
  bool start_array(std::size_t) { return open(Kind::kArray); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    if (!keys_.back().insert(name).second) {
      fail(fmt::format("the key '{}' stands twice in one object", printable(name)));
    }
    open_.back()->members.emplace_back(std::move(name), JsonValue());
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
    const std::string_view full = error.what();
    const std::size_t start = full.find("] ");
    fail(fmt::format("at byte {}: {}", position == 0 ? 0 : position - 1,
                     printable(full.substr(start == full.npos ? 0 : start + 2), 300)));
  }

  JsonValue take() { return std::move(root_); }

 private:
  [[noreturn]] void fail(std::string_view reason) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is no valid JSON: {}", source_, reason));
  }
  bool number(std::string text) {
    JsonValue v;
    v.kind = Kind::kNumber;
    v.text = std::move(text);
    return add(std::move(v));
  }
  JsonValue* insert(JsonValue value) {
    if (++num_values_ > limits_.max_values) fail(fmt::format("more than {} values", limits_.max_values));
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    JsonValue& parent = *open_.back();  // only its last entry can be open, so that no open one moves
    if (parent.is(Kind::kArray)) {
      parent.items.push_back(std::move(value));
      return &parent.items.back();
    }
    parent.members.back().second = std::move(value);
    return &parent.members.back().second;
  }
  bool add(JsonValue value) {
    insert(std::move(value));
    return true;
  }
  bool open(Kind kind) {
    if (open_.size() >= static_cast<std::size_t>(limits_.max_depth)) {
      fail(fmt::format("values are nested deeper than {}", limits_.max_depth));
    }
    JsonValue container;
    container.kind = kind;
    open_.push_back(insert(std::move(container)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  const std::string& source_;
  const ParseLimits limits_;
  std::size_t num_values_ = 0;
  JsonValue root_;
  std::vector<JsonValue*> open_;  // outermost first
  std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace

JsonValue::JsonValue() = default;

const JsonValue* JsonValue::find(std::string_view name) const {
  for (const auto& [key, value] : members) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool JsonValue::operator==(const JsonValue& other) const {
  if (kind != other.kind) return false;
  switch (kind) {
    case Kind::kNull:
      return true;
    case Kind::kBoolean:
      return boolean == other.boolean;
    case Kind::kNumber:
      return text == other.text || compare_numbers(text, other.text) == 0;
    case Kind::kString:
      return text == other.text;
    case Kind::kArray:
      return items == other.items;
    case Kind::kObject:
      return members.size() == other.members.size() && std::ranges::all_of(members, [&](const auto& member) {
               const JsonValue* value = other.find(member.first);
               return value != nullptr && *value == member.second;
             });
  }
  return false;
}

std::size_t num_values(const JsonValue& value) {
  std::size_t count = 1;
  for (const JsonValue& item : value.items) count += num_values(item);
  for (const auto& [name, member] : value.members) count += num_values(member);
  return count;
}

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBoolean:
      return "boolean";
    case Kind::kNumber:
      return "number";
    case Kind::kString:
      return "string";
    case Kind::kArray:
      return "array";
    case Kind::kObject:
      return "object";
  }
  return "";
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
      case '\\':
        out += '\\';
        out += c;
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

std::string canonical_json(const JsonValue& value) {
  switch (value.kind) {
    case Kind::kNumber: {
      const std::optional<Decimal> number = parse_decimal(value.text);
      if (!number) return fmt::format("{}", std::strtod(value.text.c_str(), nullptr));
      const char* const sign = number->is_negative && !number->is_zero() ? "-" : "";
      return fmt::format("{}{}.{}", sign, number->whole, number->fraction);
    }
    case Kind::kArray: {
      std::string out = "[";
      for (const JsonValue& item : value.items) out += canonical_json(item) + ',';
      return out + "]";
    }
    case Kind::kObject: {
      std::vector<std::string> members;
      for (const auto& [name, member] : value.members)
        members.push_back(json_quoted(name) + ':' + canonical_json(member));
      std::ranges::sort(members);
      return fmt::format("{{{}}}", fmt::join(members, ","));
    }
    default:
      return to_json(value);
  }
}

std::string to_json(const JsonValue& value) {
  switch (value.kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBoolean:
      return value.boolean ? "true" : "false";
    case Kind::kNumber:
      return value.text;
    case Kind::kString:
      return json_quoted(value.text);
    case Kind::kArray: {
      std::string out = "[";
      for (const JsonValue& item : value.items) out += (out.size() > 1 ? "," : "") + to_json(item);
      return out + "]";
    }
    case Kind::kObject: {
      std::string out = "{";
      for (const auto& [key, member] : value.members) {
        out += (out.size() > 1 ? "," : "") + json_quoted(key) + ":" + to_json(member);
      }
      return out + "}";
    }
  }
  return "";
}

JsonValue parse_json(std::string_view text, const std::string& source, const ParseLimits& limits) {
  Builder builder(source, limits);
  // The library takes a zero byte for the end of the text.
  if (const std::size_t zero = text.find('\0'); zero != text.npos) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is no valid JSON: at byte {}: a zero byte", source, zero));
  }
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace tessera::grammar
