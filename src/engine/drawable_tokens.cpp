#include "engine/drawable_tokens.h"

#include <fmt/core.h>

#include "tessera/error.h"

namespace tessera {

DrawableTokens drawable_tokens(const ModelConfig& config, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return {config.vocab_size, {}};
  std::vector<bool> ends_text(static_cast<std::size_t>(config.vocab_size));
  for (const std::int32_t id : config.eos_token_ids) ends_text[static_cast<std::size_t>(id)] = true;
  DrawableTokens result;
  std::vector<std::int32_t> absent;  // since the last id that may be drawn
  for (std::int64_t i = 0; i < config.vocab_size; ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (!ends_text[static_cast<std::size_t>(i)] && !tokenizer->contains(id)) {
      absent.push_back(id);
      continue;
    }
    result.absent.insert(result.absent.end(), absent.begin(), absent.end());
    absent.clear();
    result.limit = i + 1;
  }
  if (result.limit == 0) {
    throw Error(
        ErrorCode::kCorruptFile,
        fmt::format("the tokenizer has a token for none of the model's {} ids; expected the tokenizer "
                    "that the model was trained with",
                    config.vocab_size));
  }
  return result;
}

}  // namespace tessera
