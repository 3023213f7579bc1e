#pragma once

#include <cstddef>
#include <string_view>

#include "modifier/text_error.h"
#include "tessera/attention.h"

namespace tessera::modifier {

enum class TokenKind { kEnd, kNumber, kName, kSymbol };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string_view text;  ///< empty at the end
  Position position;
};

/// Cuts one of a modifier's texts into tokens, one ahead. The modifier must outlive it.
class Lexer {
 public:
  Lexer(const ScoreModifier& modifier, bool in_visible);

  const Token& next() const { return next_; }
  bool next_is(std::string_view symbol) const;

  /// Throws as fail_at for a character that begins no token.
  Token take();
  /// Takes the next token if it is this symbol.
  bool take_if(std::string_view symbol);
  /// Takes it; throws as fail_at if it is another.
  void expect(std::string_view symbol);

  /// "'kv_id'", "the end", ….
  static std::string describe(const Token& token);

 private:
  Token read();

  const ScoreModifier& modifier_;
  std::string_view text_;
  bool in_visible_;
  std::size_t offset_ = 0;
  Token next_;
};

}  // namespace tessera::modifier
