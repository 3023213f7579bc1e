// UTF-8 scanning by hand; properties and decompositions from utf8proc.
#include "model/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "tessera/error.h"

namespace tessera::unicode {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// Letters by shape: Other_Alphabetic symbols that aren't marks.
bool is_alphabetic_symbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

/// Appends the full decomposition of `c` to `out`.
void decompose(char32_t c, bool compatibility, std::vector<utf8proc_int32_t>& out) {
  constexpr utf8proc_ssize_t kLongest = 32;  // U+FDFA has 18 code points
  utf8proc_int32_t buffer[kLongest];
  int boundary_state = 0;
  const int options = UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0);
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer, kLongest,
                                             static_cast<utf8proc_option_t>(options), &boundary_state);
  if (count < 0 || count > kLongest) {
    out.push_back(static_cast<utf8proc_int32_t>(c));
    return;
  }
  out.insert(out.end(), buffer, buffer + count);
}

utf8proc_propval_t combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

/// Canonical ordering. utf8proc's own sorts by insertion, which is quadratic on a long run of marks.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  for (std::size_t i = 0; i < text.size();) {
    if (combining_class(text[i]) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(
        text.begin() + static_cast<std::ptrdiff_t>(i), text.begin() + static_cast<std::ptrdiff_t>(end),
        [](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
}

/// Whether every character is below the first that the form can change.
bool is_trivially_normal(std::string_view text, NormalizationForm form) {
  // In UTF-8 a character below U+0300 starts with a byte below 0xCC; all of them are stable under NFC.
  const unsigned char limit = form == NormalizationForm::kNfc ? 0xCC : 0x80;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < limit;
  });
}

}  // namespace

Utf8Step scan_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, Utf8Status::kValid};
  std::size_t length = 0;
  unsigned char second_min = 0x80, second_max = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) second_min = 0xA0;
    if (lead == 0xED) second_max = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) second_min = 0x90;
    if (lead == 0xF4) second_max = 0x8F;
  } else {
    return {1, Utf8Status::kInvalid};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, Utf8Status::kIncomplete};
    const unsigned char min = i == 1 ? second_min : 0x80, max = i == 1 ? second_max : 0xBF;
    if (byte(i) < min || byte(i) > max) return {i, Utf8Status::kInvalid};
  }
  return {length, Utf8Status::kValid};
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = scan_utf8(text);
    if (step.status != Utf8Status::kValid) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text, IllFormed unit) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = scan_utf8(text);
    const bool is_valid = step.status == Utf8Status::kValid;
    const std::size_t length = is_valid || unit == IllFormed::kSubpart ? step.length : 1;
    out += is_valid ? text.substr(0, length) : kReplacement;
    text.remove_prefix(length);
  }
  return out;
}

std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

char32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[position + i]));
  };
  const std::size_t length = utf8_length(text[position]);
  char32_t c = byte(0);
  if (length == 2) c = (c & 0x1F) << 6 | (byte(1) & 0x3F);
  if (length == 3) c = (c & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  if (length == 4) c = (c & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  position += length;
  return c;
}

void append_utf8(char32_t c, std::string& out) {
  const auto add = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xC0 | c >> 6);
    add(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12);
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  } else {
    add(0xF0 | c >> 18);
    add(0x80 | (c >> 12 & 0x3F));
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  }
}

std::size_t next_word_start(std::string_view text, std::size_t from) {
  // Past the space symbols that open this word, and then to the next.
  while (text.substr(from).starts_with(kSpaceSymbol)) from += kSpaceSymbol.size();
  return std::min(text.find(kSpaceSymbol, from), text.size());
}

bool is_whitespace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_numeric(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
           (c >= 0x7B && c <= 0x7E);
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_word(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D || is_alphabetic_symbol(c);
  }
}

std::string normalize(std::string_view text, NormalizationForm form) {
  if (is_trivially_normal(text, form)) return std::string(text);
  const bool compatibility = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  const bool compose = form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size() + 1);
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (c < 0x80)
      points.push_back(static_cast<utf8proc_int32_t>(c));
    else
      decompose(c, compatibility, points);
  }
  order_marks(points);
  if (compose) {
    const auto count =
        utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                 static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    if (count < 0) throw Error(ErrorCode::kInvalidArgument, "the text can't be normalised");
    points.resize(static_cast<std::size_t>(count));
  }
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t c : points) append_utf8(static_cast<char32_t>(c), out);
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (c == 0x130)  // the only character whose lower case has two
      out += "i\xCC\x87";
    else
      append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
  return out;
}

}  // namespace tessera::unicode
