#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/regex.h"

namespace tessera::tokenizers {

/// Turns the spelling of one token into the bytes it stands for. A text is what its tokens' bytes make
/// together.
class TokenDecoder {
 public:
  /// Rewrites one token's spelling; `first` says that the token opens the text.
  using Step = std::function<std::string(std::string text, bool first, WorkBudget& budget)>;

  std::vector<Step> steps;
  bool byte_fallback = false;     ///< then <0x0A> is the byte 10
  bool byte_level = false;        ///< then spellings are in the byte-level alphabet, if wholly
  std::string stripped_at_start;  ///< removed once from the start of the text, if it is there
  std::string separator;          ///< between tokens

  std::string decode(std::string_view text, bool first, WorkBudget& budget) const;
};

/// Removes up to `start` characters `content` from the start of each token and up to `stop` from its end.
TokenDecoder::Step strip_token_step(std::string content, std::size_t start, std::size_t stop);
/// Reads `replacement` as a space; none in the first token if `drop_first`.
TokenDecoder::Step metaspace_token_step(std::string replacement, bool drop_first);

}  // namespace tessera::tokenizers
