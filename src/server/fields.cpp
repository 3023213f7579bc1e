#include "server/fields.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/json_parse.h"
#include "core/text.h"
#include "server/request_error.h"
#include "tessera/error.h"

namespace tessera::server {

using json = nlohmann::ordered_json;

namespace {

// A value takes up to about 100 bytes; a prompt of token ids is the longest list that makes sense.
constexpr JsonLimits kBodyLimits{64, std::size_t{1} << 21};

// Objects keep the order of their keys, since the fields of a schema are written in it. They find a key by
// looking at all: what that takes at most, in comparisons.
constexpr std::size_t kMaxComparisons = std::size_t{1} << 27;

std::size_t comparisons(const nlohmann::json& value) {
  std::size_t sum = value.is_object() ? value.size() * value.size() : 0;
  if (value.is_structured()) {
    for (const nlohmann::json& entry : value) {
      if (entry.is_structured()) sum += comparisons(entry);
    }
  }
  return sum;
}

}  // namespace

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::string shown(const json& value) {
  // A long text need not be written out to be cut.
  if (value.is_string() && value.get_ref<const std::string&>().size() > 200) {
    return printable(json(value.get_ref<const std::string&>().substr(0, 200))
                         .dump(-1, ' ', false, json::error_handler_t::replace));
  }
  if (value.is_structured() && value.size() > 100) {
    return fmt::format("a {} with {} entries", value.is_array() ? "list" : "JSON object", value.size());
  }
  return printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

json parse_body(const std::string& body) {
  try {
    if (comparisons(parse_json_bounded(body, "the request's body", kBodyLimits)) > kMaxComparisons) {
      throw wrong_field("", "the request's body has objects with too many fields");
    }
  } catch (const Error& error) {
    throw wrong_field("", error.message());
  }
  json document = json::parse(body);
  if (!document.is_object()) {
    throw wrong_field("", fmt::format("the request's body is {}; expected a JSON object", shown(document)));
  }
  return document;
}

Fields::Fields(const json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object_.is_object()) {
    throw wrong_field(path_, fmt::format("{} is {}; expected a JSON object",
                                         path_.empty() ? "the request's body" : path_, shown(object_)));
  }
}

std::string Fields::path_of(const char* name) const {
  return path_.empty() ? std::string(name) : path_ + '.' + name;
}

void Fields::fail(const char* name, const json& value, const std::string& expected) const {
  const std::string path = path_of(name);
  throw wrong_field(path, fmt::format("{} is {}; expected {}", path, shown(value), expected));
}

const json* Fields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> Fields::boolean(const char* name) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(name, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::int64_t> Fields::integer(const char* name, std::int64_t min, std::int64_t max) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  if (!fits || value->get<std::int64_t>() < min || value->get<std::int64_t>() > max) {
    fail(name, *value,
         max == std::numeric_limits<std::int64_t>::max() ? fmt::format("an integer of at least {}", min)
                                                         : fmt::format("an integer from {} to {}", min, max));
  }
  return value->get<std::int64_t>();
}

std::optional<double> Fields::number(const char* name, double min, double max) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
    fail(name, *value, fmt::format("a number from {} to {}", min, max));
  }
  return value->get<double>();
}

std::optional<std::string> Fields::text(const char* name) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(name, *value, "a string");
  return value->get<std::string>();
}

const json* Fields::object(const char* name) const {
  const json* value = find(name);
  if (value != nullptr && !value->is_object()) fail(name, *value, "a JSON object");
  return value;
}

const json* Fields::list(const char* name) const {
  const json* value = find(name);
  if (value != nullptr && !value->is_array()) fail(name, *value, "a list");
  return value;
}

}  // namespace tessera::server
