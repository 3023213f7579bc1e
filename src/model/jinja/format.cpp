#include "model/jinja/format.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "model/jinja/characters.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"

namespace tessera::jinja {
namespace {

// Of a field: no template needs wider ones, and everyone may write "%999999999d".
constexpr int kMaxWidth = 10'000;

/// What stands between the % and its letter, or behind the colon of a {}.
struct Specification {
  std::string fill = " ";
  char align = 0;  // <, > , ^ or =
  char sign = 0;   // + or space
  bool alternate = false, zero = false;
  char grouping = 0;  // , or _
  int width = 0, precision = -1;
  char type = 0;
};

MarkedText pad(MarkedText text, const Specification& spec, char default_align) {
  const auto missing = spec.width - count_characters(text.view());
  if (missing <= 0) return text;
  const char align = spec.align != 0 ? spec.align : default_align;
  const auto before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  MarkedText padded;
  for (std::int64_t i = 0; i < before; ++i) padded.append(spec.fill);
  padded.append(text);
  for (std::int64_t i = before; i < missing; ++i) padded.append(spec.fill);
  return padded;
}

/// A number's digits with sign and padding.
MarkedText pad_number(std::string digits, bool negative, const Specification& spec,
                      std::string_view prefix = "") {
  std::string head = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  if (spec.grouping != 0) {
    const std::size_t whole = digits.find_first_not_of("0123456789");
    for (std::size_t at = whole == digits.npos ? digits.size() : whole; at > 3;) {
      at -= 3;
      digits.insert(at, 1, spec.grouping);
    }
  }
  head += prefix;
  if ((spec.zero && spec.align == 0) || spec.align == '=') {
    const std::string fill = spec.align == '=' && !spec.zero ? spec.fill : "0";
    while (static_cast<int>(head.size() + digits.size()) < spec.width) {
      head += fill;
    }
  }
  return pad(MarkedText(head + digits), spec, '>');
}

std::string real_digits(double value, const Specification& spec, char type) {
  if (std::isnan(value)) return std::isupper(type) ? "NAN" : "nan";
  if (std::isinf(value)) return std::isupper(type) ? "INF" : "inf";
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  switch (type) {
    case 'e':
      return fmt::format("{:.{}e}", value, precision);
    case 'E':
      return fmt::format("{:.{}E}", value, precision);
    case 'g':
      return spec.alternate ? fmt::format("{:#.{}g}", value, precision)
                            : fmt::format("{:.{}g}", value, precision);
    case 'G':
      return spec.alternate ? fmt::format("{:#.{}G}", value, precision)
                            : fmt::format("{:.{}G}", value, precision);
    default:
      return fmt::format("{:.{}f}", value, precision);
  }
}

std::string integer_digits(std::int64_t value, char type) {
  const std::uint64_t size =
      value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  switch (type) {
    case 'x':
      return fmt::format("{:x}", size);
    case 'X':
      return fmt::format("{:X}", size);
    case 'o':
      return fmt::format("{:o}", size);
    case 'b':
      return fmt::format("{:b}", size);
    default:
      return fmt::format("{}", size);
  }
}

std::string_view integer_prefix(char type) {
  return type == 'x' ? "0x" : type == 'X' ? "0X" : type == 'o' ? "0o" : type == 'b' ? "0b" : "";
}

int read_number(std::string_view text, std::size_t& at) {
  int number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    number = number * 10 + (text[at] - '0');
    if (number > kMaxWidth) throw Failure{fmt::format("a format is wider than {} characters", kMaxWidth)};
  }
  return number;
}

MarkedText cut(MarkedText text, int precision) {
  if (precision < 0 || count_characters(text.view()) <= precision) return text;
  return text.part(0, character_offsets(text.view())[static_cast<std::size_t>(precision)]);
}

MarkedText format_percent_value(Heap& heap, Value value, const Specification& spec) {
  switch (spec.type) {
    case 's':
      return pad(cut(to_text(heap, value), spec.precision), spec, '>');
    case 'r':
    case 'a': {
      MarkedText text;
      append_repr(heap, value, text);
      return pad(cut(std::move(text), spec.precision), spec, '>');
    }
    case 'c': {
      if (value.is(Kind::kString) && count_characters(value.view()) == 1) return pad(*value.text, spec, '>');
      if (!value.is_integral()) throw Failure{"%c requires int or char"};
      if (value.as_integer() < 0 || value.as_integer() > 0x10ffff || (value.as_integer() >> 11) == 0x1b) {
        throw Failure{"%c arg not in range(0x110000)"};
      }
      std::string text;
      append_character(static_cast<char32_t>(value.as_integer()), text);
      return pad(MarkedText(text), spec, '>');
    }
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      require_defined(value);
      const bool takes_real = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
      if (!value.is_integral() && !(takes_real && value.is(Kind::kFloat))) {
        throw Failure{fmt::format("%{} format: a number is required, not {}", spec.type, type_name(value))};
      }
      if (value.is(Kind::kFloat) && !(std::fabs(value.real) < 9.2e18)) {
        throw Failure{"cannot convert float to integer"};
      }
      const std::int64_t number =
          value.is(Kind::kFloat) ? static_cast<std::int64_t>(value.real) : value.as_integer();
      std::string digits = integer_digits(number, spec.type);
      while (static_cast<int>(digits.size()) < spec.precision) digits.insert(0, 1, '0');
      return pad_number(digits, number < 0, spec, spec.alternate ? integer_prefix(spec.type) : "");
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': {
      require_defined(value);
      if (!value.is_number()) throw Failure{fmt::format("must be real number, not {}", type_name(value))};
      const double number = value.as_real();
      return pad_number(real_digits(std::fabs(number), spec, spec.type),
                        std::signbit(number) && !std::isnan(number), spec);
    }
    default:
      throw Failure{
          fmt::format("unsupported format character '{}'", printable(std::string_view(&spec.type, 1)))};
  }
}

Specification parse_braces_specification(std::string_view text) {
  Specification spec;
  std::size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    std::size_t behind = 0;
    next_character(text, behind);
    if (behind < text.size() && is_align(text[behind])) {
      spec.fill = std::string(text.substr(0, behind));
      spec.align = text[behind];
      at = behind + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  const auto take = [&](std::string_view any) {
    return at < text.size() && any.find(text[at]) != any.npos ? text[at++] : '\0';
  };
  spec.sign = take("+- ");
  spec.alternate = take("#") != 0;
  if (at < text.size() && text[at] == '0') {
    spec.zero = true;
    ++at;
  }
  spec.width = read_number(text, at);
  spec.grouping = take(",_");
  if (take(".") != 0) {
    const std::size_t begin = at;
    spec.precision = read_number(text, at);
    if (at == begin) throw Failure{"Format specifier missing precision"};
  }
  spec.type = take("sdxXobeEfFgGn%c");
  if (at != text.size()) throw Failure{fmt::format("Invalid format specifier '{}'", printable(text))};
  return spec;
}

MarkedText format_braces_value(Heap& heap, Value value, std::string_view text) {
  if (text.empty()) return to_text(heap, value);
  Specification spec = parse_braces_specification(text);
  if (value.is(Kind::kString)) {
    if (spec.type != 0 && spec.type != 's') {
      throw Failure{fmt::format("Unknown format code '{}' for object of type 'str'", spec.type)};
    }
    if (spec.zero && spec.align == 0) spec.fill = "0";
    return pad(cut(*value.text, spec.precision), spec, '<');
  }
  if (!value.is_number()) {
    require_defined(value);
    throw Failure{fmt::format("unsupported format string passed to {}.__format__", type_name(value))};
  }
  if (value.is(Kind::kBool) && spec.type == 0) {
    throw Failure{"a format specification for a bool", ErrorCode::kUnsupported};
  }
  const bool integer_type = std::string_view("dxXobcn").find(spec.type) != std::string_view::npos;
  if (value.is_integral() && (spec.type == 0 || (integer_type && spec.type != 'c'))) {
    const std::int64_t number = value.as_integer();
    return pad_number(integer_digits(number, spec.type), number < 0, spec,
                      spec.alternate ? integer_prefix(spec.type) : "");
  }
  if (spec.type == 0 || spec.type == 'c' || integer_type) {
    throw Failure{"this format specification", ErrorCode::kUnsupported};
  }
  const double number = value.as_real() * (spec.type == '%' ? 100 : 1);
  std::string digits = real_digits(std::fabs(number), spec, spec.type == '%' ? 'f' : spec.type);
  if (spec.type == '%') digits += '%';
  return pad_number(digits, std::signbit(number) && !std::isnan(number), spec);
}

/// The value of a field's name: "", "0", "name", "name[key].attribute".
Value field_value(Interpreter& interpreter, std::string_view name, const Arguments& arguments,
                  std::size_t& next) {
  const std::size_t head_end = std::min(name.find_first_of(".["), name.size());
  const std::string_view head = name.substr(0, head_end);
  const bool is_index = head.find_first_not_of("0123456789") == head.npos;
  Value value;
  if (is_index) {
    std::size_t at = 0;
    const std::size_t index = head.empty() ? next++ : static_cast<std::size_t>(read_number(head, at));
    if (index >= arguments.positional.size()) {
      throw Failure{fmt::format("Replacement index {} out of range for positional args tuple", index)};
    }
    value = arguments.positional[index];
  } else {
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& argument) { return argument.first == head; });
    if (named == arguments.named.end()) throw Failure{fmt::format("KeyError: '{}'", printable(head))};
    value = named->second;
  }
  for (std::string_view rest = name.substr(head_end); !rest.empty();) {
    if (rest[0] == '.') {
      const std::size_t end = std::min(rest.find_first_of(".[", 1), rest.size());
      value = interpreter.attribute(value, rest.substr(1, end - 1));
      rest.remove_prefix(end);
    } else {
      const std::size_t end = rest[0] == '[' ? rest.find(']') : rest.npos;
      if (end == rest.npos) throw Failure{"expected '}' before end of string"};
      const std::string_view key = rest.substr(1, end - 1);
      const bool number = !key.empty() && key.find_first_not_of("0123456789") == key.npos;
      std::size_t at = 0;
      value = interpreter.item(value, number ? Value::of(static_cast<std::int64_t>(read_number(key, at)))
                                             : interpreter.heap().string(key));
      rest.remove_prefix(end + 1);
    }
    require_defined(value);
  }
  return value;
}

/// The arguments of a % format: taken in turn, or by name from a dict.
class PercentArguments {
 public:
  explicit PercentArguments(Value arguments) : arguments_(arguments) {}

  Value next() {
    if (arguments_.is(Kind::kTuple)) {
      if (next_ < arguments_.sequence->items.size()) return arguments_.sequence->items[next_++];
    } else if (next_++ == 0) {
      return arguments_;
    }
    throw Failure{"not enough arguments for format string"};
  }

  Value named(std::string_view key) {
    if (!arguments_.is(Kind::kDict)) throw Failure{"format requires a mapping"};
    const Value* const found = arguments_.dict->find(key);
    if (found == nullptr) throw Failure{fmt::format("KeyError: '{}'", printable(key))};
    by_name_ = true;
    return *found;
  }

  bool are_used_up() const {
    if (by_name_) return true;
    if (arguments_.is(Kind::kTuple)) return next_ >= arguments_.sequence->items.size();
    return next_ > 0 || arguments_.is(Kind::kDict) || arguments_.is(Kind::kList) ||
           arguments_.is(Kind::kUndefined);
  }

 private:
  Value arguments_;
  std::size_t next_ = 0;
  bool by_name_ = false;
};

void read_percent_flags(std::string_view text, std::size_t& at, Specification& spec) {
  for (; at < text.size(); ++at) {
    switch (text[at]) {
      case '-':
        spec.align = '<';
        break;
      case '+':
        spec.sign = '+';
        break;
      case ' ':
        spec.sign = spec.sign == 0 ? ' ' : spec.sign;
        break;
      case '#':
        spec.alternate = true;
        break;
      case '0':
        spec.zero = true;
        break;
      default:
        return;
    }
  }
}

/// What stands behind a % and its key, up to the type.
Specification read_percent_specification(std::string_view text, std::size_t& at, PercentArguments& taken) {
  Specification spec;
  read_percent_flags(text, at, spec);
  const auto number_or_star = [&] {
    if (at >= text.size() || text[at] != '*') return read_number(text, at);
    ++at;
    const Value star = taken.next();
    if (!star.is_integral() || star.as_integer() < -kMaxWidth || star.as_integer() > kMaxWidth) {
      throw Failure{"* wants int"};
    }
    return static_cast<int>(star.as_integer());
  };
  spec.width = number_or_star();
  if (spec.width < 0) {
    spec.align = '<';
    spec.width = -spec.width;
  }
  if (at < text.size() && text[at] == '.') {
    ++at;
    spec.precision = std::max(0, number_or_star());
  }
  while (at < text.size() && (text[at] == 'l' || text[at] == 'h' || text[at] == 'L')) ++at;
  if (at >= text.size()) throw Failure{"incomplete format"};
  spec.type = text[at++];
  return spec;
}

}  // namespace

Value format_percent(Heap& heap, Value format, Value arguments) {
  const std::string_view text = format.view();
  heap.read(text.size());
  MarkedText out;
  PercentArguments taken(arguments);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t percent = std::min(text.find('%', at), text.size());
    out.append(*format.text, at, percent);
    at = percent;
    if (at == text.size()) break;
    ++at;
    std::optional<Value> value;
    if (at < text.size() && text[at] == '(') {
      const std::size_t end = text.find(')', at);
      if (end == text.npos) throw Failure{"incomplete format key"};
      value = taken.named(text.substr(at + 1, end - at - 1));
      at = end + 1;
    }
    const Specification spec = read_percent_specification(text, at, taken);
    if (spec.type == '%') {
      out.append("%");
      continue;
    }
    MarkedText printed = format_percent_value(heap, value ? *value : taken.next(), spec);
    heap.charge(printed.size());
    out.append(format.escaped ? escape_html(printed) : printed);
  }
  if (!taken.are_used_up()) throw Failure{"not all arguments converted during string formatting"};
  Value result = heap.string(std::move(out));
  result.escaped = format.escaped;
  return result;
}

Value format_braces(Interpreter& interpreter, Value format, const Arguments& arguments) {
  Heap& heap = interpreter.heap();
  const std::string_view text = format.view();
  heap.read(text.size());
  MarkedText out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t brace = std::min(text.find_first_of("{}", at), text.size());
    out.append(*format.text, at, brace);
    if (brace == text.size()) break;
    if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
      out.append(*format.text, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    if (text[brace] == '}') throw Failure{"Single '}' encountered in format string"};
    const std::size_t end = text.find('}', brace);
    if (end == text.npos) throw Failure{"Single '{' encountered in format string"};
    std::string_view field = text.substr(brace + 1, end - brace - 1);
    if (field.find('{') != field.npos)
      throw Failure{"a field within a format specification", ErrorCode::kUnsupported};
    at = end + 1;
    const std::size_t name_end = std::min(field.find_first_of("!:"), field.size());
    Value value = field_value(interpreter, field.substr(0, name_end), arguments, next);
    field.remove_prefix(name_end);
    if (field.starts_with('!')) {
      if (field.size() < 2 || (field[1] != 's' && field[1] != 'r') || (field.size() > 2 && field[2] != ':')) {
        throw Failure{"Unknown conversion specifier"};
      }
      MarkedText converted;
      if (field[1] == 'r') {
        append_repr(heap, value, converted);
      } else {
        converted = to_text(heap, value);
      }
      value = heap.string(std::move(converted));
      field.remove_prefix(2);
    }
    const MarkedText printed = format_braces_value(heap, value, field.empty() ? field : field.substr(1));
    heap.charge(printed.size());
    out.append(printed);
  }
  return heap.string(std::move(out));
}

}  // namespace tessera::jinja
