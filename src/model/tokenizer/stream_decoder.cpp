// Decoding, whole and streamed: a stream holds back bytes until they make whole characters.
#include <fmt/core.h>

#include <algorithm>

#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/unicode.h"
#include "tessera/error.h"

namespace tessera {
namespace {

std::string text_of(const Tokenizer& tokenizer, std::string_view bytes) {
  return unicode::replace_invalid_utf8(
      bytes, tokenizer.replaces_each_byte() ? unicode::IllFormed::kByte : unicode::IllFormed::kSubpart);
}

}  // namespace

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string bytes;
  bool first = true;
  for (const TokenId id : ids) {
    append_token_bytes(id, first, skip_special_tokens, bytes);
    if (!(skip_special_tokens && is_special(id))) first = false;
  }
  return text_of(*this, bytes);
}

std::vector<TokenId> ids_with_tokens(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                                     std::int64_t vocab_size) {
  const std::int64_t limit = std::max(vocab_size, tokenizer.vocab_size());
  std::vector<TokenId> known;
  known.reserve(ids.size());
  for (const TokenId id : ids) {
    if (id < 0 || id >= limit) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("token id {} is not in the vocabulary, whose ids are below {}", id, limit));
    }
    if (tokenizer.contains(id)) known.push_back(id);
  }
  return known;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens, bool opens_text)
    : tokenizer_(&tokenizer), skip_special_tokens_(skip_special_tokens), first_(opens_text) {}

std::string StreamDecoder::push(TokenId id) {
  tokenizer_->append_token_bytes(id, first_, skip_special_tokens_, pending_);
  if (!(skip_special_tokens_ && tokenizer_->is_special(id))) first_ = false;
  // A character that more bytes could complete has at most three so far: only the tail can be one.
  std::size_t whole = pending_.size();
  for (std::size_t length = 1; length <= 3 && length <= pending_.size(); ++length) {
    const std::string_view tail = std::string_view(pending_).substr(pending_.size() - length);
    const unicode::Utf8Step step = unicode::scan_utf8(tail);
    if (step.status == unicode::Utf8Status::kIncomplete && step.length == length) {
      whole = pending_.size() - length;
      break;
    }
  }
  std::string text = text_of(*tokenizer_, std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = text_of(*tokenizer_, pending_);
  pending_.clear();
  first_ = true;
  return text;
}

}  // namespace tessera
