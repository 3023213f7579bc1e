#include "core/json_parse.h"

#include <fmt/core.h>

#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/text.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using nlohmann::json;

/// Reads a text and leaves its position where the events' receiver sees it.
class PositionIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  PositionIterator(const char* at, const char** shown) : at_(at), shown_(shown) {}
  reference operator*() const { return *at_; }
  PositionIterator& operator++() {
    *shown_ = ++at_;
    return *this;
  }
  PositionIterator operator++(int) {
    PositionIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const PositionIterator& other) const { return at_ == other.at_; }
  bool operator!=(const PositionIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** shown_;
};

/// Receives the parser's events and builds values from them, throwing at the first that is out of bounds.
class Builder {
 public:
  Builder(std::string_view text, const std::string& source, int max_depth)
      : text_(text), at_(text.data()), source_(source), max_depth_(max_depth) {}

  json parse() {
    json::sax_parse(PositionIterator(text_.data(), &at_), PositionIterator(text_.data() + text_.size(), &at_),
                    this);
    return std::move(root_);
  }

  void parse_members(const JsonMemberCallback& on_member, std::size_t max_values) {
    on_member_ = &on_member;
    max_values_ = max_values;
    parse();
  }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(json::binary_t& value) { return add(std::move(value)); }
  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    json& object = *open_.back();
    if (on_member_ != nullptr && open_.size() == 1) {
      num_values_ = 0;
      member_offset_ = offset();
      object.clear();
    }
    const auto [member, is_new] = object.get_ref<json::object_t&>().try_emplace(std::move(name));
    if (!is_new) fail(fmt::format("the key '{}' stands twice in one object", printable(member->first)));
    key_slot_ = &member->second;
    if (on_member_ != nullptr && open_.size() == 1) member_key_ = &member->first;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception& error) {
    // The message opens with "[json.exception.…] " and, for syntax, "parse error at line 1, column 2: ".
    const std::string_view full = error.what();
    std::size_t start = full.find("] ");
    start = start == full.npos ? 0 : start + 2;
    if (full.substr(start).starts_with("parse error at line ")) {
      const std::size_t colon = full.find(": ", start);
      if (colon != full.npos) start = colon + 2;
    }
    // The message quotes what was read last, which may be a string of any length.
    fail(printable(full.substr(start), 300), position == 0 ? 0 : position - 1);
  }

 private:
  std::size_t offset() const { return static_cast<std::size_t>(at_ - text_.data()); }

  [[noreturn]] void fail(std::string_view reason) const { fail(reason, offset()); }
  [[noreturn]] void fail(std::string_view reason, std::size_t at) const {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: invalid JSON at byte {}: {}", source_, at, reason));
  }

  template <class T>
  json* insert(T&& value) {
    if (++num_values_ > max_values_) {
      fail(fmt::format("a member with more than {} values", max_values_));
    }
    if (open_.empty()) {
      if (on_member_ != nullptr && !json(value).is_object()) fail("an object was expected");
      root_ = std::forward<T>(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& array = open_.back()->get_ref<json::array_t&>();
      array.emplace_back(std::forward<T>(value));
      return &array.back();
    }
    *key_slot_ = std::forward<T>(value);
    return key_slot_;
  }

  template <class T>
  bool add(T&& value) {
    const json* added = insert(std::forward<T>(value));
    if (open_.size() == 1) finish_member(*added);
    return true;
  }

  bool open(json&& container) {
    if (open_.size() >= static_cast<std::size_t>(max_depth_)) {
      fail(fmt::format("values are nested deeper than {}", max_depth_));
    }
    // An array's elements move only when it grows, and only its last one can be open.
    open_.push_back(insert(std::move(container)));
    return true;
  }

  bool close() {
    const json* closed = open_.back();
    open_.pop_back();
    if (open_.size() == 1) finish_member(*closed);
    return true;
  }

  void finish_member(const json& value) {
    if (on_member_ != nullptr) (*on_member_)(*member_key_, value, member_offset_);
  }

  std::string_view text_;
  const char* at_;
  const std::string& source_;
  int max_depth_;
  const JsonMemberCallback* on_member_ = nullptr;
  std::size_t max_values_ = std::numeric_limits<std::size_t>::max();
  std::size_t num_values_ = 0;
  json root_;
  std::vector<json*> open_;  // the containers around the current value, outermost first
  json* key_slot_ = nullptr;
  const std::string* member_key_ = nullptr;
  std::size_t member_offset_ = 0;
};

}  // namespace

json parse_json_bounded(std::string_view text, const std::string& source, int max_depth) {
  return Builder(text, source, max_depth).parse();
}

void parse_json_members(std::string_view text, const std::string& source, const JsonMemberCallback& on_member,
                        int max_depth, std::size_t max_values) {
  Builder(text, source, max_depth).parse_members(on_member, max_values);
}

}  // namespace tessera
