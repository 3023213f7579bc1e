#include "model/jinja/lexer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/text.h"
#include "model/jinja/characters.h"

namespace tessera::jinja {
namespace {

// Every line break as "\n", without the one that ends the template.
std::string normalize_lines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      text += '\n';
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::size_t trimmed_size(std::string_view text) {
  const std::vector<std::size_t> offsets = character_offsets(text);
  for (std::size_t i = offsets.size() - 1; i > 0; --i) {
    std::size_t position = offsets[i - 1];
    if (!is_space(next_character(text, position))) return offsets[i];
  }
  return 0;
}

bool is_identifier_start(unsigned char c) { return std::isalpha(c) || c == '_' || c >= 0x80; }
bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_lines(source)), text_(source_) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const std::size_t tag = find_tag();
      const std::string_view kind = text_.substr(tag, 2);
      if (tag == text_.size()) {
        add_text(text_.substr(at_));
        break;
      }
      const char sign =
          tag + 2 < text_.size() && (text_[tag + 2] == '-' || text_[tag + 2] == '+') ? text_[tag + 2] : ' ';
      add_text_before(tag, sign, kind != "{{");
      at_ = tag + 2 + (sign == ' ' ? 0 : 1);
      if (kind == "{#") {
        skip_comment();
      } else if (std::size_t behind = 0; kind == "{%" && opens_raw(behind)) {
        read_raw(behind);
      } else {
        read_tag(kind == "{{");
      }
    }
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw SyntaxError{line_, message}; }

  void push(TokenKind kind, std::string_view text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::string(text);
    tokens_.push_back(std::move(token));
  }

  void count_lines(std::size_t begin, std::size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(begin),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
  }

  void advance(std::size_t to) {
    count_lines(at_, to);
    at_ = to;
  }

  std::size_t find_tag() const {
    for (std::size_t i = at_; i + 1 < text_.size(); ++i) {
      if (text_[i] == '{' && (text_[i + 1] == '%' || text_[i + 1] == '{' || text_[i + 1] == '#')) return i;
    }
    return text_.size();
  }

  void add_text(std::string_view text) {
    if (!text.empty()) push(TokenKind::kText, text);
  }

  /// Text up to a tag, less what the tag takes from its end.
  void add_text_before(std::size_t tag, char sign, bool may_strip) {
    std::string_view text = text_.substr(at_, tag - at_);
    if (sign == '-') {
      text = text.substr(0, trimmed_size(text));
    } else if (sign != '+' && may_strip) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t line_begin = newline == text.npos ? 0 : newline + 1;
      if (line_begin > 0 || line_starting_) {
        if (trimmed_size(text.substr(line_begin)) == 0) text = text.substr(0, line_begin);
      }
    }
    add_text(text);
    advance(tag);
  }

  /// Behind "-%}" all white space goes, behind "%}" of a block or comment one line break does.
  void finish_tag(bool minus, bool trim) {
    std::size_t end = at_;
    if (minus) {
      while (end < text_.size()) {
        std::size_t next = end;
        if (!is_space(next_character(text_, next))) break;
        end = next;
      }
    } else if (trim && end < text_.size() && text_[end] == '\n') {
      ++end;
    }
    advance(end);
    line_starting_ = at_ > 0 && text_[at_ - 1] == '\n';
  }

  void skip_comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == text_.npos) fail("a comment that nothing ends; expected '#}'");
    const char before = end > at_ ? text_[end - 1] : ' ';
    advance(end + 2);
    finish_tag(before == '-', before != '+');
  }

  std::size_t skip_space(std::size_t from) const {
    while (from < text_.size()) {
      std::size_t next = from;
      if (!is_space(next_character(text_, next))) break;
      from = next;
    }
    return from;
  }

  bool opens_raw(std::size_t& behind) const {
    std::size_t at = skip_space(at_);
    if (text_.substr(at, 3) != "raw") return false;
    at = skip_space(at + 3);
    const bool minus = text_.substr(at, 3) == "-%}";
    if (!minus && text_.substr(at, 2) != "%}") return false;
    behind = minus ? skip_space(at + 3) : at + 2;
    return true;
  }

  void read_raw(std::size_t behind) {
    advance(behind);
    line_starting_ = text_[at_ - 1] == '\n';
    for (std::size_t tag = text_.find("{%", at_); tag != text_.npos; tag = text_.find("{%", tag + 2)) {
      std::size_t at = tag + 2;
      const char sign = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at++] : ' ';
      at = skip_space(at);
      if (text_.substr(at, 6) != "endraw") continue;
      at = skip_space(at + 6);
      const char end = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at++] : ' ';
      if (text_.substr(at, 2) != "%}") continue;
      add_text_before(tag, sign, true);
      advance(at + 2);
      finish_tag(end == '-', end != '+');
      return;
    }
    fail("a raw block that nothing ends; expected '{% endraw %}'");
  }

  void read_tag(bool variable) {
    push(variable ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, variable ? "{{" : "{%");
    const std::string_view end = variable ? "}}" : "%}";
    std::string open;
    for (;;) {
      advance(skip_space(at_));
      if (at_ >= text_.size()) fail(fmt::format("a tag that nothing ends; expected '{}'", end));
      if (open.empty()) {
        const bool minus = text_[at_] == '-' && text_.substr(at_ + 1, 2) == end;
        const bool plus = !variable && text_[at_] == '+' && text_.substr(at_ + 1, 2) == end;
        if (minus || plus || text_.substr(at_, 2) == end) {
          push(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, end);
          at_ += minus || plus ? 3 : 2;
          finish_tag(minus, !variable && !plus);
          return;
        }
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = text_[at_];
    if (c == '\'' || c == '"') {
      read_string(c);
    } else if (is_ascii_digit(c)) {
      read_number();
    } else if (is_identifier_start(static_cast<unsigned char>(c))) {
      std::size_t end = at_;
      while (end < text_.size() &&
             (is_identifier_start(static_cast<unsigned char>(text_[end])) || is_ascii_digit(text_[end])))
        ++end;
      push(TokenKind::kName, text_.substr(at_, end - at_));
      at_ = end;
    } else {
      read_operator(open);
    }
  }

  void read_operator(std::string& open) {
    constexpr std::array<std::string_view, 6> kLong = {"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view sign : kLong) {
      if (text_.substr(at_, 2) != sign) continue;
      push(TokenKind::kOperator, sign);
      at_ += 2;
      return;
    }
    const char c = text_[at_];
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      fail(fmt::format("unexpected character '{}'", printable(text_.substr(at_, 1))));
    }
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail(fmt::format("unexpected '{}'", c));
      if (open.back() != c) fail(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    push(TokenKind::kOperator, text_.substr(at_, 1));
    ++at_;
  }

  void read_string(char quote) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail("a string that nothing ends");
    const std::string value = unescape(text_.substr(at_ + 1, end - at_ - 1));
    push(TokenKind::kString, value);
    advance(end + 1);
  }

  std::string unescape(std::string_view raw) const {
    std::string out;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\') {
        out += raw[i];
        continue;
      }
      const char c = raw[++i];
      constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
      if (const std::size_t known = kLetters.find(c); known != kLetters.npos) {
        out += kMeanings[known];
      } else if (c == '\n') {
        continue;  // the line goes on
      } else if (c >= '0' && c <= '7') {
        char32_t code = 0;
        std::size_t length = 0;
        for (; length < 3 && i + length < raw.size() && raw[i + length] >= '0' && raw[i + length] <= '7';
             ++length) {
          code = code * 8 + static_cast<char32_t>(raw[i + length] - '0');
        }
        i += length - 1;
        append_character(code, out);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_character(hexadecimal(raw, i + 1, length), out);
        i += length;
      } else if (c == 'N') {
        throw SyntaxError{line_, "a character by its name, \\N{…}, is not supported", true};
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  char32_t hexadecimal(std::string_view raw, std::size_t begin, std::size_t length) const {
    std::uint32_t code = 0;
    const std::string_view digits = raw.substr(std::min(begin, raw.size()), length);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != length || end != digits.data() + digits.size())
      fail("a truncated \\x, \\u or \\U escape");
    if (code > 0x10ffff || (code >> 11) == 0x1b) fail("an escape that is no character");
    return static_cast<char32_t>(code);
  }

  /// Digits with single underscores between them.
  std::size_t digits_end(std::size_t from) const {
    while (from < text_.size() &&
           (is_ascii_digit(text_[from]) ||
            (text_[from] == '_' && from + 1 < text_.size() && is_ascii_digit(text_[from + 1]))))
      ++from;
    return from;
  }

  void read_number() {
    constexpr std::string_view kBases = "bBoOxX";
    std::size_t end = digits_end(at_);
    Token token;
    token.line = line_;
    int base = 10;
    std::size_t begin = at_;
    if (text_[at_] == '0' && at_ + 1 < text_.size() && kBases.find(text_[at_ + 1]) != kBases.npos) {
      const char letter = static_cast<char>(std::tolower(text_[at_ + 1]));
      base = letter == 'b' ? 2 : letter == 'o' ? 8 : 16;
      begin = end = at_ + 2;
      while (end < text_.size() &&
             (std::isxdigit(static_cast<unsigned char>(text_[end])) || text_[end] == '_'))
        ++end;
    }
    bool is_float = false;
    if (base == 10) {
      if (end + 1 < text_.size() && text_[end] == '.' && is_ascii_digit(text_[end + 1])) {
        end = digits_end(end + 1);
        is_float = true;
      }
      if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
        std::size_t exponent = end + 1;
        if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
        if (exponent < text_.size() && is_ascii_digit(text_[exponent])) {
          end = digits_end(exponent);
          is_float = true;
        }
      }
    }
    std::string digits(text_.substr(begin, end - begin));
    std::erase(digits, '_');
    const char *first = digits.data(), *last = digits.data() + digits.size();
    if (is_float) {
      token.kind = TokenKind::kFloat;
      if (std::from_chars(first, last, token.real).ec == std::errc::result_out_of_range) {
        token.real = std::strtod(first, nullptr);
      }
    } else {
      token.kind = TokenKind::kInteger;
      if (base == 10 && digits.size() > 1 && digits[0] == '0' &&
          digits.find_first_not_of('0') != digits.npos) {
        fail(fmt::format("an integer with leading zeros: '{}'", printable(digits)));
      }
      const auto [stop, error] = std::from_chars(first, last, token.integer, base);
      if (error == std::errc::result_out_of_range) {
        throw SyntaxError{line_, fmt::format("the integer {} leaves the range of 64 bits", printable(digits)),
                          true};
      }
      if (error != std::errc() || stop != last) fail(fmt::format("'{}' is no number", printable(digits)));
    }
    token.text = digits;
    tokens_.push_back(std::move(token));
    at_ = end;
  }

  std::string source_;
  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace tessera::jinja
