// Filters that give text or numbers.
#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "core/text.h"
#include "model/jinja/arguments.h"
#include "model/jinja/builtins.h"
#include "model/jinja/characters.h"
#include "model/jinja/format.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/json.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"
#include "model/jinja/text_methods.h"

namespace tessera::jinja {
namespace {

template <MarkedText (*kConvert)(const MarkedText&)>
Value convert(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("the filter", arguments, {});
  return interpreter.heap().string(kConvert(to_text(interpreter.heap(), self)));
}

/// The filter's words begin behind white space, brackets and hyphens.
MarkedText title(const MarkedText& text) {
  const std::string_view view = text.view();
  MarkedText out;
  const auto separates = [](char32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (std::size_t at = 0; at < view.size();) {
    const std::size_t begin = at;
    const bool separator = separates(next_character(view, at));
    const std::size_t second = at;
    while (at < view.size()) {
      std::size_t next = at;
      if (separates(next_character(view, next)) != separator) break;
      at = next;
    }
    out.append(upper(text.part(begin, second)));
    out.append(lower(text.part(second, at)));
  }
  return out;
}

Value trim(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("trim", arguments, {"chars"});
  const MarkedText text = to_text(interpreter.heap(), self);
  interpreter.heap().step(bound.is_set(0) ? text.size() * bound.text(0).size() / 64 : 0);
  return interpreter.heap().string(strip(text, Side::kBoth, bound.is_set(0) ? &bound.text(0) : nullptr));
}

Value replace_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  Heap& heap = interpreter.heap();
  const std::int64_t count = bound.is_set(2) ? bound.integer(2, -1) : -1;
  return heap.string(
      replace(heap, to_text(heap, self), to_text(heap, bound[0]), to_text(heap, bound[1]), count));
}

Value center_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("center", arguments, {"width"});
  Heap& heap = interpreter.heap();
  return heap.string(center(heap, to_text(heap, self), bound.integer(0, 80)));
}

Value string_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("string", arguments, {});
  return self.is(Kind::kString) ? self : interpreter.heap().string(to_text(interpreter.heap(), self));
}

Value safe(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("safe", arguments, {});
  Value text = interpreter.heap().string(to_text(interpreter.heap(), self));
  text.escaped = true;
  return text;
}

Value escape(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("escape", arguments, {});
  if (self.is(Kind::kString) && self.escaped) return self;
  Value text = interpreter.heap().string(escape_html(to_text(interpreter.heap(), self)));
  text.escaped = true;
  return text;
}

Value indent(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("indent", arguments, {"width", "first", "blank"});
  Heap& heap = interpreter.heap();
  require_defined(self);
  if (!self.is(Kind::kString)) throw Failure{fmt::format("indent: expected str, got {}", type_name(self))};
  MarkedText indention;
  if (bound.has(0) && bound[0].is(Kind::kString)) {
    indention = *bound[0].text;
  } else {
    indention = MarkedText(spaces(heap, bound.integer(0, 4)));
  }
  const bool blank = bound.truth(2, false);
  MarkedText source = *self.text;
  source.append("\n");
  MarkedText out;
  const std::vector<MarkedText> lines = split_lines(source, false);
  if (bound.truth(1, false)) out.append(indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    heap.charge(lines[i].size() + indention.size() + 1);
    if (i > 0) {
      out.append("\n");
      if (blank || !lines[i].empty()) out.append(indention);
    }
    out.append(lines[i]);
  }
  return heap.string(std::move(out));
}

Value truncate(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  Heap& heap = interpreter.heap();
  const std::int64_t most = bound.integer(0, 255);
  const MarkedText end = bound.has(2) ? bound.text(2) : MarkedText("...");
  const std::int64_t leeway = bound.is_set(3) ? bound.integer(3, 5) : 5,
                     kept = most - count_characters(end.view());
  if (kept < 0)
    throw Failure{fmt::format("truncate: expected length >= {}, got {}", count_characters(end.view()), most)};
  if (length(self) <= most + leeway) return self;
  const Value cut = slice(heap, self, Value::none(), Value::of(kept), Value::none());
  if (!cut.is(Kind::kString)) throw Failure{fmt::format("truncate: expected str, got {}", type_name(self))};
  MarkedText text = *cut.text;
  if (!bound.truth(1, false)) {
    if (const std::size_t space = text.view().rfind(' '); space != std::string_view::npos)
      text = text.part(0, space);
  }
  text.append(end);
  return heap.string(std::move(text));
}

Value word_count(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("wordcount", arguments, {});
  const MarkedText text = to_text(interpreter.heap(), self);
  std::int64_t count = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text.view(), at);
    const bool word = is_alpha(c) || is_numeric(c) || c == '_';
    count += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value::of(count);
}

Value format_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  Heap& heap = interpreter.heap();
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    throw Failure{"format can't handle positional and keyword arguments at the same time"};
  }
  const Value format = self.is(Kind::kString) ? self : heap.string(to_text(heap, self));
  if (arguments.named.empty())
    return format_percent(heap, format, heap.sequence(Kind::kTuple, arguments.positional));
  const Value named = heap.dict();
  for (const auto& [name, value] : arguments.named) heap.set(*named.dict, heap.string(name), value);
  return format_percent(heap, format, named);
}

Value to_json(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  Heap& heap = interpreter.heap();
  JsonStyle style;
  style.ensure_ascii = bound.truth(0, false);
  style.sort_keys = bound.truth(3, false);
  if (bound.is_set(1)) {
    style.pretty = true;
    style.item_separator = ",";
    if (bound[1].is(Kind::kString)) {
      style.indent = bound[1].view();
    } else {
      style.indent = spaces(heap, bound.integer(1, 0));
    }
  }
  if (bound.is_set(2)) {
    const std::vector<Value> separators = items_of(heap, bound[2]);
    if (separators.size() != 2 || !separators[0].is(Kind::kString) || !separators[1].is(Kind::kString)) {
      throw Failure{"tojson: separators must be two strings"};
    }
    style.item_separator = separators[0].view();
    style.key_separator = separators[1].view();
  }
  return heap.string(dump_json(heap, self, style));
}

Value from_json(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("from_json", arguments, {});
  require_defined(self);
  if (!self.is(Kind::kString)) throw Failure{fmt::format("from_json: expected str, got {}", type_name(self))};
  return parse_json(interpreter.heap(), self.view(), !self.text->foreign().empty());
}

std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_space(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && is_space(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

/// int(text, base); nothing if it is none.
std::optional<std::int64_t> parse_integer(std::string_view view, std::int64_t base) {
  std::string text(stripped(view));
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.erase(0, 1);
  if (text.size() > 2 && text[0] == '0') {
    const char letter = static_cast<char>(std::tolower(static_cast<unsigned char>(text[1])));
    const int named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (named != 0 && (base == named || base == 0)) {
      text.erase(0, 2);
      base = named;
    }
  }
  if (base == 0) base = 10;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && (i == 0 || i + 1 == text.size() || text[i + 1] == '_')) return std::nullopt;
  }
  std::erase(text, '_');
  std::uint64_t size = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), size, static_cast<int>(base));
  if (text.empty() || end != text.data() + text.size() || error == std::errc::invalid_argument)
    return std::nullopt;
  if (error == std::errc::result_out_of_range || size > static_cast<std::uint64_t>(INT64_MAX)) {
    throw Failure{"an integer leaves the range of 64 bits", ErrorCode::kUnsupported};
  }
  return negative ? -static_cast<std::int64_t>(size) : static_cast<std::int64_t>(size);
}

std::optional<double> parse_real(std::string_view view) {
  const std::string lowered = lower_case(stripped(view));
  const std::size_t sign = lowered.starts_with('-') || lowered.starts_with('+') ? 1 : 0;
  const std::string rest = lowered.substr(sign);
  const double direction = lowered.starts_with('-') ? -1 : 1;
  if (rest == "inf" || rest == "infinity") return direction * HUGE_VAL;
  if (rest == "nan") return std::nan("");
  for (std::size_t i = 0; i < rest.size(); ++i) {
    const bool between = i > 0 && i + 1 < rest.size() &&
                         std::isdigit(static_cast<unsigned char>(rest[i - 1])) &&
                         std::isdigit(static_cast<unsigned char>(rest[i + 1]));
    if (rest[i] == '_' && !between) return std::nullopt;
  }
  std::string digits = rest;
  std::erase(digits, '_');
  if (digits.empty() || !(std::isdigit(static_cast<unsigned char>(digits[0])) || digits[0] == '.'))
    return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range) value = std::strtod(digits.c_str(), nullptr);
  return direction * value;
}

std::optional<std::int64_t> whole(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (!(std::fabs(value) < 9.2e18))
    throw Failure{"an integer leaves the range of 64 bits", ErrorCode::kUnsupported};
  return static_cast<std::int64_t>(value);
}

Value int_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("int", arguments, {"default", "base"});
  require_defined(self);
  const Value otherwise = bound.value_or(0, Value::of(std::int64_t{0}));
  if (self.is_integral()) return Value::of(self.as_integer());
  if (self.is(Kind::kFloat)) {
    if (std::isinf(self.real)) throw Failure{"cannot convert float infinity to integer"};
    const std::optional<std::int64_t> number = whole(self.real);
    return number ? Value::of(*number) : otherwise;
  }
  if (!self.is(Kind::kString)) return otherwise;
  interpreter.heap().read(64 * self.text->size());
  const std::int64_t base = bound.integer(1, 10);
  if (base == 0 || (base >= 2 && base <= 36)) {
    if (const auto number = parse_integer(self.view(), base)) return Value::of(*number);
  }
  const std::optional<double> real = parse_real(self.view());
  const std::optional<std::int64_t> number = real ? whole(*real) : std::nullopt;
  return number ? Value::of(*number) : otherwise;
}

Value float_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("float", arguments, {"default"});
  require_defined(self);
  if (self.is_number()) return Value::of(self.as_real());
  if (self.is(Kind::kString)) interpreter.heap().read(64 * self.text->size());
  const std::optional<double> real = self.is(Kind::kString) ? parse_real(self.view()) : std::nullopt;
  return real ? Value::of(*real) : bound.value_or(0, Value::of(0.0));
}

Value abs_filter(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("abs", arguments, {});
  require_defined(self);
  if (!self.is_number()) throw Failure{fmt::format("bad operand type for abs(): '{}'", type_name(self))};
  if (self.is(Kind::kFloat)) return Value::of(std::fabs(self.real));
  return self.as_integer() < 0 ? negate(self) : Value::of(self.as_integer());
}

Value round_filter(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("round", arguments, {"precision", "method"});
  require_defined(self);
  if (!self.is_number()) throw Failure{fmt::format("round: a number is required, not {}", type_name(self))};
  const std::int64_t precision = bound.integer(0, 0);
  if (precision < -300 || precision > 300)
    throw Failure{"round: a precision beyond 300 digits", ErrorCode::kUnsupported};
  const std::string_view method = bound.has(1) ? bound.text(1).view() : "common";
  if (method == "ceil" || method == "floor") {
    const double factor = std::pow(10.0, static_cast<double>(precision)), scaled = self.as_real() * factor;
    const double rounded = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
    return Value::of(rounded == 0 ? 0.0 : rounded / factor);  // Python's ceil and floor have no -0
  }
  if (method != "common") throw Failure{"round: method must be common, ceil or floor"};
  if (self.is_integral()) {
    if (precision < 0) throw Failure{"round: a negative precision of an integer", ErrorCode::kUnsupported};
    return Value::of(self.as_integer());
  }
  if (!std::isfinite(self.real)) return self;
  if (precision < 0) {
    const double factor = std::pow(10.0, static_cast<double>(-precision));
    return Value::of(std::nearbyint(self.real / factor) * factor);
  }
  return Value::of(std::strtod(fmt::format("{:.{}f}", self.real, precision).c_str(), nullptr));
}

constexpr NamedFunction kTextFilters[] = {
    {"abs", abs_filter},       {"capitalize", convert<capitalize>},
    {"center", center_filter}, {"e", escape},
    {"escape", escape},        {"float", float_filter},
    {"format", format_filter}, {"from_json", from_json},
    {"indent", indent},        {"int", int_filter},
    {"lower", convert<lower>}, {"replace", replace_filter},
    {"round", round_filter},   {"safe", safe},
    {"string", string_filter}, {"title", convert<title>},
    {"tojson", to_json},       {"trim", trim},
    {"truncate", truncate},    {"upper", convert<upper>},
    {"wordcount", word_count},
};

}  // namespace

std::span<const NamedFunction> text_filters() { return kTextFilters; }

}  // namespace tessera::jinja
