#include "model/tokenizer/framed_tokenizer.h"

#include <fmt/core.h>

#include "model/tokenizer/unicode.h"
#include "tessera/error.h"

namespace tessera::tokenizers {

std::vector<TokenId> FramedTokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > frame_.longest_text) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the text has {} bytes; at most {} can be encoded at once", text.size(),
                            frame_.longest_text));
  }
  std::string repaired;
  if (!unicode::is_valid_utf8(text)) {
    if (!options.plain.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the text is not UTF-8, so that its parts can't be told apart");
    }
    repaired = unicode::replace_invalid_utf8(text);
    text = repaired;
  }
  std::vector<TokenId> ids;
  if (options.add_special_tokens) ids = frame_.prefix;
  append_tokens(text, options, ids);
  if (options.add_special_tokens) ids.insert(ids.end(), frame_.suffix.begin(), frame_.suffix.end());
  return ids;
}

void FramedTokenizer::require(TokenId id) const {
  if (contains(id)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("token id {} is not in the vocabulary, whose ids are below {}", id, vocab_size()));
}

}  // namespace tessera::tokenizers
