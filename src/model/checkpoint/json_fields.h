#pragma once

#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "tessera/error.h"

namespace tessera {

/// Typed access to the fields of one JSON object; null counts as absent.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw Error(ErrorCode::kCorruptFile, where_ + ": an object was expected");
  }

  const nlohmann::json* find(const char* key) const {
    const auto field = object_.find(key);
    return field == object_.end() || field->is_null() ? nullptr : &*field;
  }

  /// Whether the key is written, be it as null.
  bool has(const char* key) const { return object_.contains(key); }

  std::optional<std::int64_t> integer(const char* key) const {
    const nlohmann::json* field = find(key);
    if (field == nullptr) return std::nullopt;
    return as_integer(key, *field);
  }

  std::int64_t as_integer(const char* key, const nlohmann::json& value) const {
    if (value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}) {
      return value.get<std::int64_t>();
    }
    if (value.is_number_integer() && !value.is_number_unsigned()) return value.get<std::int64_t>();
    if (value.is_number_float()) {  // some tools write 4096.0
      const double number = value.get<double>();
      if (std::abs(number) <= 0x1p53 && number == std::floor(number))
        return static_cast<std::int64_t>(number);
    }
    fail(key, value, "a whole number was expected");
  }

  std::optional<double> number(const char* key) const {
    const nlohmann::json* field = find(key);
    if (field == nullptr) return std::nullopt;
    if (!field->is_number()) fail(key, *field, "a number was expected");
    return field->get<double>();
  }

  /// For fields that end up as float; validate() checks closer ranges.
  std::optional<float> real(const char* key) const {
    const std::optional<double> value = number(key);
    if (!value) return std::nullopt;
    if (!(std::abs(*value) <= std::numeric_limits<float>::max())) {
      fail(key, *find(key), "a number within fp32's range was expected");
    }
    return static_cast<float>(*value);
  }

  std::optional<bool> boolean(const char* key) const {
    const nlohmann::json* field = find(key);
    if (field == nullptr) return std::nullopt;
    if (!field->is_boolean()) fail(key, *field, "true or false was expected");
    return field->get<bool>();
  }

  /// A list of numbers that end up as floats.
  std::optional<std::vector<float>> reals(const char* key) const {
    const nlohmann::json* field = find(key);
    if (field == nullptr) return std::nullopt;
    if (!field->is_array()) fail(key, *field, "a list of numbers was expected");
    std::vector<float> values;
    for (const nlohmann::json& value : *field) {
      const double number = value.is_number() ? value.get<double>() : std::numeric_limits<double>::infinity();
      if (!(std::abs(number) <= std::numeric_limits<float>::max()))
        fail(key, value, "numbers within fp32's range were expected");
      values.push_back(static_cast<float>(number));
    }
    return values;
  }

  std::optional<std::string> text(const char* key) const {
    const nlohmann::json* field = find(key);
    if (field == nullptr) return std::nullopt;
    if (!field->is_string()) fail(key, *field, "a string was expected");
    return field->get<std::string>();
  }

  /// An integer that ModelConfig keeps as int; validate() checks closer ranges.
  int small_integer(const char* key, std::int64_t absent) const {
    const std::int64_t value = integer(key).value_or(absent);
    if (value < 0 || value > std::numeric_limits<int>::max()) {
      fail(key, *find(key), fmt::format("0 to {} was expected", std::numeric_limits<int>::max()));
    }
    return static_cast<int>(value);
  }

  [[noreturn]] void fail(const char* key, const nlohmann::json& value, const std::string& expected) const {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: {} is {}; {}", where_, key, shown(value), expected));
  }

  [[noreturn]] void unsupported(const char* key, const nlohmann::json& value,
                                const std::string& supported) const {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: {} is {}; {}", where_, key, shown(value), supported));
  }

  [[noreturn]] void missing(const char* key) const {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {} is missing", where_, key));
  }

  const std::string& where() const { return where_; }

 private:
  static std::string shown(const nlohmann::json& value) {
    if (value.is_object()) return "an object";
    if (value.is_array()) return fmt::format("a list of {} values", value.size());
    return printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 60);
  }

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace tessera
