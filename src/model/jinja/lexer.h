#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::jinja {

enum class TokenKind {
  kText,           // outside of tags
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 0;
  std::string text;  // a string's without quotes and escapes
  std::int64_t integer = 0;
  double real = 0;

  bool is(TokenKind other, std::string_view what) const { return kind == other && text == what; }
  bool is_name(std::string_view name) const { return is(TokenKind::kName, name); }
  bool is_operator(std::string_view sign) const { return is(TokenKind::kOperator, sign); }
};

/// An error in a template's text.
struct SyntaxError {
  int line;
  std::string message;
  bool unsupported = false;
};

/// Cuts a template (UTF-8) into tokens as jinja2 does with trim_blocks and lstrip_blocks: what a tag's - and
/// + and these two take from the text around it is gone. The last token is kEnd. Throws SyntaxError.
std::vector<Token> tokenize(std::string_view source);

}  // namespace tessera::jinja
