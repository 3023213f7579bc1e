#include "model/jinja/print.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <string>

#include "model/jinja/characters.h"
#include "model/jinja/operators.h"

namespace tessera::jinja {
namespace {

/// What repr writes instead of a character; empty: the character itself.
std::string repr_escape(char32_t character, char quote) {
  if (character == static_cast<char32_t>(quote) || character == '\\')
    return {'\\', static_cast<char>(character)};
  if (character == '\n') return "\\n";
  if (character == '\r') return "\\r";
  if (character == '\t') return "\\t";
  if (is_printable(character)) return {};
  const auto code = static_cast<std::uint32_t>(character);
  if (code < 0x100) return fmt::format("\\x{:02x}", code);
  return code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
}

void append_string_repr(Heap& heap, const MarkedText& text, MarkedText& out) {
  const std::string_view view = text.view();
  heap.charge(view.size());
  heap.read(16 * view.size());  // every character is looked up
  const bool has_single = view.find('\'') != view.npos, has_double = view.find('"') != view.npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out.append(std::string_view(&quote, 1));
  std::size_t done = 0;
  for (std::size_t position = 0; position < view.size();) {
    const std::size_t begin = position;
    const std::string escaped = repr_escape(next_character(view, position), quote);
    if (escaped.empty()) continue;
    out.append(text, done, begin);
    out.append(escaped, text.is_foreign(begin));
    done = position;
  }
  out.append(text, done);
  out.append(std::string_view(&quote, 1));
}

void append_repr(Heap& heap, Value value, MarkedText& out, int depth);

void append_items(Heap& heap, const std::vector<Value>& items, MarkedText& out, int depth) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(heap, items[i], out, depth + 1);
  }
}

void append_entries(Heap& heap, const Dict& dict, MarkedText& out, int depth) {
  out.append("{");
  for (std::size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(heap, dict.entries[i].first, out, depth + 1);
    out.append(": ");
    append_repr(heap, dict.entries[i].second, out, depth + 1);
  }
  out.append("}");
}

void append_repr(Heap& heap, Value value, MarkedText& out, int depth) {
  require_nesting(depth);
  heap.step();
  heap.charge(8);  // about what is printed of anything but a string
  switch (value.kind) {
    case Kind::kUndefined:
      out.append("Undefined");
      break;
    case Kind::kNone:
      out.append("None");
      break;
    case Kind::kBool:
      out.append(value.boolean ? "True" : "False");
      break;
    case Kind::kInt:
      out.append(fmt::format("{}", value.integer));
      break;
    case Kind::kFloat:
      out.append(float_repr(value.real));
      break;
    case Kind::kString:
      if (value.escaped) out.append("Markup(");
      append_string_repr(heap, *value.text, out);
      if (value.escaped) out.append(")");
      break;
    case Kind::kList:
      out.append("[");
      append_items(heap, value.sequence->items, out, depth);
      out.append("]");
      break;
    case Kind::kTuple:
      out.append("(");
      append_items(heap, value.sequence->items, out, depth);
      out.append(value.sequence->items.size() == 1 ? ",)" : ")");
      break;
    case Kind::kRange:
      out.append(fmt::format("range({}, {}", value.sequence->start, value.sequence->stop));
      out.append(value.sequence->step == 1 ? ")" : fmt::format(", {})", value.sequence->step));
      break;
    case Kind::kView:
      out.append(value.sequence->view_name);
      out.append("([");
      append_items(heap, value.sequence->items, out, depth);
      out.append("])");
      break;
    case Kind::kDict:
      append_entries(heap, *value.dict, out, depth);
      break;
    case Kind::kNamespace:
      out.append("<Namespace ");
      append_entries(heap, *value.dict, out, depth);
      out.append(">");
      break;
    case Kind::kLoop:
      out.append(fmt::format("<LoopContext {}/{}>", value.loop->index0 + 1, value.loop->count()));
      break;
    case Kind::kFunction:
      if (value.function->macro != nullptr) {
        out.append(fmt::format("<Macro '{}'>", value.function->name));
        break;
      }
      [[fallthrough]];
    case Kind::kIterator:
      throw Failure{
          fmt::format("a {} can't be printed: what Python prints of it is an address", type_name(value)),
          ErrorCode::kUnsupported};
  }
}

}  // namespace

void append_repr(Heap& heap, Value value, MarkedText& out) { append_repr(heap, value, out, 0); }

MarkedText to_text(Heap& heap, Value value) {
  if (value.is(Kind::kString)) {
    heap.read(value.text->size());
    return *value.text;
  }
  MarkedText text;
  if (!value.is(Kind::kUndefined)) append_repr(heap, value, text);
  return text;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string text(buffer, end);
  const std::size_t mark = text.find('e');
  const int exponent = std::stoi(text.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) return text;  // "1e+16", with at least two digits, as Python writes it
  const std::string sign = text[0] == '-' ? "-" : "";
  std::string digits;
  for (const char c : text.substr(0, mark)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  return sign + digits.substr(0, whole) + "." + (digits.size() > whole ? digits.substr(whole) : "0");
}

}  // namespace tessera::jinja
