#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::tokenizers {

/// A half-open range of bytes of a text.
struct TextRange {
  std::size_t begin, end;
  bool operator==(const TextRange&) const = default;
};

/// A regular expression in the syntax that tokenizer.json files use (Oniguruma's, of which the part that
/// PCRE2 reads in the same way is supported). Immutable and safe to use from several threads.
class Regex {
 public:
  /// Throws Error{kUnsupported} that begins with `where` if the pattern is not valid or not supported.
  Regex(std::string_view pattern, const std::string& where);

  /// Appends the matches in `text` (valid UTF-8), from left to right and without overlap. Throws
  /// Error{kUnsupported} if matching takes unreasonably long: a pattern may need exponential time.
  void find_all(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace tessera::tokenizers
