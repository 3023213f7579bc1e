#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace tessera::tokenizers {

/// What every tokenizer does around the encoding itself: bounds the text, makes it UTF-8, and puts tokens
/// before and behind it.
class FramedTokenizer : public Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const final;
  std::optional<TokenId> bos_token_id() const final { return frame_.bos_token_id; }
  bool replaces_each_byte() const final { return frame_.replaces_each_byte; }

 protected:
  struct Frame {
    std::string source;                   ///< the file, for errors
    std::vector<TokenId> prefix, suffix;  ///< tokens put around the text if add_special_tokens
    std::optional<TokenId> bos_token_id;
    std::size_t longest_text = 0;  ///< bytes
    bool replaces_each_byte = false;
  };
  explicit FramedTokenizer(Frame frame) : frame_(std::move(frame)) {}

  /// Appends the tokens of `text`, which is valid UTF-8.
  virtual void append_tokens(std::string_view text, const EncodeOptions& options,
                             std::vector<TokenId>& ids) const = 0;

  /// Throws Error{kInvalidArgument} unless the tokenizer has `id`.
  void require(TokenId id) const;
  const std::string& source() const { return frame_.source; }

 private:
  Frame frame_;
};

}  // namespace tessera::tokenizers
