// Full case mappings by utf8proc, which has those of one character to one, and foldings of all.
#include "model/jinja/letter_case.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <span>

#include "model/jinja/characters.h"

namespace tessera::jinja {
namespace {

struct Range {
  char32_t first, last;
};

// Unicode's Other_Uppercase and Other_Lowercase: what has a case without being a letter that has one.
constexpr std::array<Range, 5> kOtherUpper = {
    {{0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}}};
constexpr std::array<Range, 25> kOtherLower = {
    {{0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},     {0x2e0, 0x2e4},
     {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},   {0x1d9b, 0x1dbf},
     {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},   {0x24d0, 0x24e9},
     {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},   {0xab5c, 0xab5f},
     {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}, {0x10fc, 0x10fc}}};

constexpr char32_t kIota = 0x3b9, kIotaBelow = 0x345, kSigma = 0x3a3;

bool is_in(char32_t c, std::span<const Range> ranges) {
  return std::ranges::any_of(ranges, [c](const Range& range) { return c >= range.first && c <= range.last; });
}

utf8proc_int32_t signed_of(char32_t c) { return static_cast<utf8proc_int32_t>(c); }

utf8proc_category_t category_of(char32_t c) { return utf8proc_category(signed_of(c)); }

char32_t single_upper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(signed_of(c))); }

/// Up to 3 characters that `c` is folded to.
std::span<const utf8proc_int32_t> folded(char32_t c, std::array<utf8proc_int32_t, 4>& room) {
  int boundary = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(signed_of(c), room.data(), room.size(), UTF8PROC_CASEFOLD, &boundary);
  return {room.data(), static_cast<std::size_t>(std::clamp<utf8proc_ssize_t>(count, 0, room.size()))};
}

/// Whether `c` is no capital and becomes several characters in upper case: those of its folding.
bool is_several(char32_t c, std::span<const utf8proc_int32_t> fold) {
  return fold.size() > 1 &&
         (category_of(c) == UTF8PROC_CATEGORY_LL || category_of(c) == UTF8PROC_CATEGORY_LT);
}

/// What a search for a word's end passes over.
bool is_ignorable(char32_t c) {
  switch (category_of(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return std::u32string_view(
                 U"'.:\u00b7\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a")
                 .find(c) != std::u32string_view::npos;
  }
}

/// Whether a letter stands before text[position] and none behind the character there.
bool ends_word(std::string_view text, std::size_t position) {
  std::size_t after = position;
  next_character(text, after);
  while (after < text.size()) {
    const char32_t c = next_character(text, after);
    if (is_ignorable(c)) continue;
    if (is_cased(c)) return false;
    break;
  }
  while (position > 0) {
    do --position;
    while ((static_cast<unsigned char>(text[position]) & 0xc0) == 0x80);
    std::size_t at = position;
    const char32_t c = next_character(text, at);
    if (!is_ignorable(c)) return is_cased(c);
  }
  return false;
}

}  // namespace

bool is_upper(char32_t c) { return category_of(c) == UTF8PROC_CATEGORY_LU || is_in(c, kOtherUpper); }
bool is_lower(char32_t c) { return category_of(c) == UTF8PROC_CATEGORY_LL || is_in(c, kOtherLower); }
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || category_of(c) == UTF8PROC_CATEGORY_LT; }

void append_upper(char32_t c, std::string& out) {
  std::array<utf8proc_int32_t, 4> room;
  const std::span<const utf8proc_int32_t> fold = folded(c, room);
  if (!is_several(c, fold)) return append_character(single_upper(c), out);
  for (const utf8proc_int32_t part : fold) append_character(single_upper(static_cast<char32_t>(part)), out);
}

void append_title(char32_t c, std::string& out) {
  const auto title = [](char32_t c) { return static_cast<char32_t>(utf8proc_totitle(signed_of(c))); };
  std::array<utf8proc_int32_t, 4> room;
  const std::span<const utf8proc_int32_t> fold = folded(c, room);
  if (category_of(title(c)) == UTF8PROC_CATEGORY_LT || !is_several(c, fold))
    return append_character(title(c), out);
  bool has_capital = false;
  for (const utf8proc_int32_t part : fold) {
    const auto small = static_cast<char32_t>(part);
    if (!has_capital) {
      append_character(title(small), out);
      has_capital = title(small) != small;
    } else {  // an iota that stood below its letter stays there
      append_character(small == kIota ? kIotaBelow : small, out);
    }
  }
}

void append_folded(char32_t c, std::string& out) {
  std::array<utf8proc_int32_t, 4> room;
  for (const utf8proc_int32_t part : folded(c, room)) append_character(static_cast<char32_t>(part), out);
}

void append_lower(std::string_view text, std::size_t position, std::string& out) {
  std::size_t after = position;
  const char32_t c = next_character(text, after);
  if (c == 0x130) {
    out += "i\xcc\x87";
  } else if (c == kSigma && ends_word(text, position)) {
    append_character(0x3c2, out);
  } else {
    append_character(static_cast<char32_t>(utf8proc_tolower(signed_of(c))), out);
  }
}

}  // namespace tessera::jinja
