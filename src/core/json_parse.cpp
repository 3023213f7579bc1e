#include "core/json_parse.h"

#include <fmt/core.h>

#include <cstdint>
#include <iterator>
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
  Builder(std::string_view text, const std::string& source, const JsonLimits& limits,
          std::span<const JsonStream> streams)
      : text_(text), at_(text.data()), source_(source), limits_(limits), streams_(streams) {}

  json parse() {
    // The library skips a byte order mark and takes a zero byte for the end of the text.
    if (text_.starts_with("\xef\xbb\xbf")) fail("the text opens with a byte order mark", 0);
    if (const std::size_t zero = text_.find('\0'); zero != text_.npos) fail("a zero byte", zero);
    json::sax_parse(PositionIterator(text_.data(), &at_), PositionIterator(text_.data() + text_.size(), &at_),
                    this);
    return std::move(root_);
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
    Container& object = open_.back();
    if (object.stream != nullptr) entry_offset_ = offset();
    const auto [member, is_new] = object.value->get_ref<json::object_t&>().try_emplace(std::move(name));
    if (!is_new) fail(fmt::format("the key '{}' stands twice in one object", printable(member->first)));
    object.key = &member->first;
    key_slot_ = &member->second;
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
  /// A container around the current value.
  struct Container {
    json* value;
    const JsonStream* stream;          // null: its entries are kept
    const std::string* key = nullptr;  // in an object, of the entry that was read last
    std::size_t values_before = 0;     // a streamed one's entries: num_values_ when each begins
  };

  std::size_t offset() const { return static_cast<std::size_t>(at_ - text_.data()); }

  [[noreturn]] void fail(std::string_view reason) const { fail(reason, offset()); }
  [[noreturn]] void fail(std::string_view reason, std::size_t at) const {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: invalid JSON at byte {}: {}", source_, at, reason));
  }

  template <class T>
  json* insert(T&& value) {
    if (++num_values_ > limits_.max_values) {
      fail(fmt::format("more than {} values that belong together", limits_.max_values));
    }
    if (open_.empty()) {
      root_ = std::forward<T>(value);
      return &root_;
    }
    if (open_.back().value->is_array()) {
      auto& array = open_.back().value->get_ref<json::array_t&>();
      array.emplace_back(std::forward<T>(value));
      return &array.back();
    }
    *key_slot_ = std::forward<T>(value);
    return key_slot_;
  }

  /// The stream of a container that is about to be opened, if it has one.
  const JsonStream* find_stream() const {
    for (const JsonStream& stream : streams_) {
      if (stream.path.size() != open_.size()) continue;
      bool leads_here = true;
      for (std::size_t i = 0; i < open_.size(); ++i) {
        leads_here = leads_here && open_[i].key != nullptr && *open_[i].key == stream.path[i];
      }
      if (leads_here) return &stream;
    }
    return nullptr;
  }

  template <class T>
  bool add(T&& value) {
    const json* added = insert(std::forward<T>(value));
    finish_entry(*added);
    return true;
  }

  bool open(json&& container) {
    if (open_.size() >= static_cast<std::size_t>(limits_.max_depth)) {
      fail(fmt::format("values are nested deeper than {}", limits_.max_depth));
    }
    const JsonStream* stream = find_stream();
    // An array's elements move only when it grows, and only its last one can be open.
    json* value = insert(std::move(container));
    open_.push_back({value, stream, nullptr, num_values_});
    return true;
  }

  bool close() {
    const json* closed = open_.back().value;
    open_.pop_back();
    finish_entry(*closed);
    return true;
  }

  void finish_entry(const json& value) {
    if (open_.empty() || open_.back().stream == nullptr) return;
    Container& container = open_.back();
    static const std::string kNoKey;
    if (container.value->is_array()) {
      container.stream->on_entry(kNoKey, value, offset());
    } else {
      container.stream->on_entry(*container.key, value, entry_offset_);
    }
    container.key = nullptr;
    container.value->clear();
    num_values_ = container.values_before;
  }

  std::string_view text_;
  const char* at_;
  const std::string& source_;
  const JsonLimits limits_;
  std::span<const JsonStream> streams_;
  std::size_t num_values_ = 0;
  json root_;
  std::vector<Container> open_;  // outermost first
  json* key_slot_ = nullptr;
  std::size_t entry_offset_ = 0;
};

}  // namespace

json parse_json_bounded(std::string_view text, const std::string& source, const JsonLimits& limits,
                        std::span<const JsonStream> streams) {
  return Builder(text, source, limits, streams).parse();
}

}  // namespace tessera
