#include "model/jinja/text_methods.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>

#include "model/jinja/arguments.h"
#include "model/jinja/builtins.h"
#include "model/jinja/characters.h"
#include "model/jinja/format.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/letter_case.h"
#include "model/jinja/operators.h"

namespace tessera::jinja {
namespace {

/// Each character of `text` through `convert`, which gets where it stands, too, and appends what it becomes.
template <class Convert>
MarkedText map_characters(const MarkedText& text, Convert convert) {
  MarkedText out;
  std::string piece;
  bool foreign = false;
  const std::string_view view = text.view();
  for (std::size_t position = 0; position < view.size();) {
    const bool is_foreign = text.is_foreign(position);
    if (is_foreign != foreign) {
      out.append(piece, foreign);
      piece.clear();
      foreign = is_foreign;
    }
    const std::size_t begin = position;
    const char32_t character = next_character(view, position);
    convert(character, begin, piece);
  }
  out.append(piece, foreign);
  return out;
}

bool in_set(char32_t character, const MarkedText* characters) {
  if (characters == nullptr) return is_space(character);
  const std::string_view view = characters->view();
  for (std::size_t position = 0; position < view.size();) {
    if (next_character(view, position) == character) return true;
  }
  return false;
}

std::size_t previous(std::string_view text, std::size_t position) {
  do --position;
  while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xc0) == 0x80);
  return position;
}

Value text_value(Heap& heap, MarkedText text) { return heap.string(std::move(text)); }

Value text_list(Heap& heap, std::vector<MarkedText> parts) {
  std::vector<Value> items;
  for (MarkedText& part : parts) items.push_back(heap.string(std::move(part)));
  return heap.list(std::move(items));
}

/// What a search from the end may look at: up to all of `wanted` at each place of `text`.
void read_backwards(Heap& heap, std::string_view text, std::string_view wanted) {
  heap.read(text.size() * std::min(text.size(), wanted.size()));
}

std::vector<MarkedText> split_at(const MarkedText& text, std::string_view separator, std::int64_t most,
                                 bool from_right) {
  std::vector<MarkedText> parts;
  const std::string_view view = text.view();
  if (!from_right) {
    std::size_t at = 0;
    while (most-- != 0) {
      const std::size_t found = find_text(view, separator, at);
      if (found == view.npos) break;
      parts.push_back(text.part(at, found));
      at = found + separator.size();
    }
    parts.push_back(text.part(at));
    return parts;
  }
  std::size_t end = view.size();
  while (most-- != 0 && end >= separator.size()) {
    const std::size_t found = view.rfind(separator, end - separator.size());
    if (found == view.npos) break;
    parts.push_back(text.part(found + separator.size(), end));
    end = found;
  }
  parts.push_back(text.part(0, end));
  std::ranges::reverse(parts);
  return parts;
}

/// At runs of white space.
std::vector<MarkedText> split_words(const MarkedText& text, std::int64_t most, bool from_right) {
  const std::string_view view = text.view();
  std::vector<TextRange> words;
  for (std::size_t position = 0; position < view.size();) {
    const std::size_t begin = position;
    if (is_space(next_character(view, position))) continue;
    if (!words.empty() && words.back().end == begin) {
      words.back().end = position;
    } else {
      words.push_back({begin, position});
    }
  }
  std::vector<MarkedText> parts;
  const auto count = static_cast<std::int64_t>(words.size());
  if (most < 0 || most >= count) {
    for (const TextRange word : words) parts.push_back(text.part(word.begin, word.end));
  } else if (!from_right) {
    for (std::int64_t i = 0; i < most; ++i)
      parts.push_back(
          text.part(words[static_cast<std::size_t>(i)].begin, words[static_cast<std::size_t>(i)].end));
    parts.push_back(text.part(words[static_cast<std::size_t>(most)].begin));
  } else {
    const auto kept = static_cast<std::size_t>(count - most);
    parts.push_back(text.part(0, words[kept - 1].end));
    for (std::size_t i = kept; i < words.size(); ++i)
      parts.push_back(text.part(words[i].begin, words[i].end));
  }
  return parts;
}

template <bool kFromRight>
Value split(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound(kFromRight ? "rsplit()" : "split()", arguments, {"sep", "maxsplit"});
  Heap& heap = interpreter.heap();
  heap.read(self.text->size() * 8);
  const std::int64_t most = bound.integer(1, -1);
  if (!bound.is_set(0)) return text_list(heap, split_words(*self.text, most, kFromRight));
  const MarkedText& separator = bound.text(0);
  if (separator.empty()) throw Failure{"empty separator"};
  if (kFromRight) read_backwards(heap, self.view(), separator.view());
  return text_list(heap, split_at(*self.text, separator.view(), most, kFromRight));
}

template <bool kFromRight>
Value partition(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("partition()", arguments, {"sep"}, 1);
  const std::string_view separator = bound.text(0).view();
  if (separator.empty()) throw Failure{"empty separator"};
  Heap& heap = interpreter.heap();
  heap.read(self.text->size());
  if (kFromRight) read_backwards(heap, self.view(), separator);
  const std::size_t at = kFromRight ? self.view().rfind(separator) : find_text(self.view(), separator);
  MarkedText none;
  std::vector<Value> items;
  if (at == std::string_view::npos) {
    const Value empty = heap.string(none);
    items = kFromRight ? std::vector<Value>{empty, empty, self} : std::vector<Value>{self, empty, empty};
  } else {
    items = {heap.string(self.text->part(0, at)), heap.string(self.text->part(at, at + separator.size())),
             heap.string(self.text->part(at + separator.size()))};
  }
  return heap.sequence(Kind::kTuple, std::move(items));
}

template <Side kSide>
Value strip_method(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("strip()", arguments, {"chars"});
  const MarkedText* const characters = bound.is_set(0) ? &bound.text(0) : nullptr;
  interpreter.heap().step(characters != nullptr ? self.text->size() * characters->size() / 64 : 0);
  return text_value(interpreter.heap(), strip(*self.text, kSide, characters));
}

template <MarkedText (*kConvert)(const MarkedText&)>
Value convert_method(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("the method", arguments, {});
  return text_value(interpreter.heap(), kConvert(*self.text));
}

/// str.title(): after anything that has no case comes a capital one.
MarkedText title_case(const MarkedText& text) {
  bool inside = false;
  return map_characters(text, [&](char32_t c, std::size_t at, std::string& out) {
    if (inside) {
      append_lower(text.view(), at, out);
    } else {
      append_title(c, out);
    }
    inside = is_cased(c);
  });
}

MarkedText swap_case(const MarkedText& text) {
  return map_characters(text, [&](char32_t c, std::size_t at, std::string& out) {
    if (is_upper(c)) {
      append_lower(text.view(), at, out);
    } else if (is_lower(c)) {
      append_upper(c, out);
    } else {
      append_character(c, out);
    }
  });
}

MarkedText fold_case(const MarkedText& text) {
  return map_characters(text, [](char32_t c, std::size_t, std::string& out) { append_folded(c, out); });
}

/// Where start and end of find(), count(), startswith(), … are, in bytes; false: beyond the text.
bool clip(const MarkedText& text, const Bound& bound, std::size_t first, std::size_t& begin,
          std::size_t& end) {
  begin = 0;
  end = text.size();
  if (!bound.is_set(first) && !bound.is_set(first + 1)) return true;
  const std::vector<std::size_t> offsets = character_offsets(text.view());
  const auto count = static_cast<std::int64_t>(offsets.size()) - 1;
  std::int64_t from = bound.is_set(first) ? bound.integer(first, 0) : 0;
  std::int64_t to = bound.is_set(first + 1) ? bound.integer(first + 1, count) : count;
  if (from < 0) from = std::max<std::int64_t>(from + count, 0);
  to = to < 0 ? std::max<std::int64_t>(to + count, 0) : std::min(to, count);
  if (from > to) return false;
  begin = offsets[static_cast<std::size_t>(from)];
  end = offsets[static_cast<std::size_t>(to)];
  return true;
}

template <bool kEnd>
Value starts_or_ends_with(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound(kEnd ? "endswith()" : "startswith()", arguments, {"affix", "start", "end"}, 1);
  std::vector<Value> affixes = {bound[0]};
  if (bound[0].is(Kind::kTuple)) affixes = items_of(interpreter.heap(), bound[0]);
  std::size_t begin = 0, end = 0;
  interpreter.heap().read(self.text->size());
  const bool inside = clip(*self.text, bound, 1, begin, end);
  bool found = false;
  for (const Value affix : affixes) {
    require_defined(affix);
    if (!affix.is(Kind::kString)) {
      throw Failure{fmt::format("{} first arg must be str or a tuple of str, not {}",
                                kEnd ? "endswith" : "startswith", type_name(affix))};
    }
    const std::string_view part = inside ? self.view().substr(begin, end - begin) : std::string_view();
    found = found || (inside && (kEnd ? part.ends_with(affix.view()) : part.starts_with(affix.view())));
  }
  return Value::of(found);
}

template <bool kFromRight, bool kMustBeThere>
Value find_method(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("find()", arguments, {"sub", "start", "end"}, 1);
  const std::string_view wanted = bound.text(0).view();
  interpreter.heap().read(self.text->size());
  std::size_t begin = 0, end = 0;
  std::size_t at = std::string_view::npos;
  if (clip(*self.text, bound, 1, begin, end)) {
    const std::string_view part = self.view().substr(begin, end - begin);
    if (kFromRight) read_backwards(interpreter.heap(), part, wanted);
    at = kFromRight ? part.rfind(wanted) : find_text(part, wanted);
  }
  if (at == std::string_view::npos) {
    if (kMustBeThere) throw Failure{"substring not found"};
    return Value::of(std::int64_t{-1});
  }
  return Value::of(count_characters(self.view().substr(0, begin + at)));
}

Value count_method(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("count()", arguments, {"sub", "start", "end"}, 1);
  const std::string_view wanted = bound.text(0).view();
  interpreter.heap().read(self.text->size());
  std::size_t begin = 0, end = 0;
  if (!clip(*self.text, bound, 1, begin, end)) return Value::of(std::int64_t{0});
  const std::string_view part = self.view().substr(begin, end - begin);
  if (wanted.empty()) return Value::of(count_characters(part) + 1);
  std::int64_t count = 0;
  for (std::size_t at = find_text(part, wanted); at != part.npos;
       at = find_text(part, wanted, at + wanted.size()))
    ++count;
  return Value::of(count);
}

Value replace_method(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("replace()", arguments, {"old", "new", "count"}, 2);
  return text_value(interpreter.heap(), replace(interpreter.heap(), *self.text, bound.text(0), bound.text(1),
                                                bound.integer(2, -1)));
}

Value join_method(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("join()", arguments, {"iterable"}, 1);
  Heap& heap = interpreter.heap();
  MarkedText text;
  bool first = true;
  require_defined(bound[0]);
  for (const Value item : items_of(heap, bound[0])) {
    require_defined(item);
    if (!item.is(Kind::kString))
      throw Failure{fmt::format("join(): expected str instance, {} found", type_name(item))};
    heap.charge(item.text->size() + self.text->size());
    if (!first) text.append(*self.text);
    text.append(*item.text);
    first = false;
  }
  return text_value(heap, std::move(text));
}

Value format_method(Interpreter& interpreter, Value self, const Arguments& arguments) {
  return format_braces(interpreter, self, arguments);
}

Value splitlines_method(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("splitlines()", arguments, {"keepends"});
  interpreter.heap().read(self.text->size() * 8);
  return text_list(interpreter.heap(), split_lines(*self.text, bound.integer(0, 0) != 0));
}

template <bool kPrefix>
Value remove_affix(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound(kPrefix ? "removeprefix()" : "removesuffix()", arguments, {"affix"}, 1);
  const std::string_view affix = bound.text(0).view();
  const bool there =
      !affix.empty() && (kPrefix ? self.view().starts_with(affix) : self.view().ends_with(affix));
  if (!there) return self;
  return text_value(interpreter.heap(), kPrefix ? self.text->part(affix.size())
                                                : self.text->part(0, self.text->size() - affix.size()));
}

template <Side kSide>
Value justify(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("the method", arguments, {"width", "fillchar"}, 1);
  Heap& heap = interpreter.heap();
  const std::string_view fill = bound.has(1) ? bound.text(1).view() : " ";
  if (count_characters(fill) != 1) throw Failure{"the fill character must be exactly one character long"};
  heap.read(self.text->size());
  const std::int64_t width = bound.integer(0, 0), size = count_characters(self.view());
  if (width <= size) return self;
  const std::int64_t missing = width - size;
  const std::int64_t before = kSide == Side::kLeft    ? 0
                              : kSide == Side::kRight ? missing
                                                      : missing / 2 + (missing & width & 1);
  MarkedText text(spaces(heap, before, fill));
  text.append(*self.text);
  text.append(spaces(heap, missing - before, fill));
  return text_value(heap, std::move(text));
}

Value zero_fill(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("zfill()", arguments, {"width"}, 1);
  interpreter.heap().read(self.text->size());
  const std::int64_t missing = bound.integer(0, 0) - count_characters(self.view());
  if (missing <= 0) return self;
  const std::size_t sign = self.view().starts_with('-') || self.view().starts_with('+') ? 1 : 0;
  MarkedText text = self.text->part(0, sign);
  text.append(spaces(interpreter.heap(), missing, "0"));
  text.append(*self.text, sign);
  return text_value(interpreter.heap(), std::move(text));
}

template <bool (*kHolds)(char32_t)>
Value all_characters(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("the method", arguments, {});
  interpreter.heap().read(self.text->size());
  const std::string_view view = self.view();
  bool all = !view.empty();
  for (std::size_t position = 0; all && position < view.size();) all = kHolds(next_character(view, position));
  return Value::of(all);
}

bool is_alphanumeric(char32_t c) { return is_alpha(c) || is_numeric(c); }

template <bool (*kHolds)(std::string_view)>
Value has_case(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("the method", arguments, {});
  interpreter.heap().read(self.text->size());
  return Value::of(kHolds(self.view()));
}

Value is_ascii(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("isascii()", arguments, {});
  return Value::of(
      std::ranges::all_of(self.view(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
}

constexpr NamedFunction kStringMethods[] = {
    {"capitalize", convert_method<capitalize>},
    {"casefold", convert_method<fold_case>},
    {"center", justify<Side::kBoth>},
    {"count", count_method},
    {"endswith", starts_or_ends_with<true>},
    {"find", find_method<false, false>},
    {"format", format_method},
    {"index", find_method<false, true>},
    {"isalnum", all_characters<is_alphanumeric>},
    {"isalpha", all_characters<is_alpha>},
    {"isascii", is_ascii},
    {"isdecimal", all_characters<is_decimal>},
    {"isdigit", all_characters<is_digit>},
    {"islower", has_case<is_lower_case>},
    {"isnumeric", all_characters<is_numeric>},
    {"isspace", all_characters<is_space>},
    {"isupper", has_case<is_upper_case>},
    {"join", join_method},
    {"ljust", justify<Side::kLeft>},
    {"lower", convert_method<lower>},
    {"lstrip", strip_method<Side::kLeft>},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replace_method},
    {"rfind", find_method<true, false>},
    {"rindex", find_method<true, true>},
    {"rjust", justify<Side::kRight>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip_method<Side::kRight>},
    {"split", split<false>},
    {"splitlines", splitlines_method},
    {"startswith", starts_or_ends_with<false>},
    {"strip", strip_method<Side::kBoth>},
    {"swapcase", convert_method<swap_case>},
    {"title", convert_method<title_case>},
    {"upper", convert_method<upper>},
    {"zfill", zero_fill},
};

template <bool (*kIs)(char32_t)>
bool has_only_case(std::string_view text) {
  bool any = false;
  for (std::size_t position = 0; position < text.size();) {
    const char32_t c = next_character(text, position);
    if (is_cased(c) && !kIs(c)) return false;
    any = any || kIs(c);
  }
  return any;
}

}  // namespace

MarkedText strip(const MarkedText& text, Side side, const MarkedText* characters) {
  const std::string_view view = text.view();
  std::size_t begin = 0, end = view.size();
  while (side != Side::kRight && begin < end) {
    std::size_t next = begin;
    if (!in_set(next_character(view, next), characters)) break;
    begin = next;
  }
  while (side != Side::kLeft && end > begin) {
    const std::size_t last = previous(view, end);
    std::size_t position = last;
    if (!in_set(next_character(view, position), characters)) break;
    end = last;
  }
  return text.part(begin, end);
}

MarkedText upper(const MarkedText& text) {
  return map_characters(text, [](char32_t c, std::size_t, std::string& out) { append_upper(c, out); });
}
MarkedText lower(const MarkedText& text) {
  return map_characters(
      text, [&](char32_t, std::size_t at, std::string& out) { append_lower(text.view(), at, out); });
}
MarkedText capitalize(const MarkedText& text) {
  return map_characters(text, [&](char32_t c, std::size_t at, std::string& out) {
    if (at == 0) {
      append_title(c, out);
    } else {
      append_lower(text.view(), at, out);
    }
  });
}

MarkedText replace(Heap& heap, const MarkedText& text, const MarkedText& old, const MarkedText& with,
                   std::int64_t count) {
  const std::string_view view = text.view(), wanted = old.view();
  heap.read(view.size());
  MarkedText out;
  std::size_t done = 0;
  const auto put = [&](std::size_t at) {
    heap.charge(with.size());
    out.append(text, done, at);
    out.append(with);
    done = at;
  };
  if (wanted.empty()) {  // before each character, and at the end
    for (const std::size_t at : character_offsets(view)) {
      if (count-- == 0) break;
      put(at);
    }
  } else {
    for (std::size_t at = find_text(view, wanted); at != view.npos && count-- != 0;
         at = find_text(view, wanted, done)) {
      put(at);
      done = at + wanted.size();
    }
  }
  out.append(text, done);
  return out;
}

MarkedText center(Heap& heap, const MarkedText& text, std::int64_t width) {
  const std::int64_t missing = width - count_characters(text.view());
  if (missing <= 0) return text;
  const std::int64_t before = missing / 2 + (missing & width & 1);
  MarkedText out(spaces(heap, before));
  out.append(text);
  out.append(spaces(heap, missing - before));
  return out;
}

std::vector<MarkedText> split_lines(const MarkedText& text, bool keep_ends) {
  std::vector<MarkedText> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = line_break_length(text.view(), at);
    if (length == 0) {
      ++at;
      continue;
    }
    lines.push_back(text.part(begin, keep_ends ? at + length : at));
    at += length;
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.part(begin));
  return lines;
}

bool is_lower_case(std::string_view text) { return has_only_case<is_lower>(text); }
bool is_upper_case(std::string_view text) { return has_only_case<is_upper>(text); }

std::string spaces(Heap& heap, std::int64_t count, std::string_view fill) {
  if (count <= 0) return {};
  // Beyond the limit in any case, so that the product can't overflow.
  const auto copies = static_cast<std::size_t>(std::min<std::int64_t>(count, std::int64_t{1} << 40));
  heap.charge(copies * fill.size());
  std::string text;
  for (std::size_t i = 0; i < copies; ++i) text += fill;
  return text;
}

NativeFunction find_string_method(std::string_view name) { return find_function(kStringMethods, name); }

}  // namespace tessera::jinja
