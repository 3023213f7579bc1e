#include "engine/stop_strings.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "tessera/error.h"

namespace tessera {
namespace {

constexpr std::size_t kMaxStrings = 64;
constexpr std::size_t kMaxBytes = 1024;

}  // namespace

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  if (strings_.size() > kMaxStrings) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} stop strings were given; expected at most {}", strings_.size(), kMaxStrings));
  }
  for (const std::string& string : strings_) {
    if (!string.empty() && string.size() <= kMaxBytes) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a stop string has {} bytes; expected 1 to {}", string.size(), kMaxBytes));
  }
}

std::string StopStrings::push(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  std::size_t end = held_.npos;
  for (const std::string& string : strings_) end = std::min(end, held_.find(string));
  stopped_ = end != held_.npos;
  if (!stopped_) {
    end = held_.size();
    for (const std::string& string : strings_) {
      // The longest end of the text that begins the string.
      for (std::size_t size = std::min(string.size() - 1, held_.size()); size > held_.size() - end; --size) {
        if (held_.ends_with(std::string_view(string).substr(0, size))) end = held_.size() - size;
      }
    }
  }
  std::string out = held_.substr(0, end);
  held_ = stopped_ ? std::string() : held_.substr(end);
  return out;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace tessera
