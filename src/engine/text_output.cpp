#include "engine/text_output.h"

#include <utility>

#include "tessera/error.h"

namespace tessera {

bool opens_text(const Tokenizer* tokenizer, std::span<const std::int32_t> prompt) {
  return tokenizer == nullptr || prompt.empty() ||
         (tokenizer->contains(prompt.back()) && tokenizer->is_special(prompt.back()));
}

TextOutput::TextOutput(const Tokenizer* tokenizer, std::vector<std::string> stop, bool opens_text)
    : tokenizer_(tokenizer), stop_(std::move(stop)) {
  if (tokenizer == nullptr && !stop_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "stop strings need a tokenizer, which the model does not have");
  }
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer, /*skip_special_tokens=*/true, opens_text);
}

std::string TextOutput::push(std::int32_t token, bool is_last) {
  if (!decoder_) return {};
  std::string text;
  if (tokenizer_->contains(token)) text = decoder_->push(token);
  if (is_last) text += decoder_->finish();
  if (stop_.empty()) return text;
  text = stop_.push(text);
  if (is_last || stop_.stopped()) text += stop_.finish();
  return text;
}

std::string TextOutput::finish() {
  if (!decoder_) return {};
  std::string text = stop_.push(decoder_->finish());
  if (!stop_.stopped()) text += stop_.finish();
  return text;
}

}  // namespace tessera
