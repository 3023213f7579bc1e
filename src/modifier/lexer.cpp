#include "modifier/lexer.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/text.h"

namespace tessera::modifier {
namespace {

// Not those of <cctype>, which follow the locale.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// The end of the number that begins at `begin`: digits, a point with digits on both sides, an exponent.
std::size_t end_of_number(std::string_view text, std::size_t begin) {
  const auto digits = [&](std::size_t i) {
    while (i < text.size() && is_digit(text[i])) ++i;
    return i;
  };
  const auto digit_at = [&](std::size_t i) { return i < text.size() && is_digit(text[i]); };
  std::size_t i = digits(begin);
  if (i < text.size() && text[i] == '.' && digit_at(i + 1)) i = digits(i + 1);
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    const bool has_sign = i + 1 < text.size() && (text[i + 1] == '-' || text[i + 1] == '+');
    if (digit_at(i + 1 + (has_sign ? 1 : 0))) i = digits(i + 1 + (has_sign ? 1 : 0));
  }
  return i;
}

}  // namespace

Lexer::Lexer(const ScoreModifier& modifier, bool in_visible)
    : modifier_(modifier), text_(in_visible ? modifier.visible : modifier.score), in_visible_(in_visible) {
  next_ = read();
}

bool Lexer::next_is(std::string_view symbol) const {
  return next_.kind == TokenKind::kSymbol && next_.text == symbol;
}

Token Lexer::take() {
  const Token token = next_;
  next_ = read();
  return token;
}

bool Lexer::take_if(std::string_view symbol) {
  if (!next_is(symbol)) return false;
  take();
  return true;
}

void Lexer::expect(std::string_view symbol) {
  if (!take_if(symbol))
    fail_at(modifier_, next_.position, fmt::format("expected '{}', found {}", symbol, describe(next_)));
}

std::string Lexer::describe(const Token& token) {
  return token.kind == TokenKind::kEnd ? "the end of the text" : fmt::format("'{}'", printable(token.text));
}

Token Lexer::read() {
  while (offset_ < text_.size() && std::string_view(" \t\r\n").find(text_[offset_]) != std::string_view::npos)
    ++offset_;
  const Position position{in_visible_, offset_};
  if (offset_ == text_.size()) return {TokenKind::kEnd, {}, position};
  const char c = text_[offset_];
  const auto token = [&](TokenKind kind, std::size_t size) {
    offset_ += size;
    return Token{kind, text_.substr(position.offset, size), position};
  };
  if (is_digit(c)) return token(TokenKind::kNumber, end_of_number(text_, offset_) - offset_);
  if (is_letter(c)) {
    std::size_t end = offset_;
    while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
    return token(TokenKind::kName, end - offset_);
  }
  for (const std::string_view symbol : {"||", "&&", "==", "!=", "<=", ">="}) {
    if (text_.substr(offset_, 2) == symbol) return token(TokenKind::kSymbol, 2);
  }
  if (std::string_view("=;?:<>+-*/%![](),").find(c) != std::string_view::npos)
    return token(TokenKind::kSymbol, 1);
  const char* hint = c == '&'   ? "; 'and' is '&&'"
                     : c == '|' ? "; 'or' is '||'"
                     : c == '.' ? "; a number begins with a digit, as in 0.5"
                                : "";
  const std::size_t size = std::max<std::size_t>(utf8_sequence_length(text_.substr(offset_)), 1);
  fail_at(
      modifier_, position,
      fmt::format("'{}' begins nothing in this language{}", printable(text_.substr(offset_, size)), hint));
}

}  // namespace tessera::modifier
