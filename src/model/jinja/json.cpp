#include "model/jinja/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/jinja/characters.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"

namespace tessera::jinja {
namespace {

class Writer {
 public:
  Writer(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}

  void write(Value value, int depth) {
    require_nesting(depth);
    heap_.step();
    heap_.charge(8);  // about what is written of anything but a string
    switch (value.kind) {
      case Kind::kString:
        write_string(*value.text);
        break;
      case Kind::kList:
      case Kind::kTuple:
        write_items(value.sequence->items, depth);
        break;
      case Kind::kDict:
        write_entries(*value.dict, depth);
        break;
      default:
        out_.append(scalar(value));
    }
  }

  MarkedText take() { return std::move(out_); }

 private:
  static std::string scalar(Value value) {
    switch (value.kind) {
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return value.boolean ? "true" : "false";
      case Kind::kInt:
        return fmt::format("{}", value.integer);
      case Kind::kFloat:
        if (std::isnan(value.real)) return "NaN";
        if (std::isinf(value.real)) return value.real < 0 ? "-Infinity" : "Infinity";
        return float_repr(value.real);
      default:
        break;
    }
    std::string because = value.is(Kind::kUndefined) ? ": " + undefined_reason(value) : "";
    throw Failure{fmt::format("Object of type {} is not JSON serializable{}", type_name(value), because)};
  }

  void new_line(int depth) {
    out_.append("\n");
    heap_.charge(style_.indent.size() * static_cast<std::size_t>(depth));
    for (int i = 0; i < depth; ++i) out_.append(style_.indent);
  }

  void separate(bool first, int depth) {
    if (!first) out_.append(style_.item_separator);
    if (style_.pretty) new_line(depth + 1);
  }

  void write_items(const std::vector<Value>& items, int depth) {
    out_.append("[");
    for (std::size_t i = 0; i < items.size(); ++i) {
      separate(i == 0, depth);
      write(items[i], depth + 1);
    }
    if (style_.pretty && !items.empty()) new_line(depth);
    out_.append("]");
  }

  void write_entries(const Dict& dict, int depth) {
    std::vector<std::pair<Value, Value>> entries = dict.entries;
    if (style_.sort_keys) {
      std::ranges::stable_sort(entries, [&](const auto& a, const auto& b) {
        return compare(heap_, a.first, b.first, "<") == std::partial_ordering::less;
      });
    }
    out_.append("{");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      separate(i == 0, depth);
      const Value key = entries[i].first;
      if (key.is(Kind::kString)) {
        write_string(*key.text);
      } else if (key.is_number() || key.is(Kind::kNone)) {
        out_.append("\"" + scalar(key) + "\"");
      } else {
        throw Failure{fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key))};
      }
      out_.append(style_.key_separator);
      write(entries[i].second, depth + 1);
    }
    if (style_.pretty && !entries.empty()) new_line(depth);
    out_.append("}");
  }

  void write_string(const MarkedText& text) {
    const std::string_view view = text.view();
    heap_.charge(view.size());
    heap_.read(16 * view.size());  // every character is looked at
    out_.append("\"");
    std::size_t done = 0;
    for (std::size_t position = 0; position < view.size();) {
      const std::size_t begin = position;
      const char32_t character = next_character(view, position);
      const std::string escaped = escape(character);
      if (escaped.empty()) continue;
      out_.append(text, done, begin);
      out_.append(escaped, text.is_foreign(begin));
      done = position;
    }
    out_.append(text, done);
    out_.append("\"");
  }

  std::string escape(char32_t character) const {
    switch (character) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    const auto code = static_cast<std::uint32_t>(character);
    if (code < 0x20 || (style_.ensure_ascii && code >= 0x7f && code < 0x10000 && code != 0x7f)) {
      return fmt::format("\\u{:04x}", code);
    }
    if (style_.ensure_ascii && code >= 0x10000) {
      const std::uint32_t rest = code - 0x10000;
      return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
    }
    return "";
  }

  Heap& heap_;
  const JsonStyle& style_;
  MarkedText out_;
};

/// Receives a JSON parser's events and makes values of them.
class Reader {
 public:
  Reader(Heap& heap, bool foreign) : heap_(heap), foreign_(foreign) {}

  Value result() const { return root_; }

  bool null() { return add(Value::none()); }
  bool boolean(bool value) { return add(Value::of(value)); }
  bool number_integer(std::int64_t value) { return add(Value::of(value)); }
  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      throw Failure{"invalid JSON: an integer leaves the range of 64 bits"};
    }
    return add(Value::of(static_cast<std::int64_t>(value)));
  }
  bool number_float(double value, const std::string& text) {
    // An integer that is too large comes here, too.
    if (text.find_first_of(".eE") == text.npos) {
      throw Failure{"invalid JSON: an integer leaves the range of 64 bits"};
    }
    return add(Value::of(value));
  }
  bool string(std::string& value) { return add(heap_.string(value, foreign_)); }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(heap_.dict()); }
  bool start_array(std::size_t) { return open(heap_.list({})); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    open_.back().key = heap_.string(name, foreign_);
    if (open_.back().value.dict->find(std::string_view(name)) != nullptr) {
      throw Failure{fmt::format("invalid JSON: the key '{}' stands twice in one object", printable(name))};
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    throw Failure{fmt::format("invalid JSON at byte {}", position == 0 ? 0 : position - 1)};
  }

 private:
  struct Container {
    Value value, key;
  };

  bool add(Value value) {
    if (open_.empty()) {
      root_ = value;
    } else if (Container& top = open_.back(); top.value.is(Kind::kDict)) {
      heap_.set(*top.value.dict, top.key, value);
    } else {
      heap_.charge(sizeof(Value));
      top.value.sequence->items.push_back(value);
    }
    return true;
  }
  bool open(Value value) {
    add(value);
    if (open_.size() >= kMaxNesting) {
      throw Failure{fmt::format("invalid JSON: it is nested more than {} deep", kMaxNesting)};
    }
    open_.push_back({value, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Heap& heap_;
  bool foreign_;
  Value root_;
  std::vector<Container> open_;
};

}  // namespace

MarkedText dump_json(Heap& heap, Value value, const JsonStyle& style) {
  Writer writer(heap, style);
  writer.write(value, 0);
  return writer.take();
}

Value parse_json(Heap& heap, std::string_view text, bool foreign) {
  heap.read(text.size());
  // The parser takes a zero byte for the end of the text.
  if (const std::size_t zero = text.find('\0'); zero != text.npos) {
    throw Failure{fmt::format("invalid JSON at byte {}", zero)};
  }
  Reader reader(heap, foreign);
  nlohmann::json::sax_parse(text, &reader);
  return reader.result();
}

}  // namespace tessera::jinja
