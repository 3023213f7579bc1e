#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string_view>

#include "tessera/error.h"

// How the checks of attention's arguments say what is wrong.

namespace tessera {

template <class Value>
[[noreturn]] void fail_argument(std::string_view field, const Value& value, std::string_view expected) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is {}; expected {}", field, value, expected));
}

template <class Value>
void require(bool ok, std::string_view field, const Value& value, std::string_view expected) {
  if (!ok) [[unlikely]]
    fail_argument(field, value, expected);
}

inline void require_range(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) [[unlikely]]
    fail_argument(field, value, fmt::format("a number from {} to {}", low, high));
}

}  // namespace tessera
