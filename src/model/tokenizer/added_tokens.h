#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace tessera::tokenizers {

/// A token that is found in the text itself, before the model splits the rest.
struct AddedToken {
  std::string content;
  TokenId id = -1;
  bool special = false;      ///< left out when decoding with skip_special_tokens
  bool normalized = false;   ///< found in the normalised text, not in the text as given
  bool single_word = false;  ///< only between characters that are no word characters
  bool lstrip = false;       ///< takes the white space before it, too
  bool rstrip = false;       ///< takes the white space after it, too
};

/// Part of a text: an added token, or text between them (id < 0).
struct TextSegment {
  std::size_t begin, end;
  TokenId id;
};

/// Finds a set of added tokens in texts: the leftmost, of those the longest, without overlap.
class AddedTokenMatcher {
 public:
  /// Longer contents would make the search slow. Callers check.
  static constexpr std::size_t kLongestContent = 512;

  explicit AddedTokenMatcher(std::vector<AddedToken> tokens = {});

  /// Splits `text` (valid UTF-8) into segments. Special tokens stay text unless options.parse_special_tokens,
  /// control tokens where options.plain (of `text`) says so. O(n) time.
  void split(std::string_view text, const EncodeOptions& options, std::vector<TextSegment>& segments) const;

  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* longest_match(std::string_view text, std::size_t at, const EncodeOptions& options) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> starts_{};  // which bytes a content starts with
};

}  // namespace tessera::tokenizers
