#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/tokenizer/tokenizer.h"

namespace tessera {

/// Which ids of a model's vocabulary may be drawn: those that its tokenizer has a token for, and those that
/// end a text. A vocabulary is often padded beyond the tokenizer's (Qwen's by 271 ids), with weights that
/// nobody trained.
struct DrawableTokens {
  std::int64_t limit = 0;            ///< above the highest; sampling looks at the logits before it only
  std::vector<std::int32_t> absent;  ///< ids below limit that may not be drawn
};

/// All ids if there is no tokenizer. Throws Error{kCorruptFile} if no id is left.
DrawableTokens drawable_tokens(const ModelConfig& config, const Tokenizer* tokenizer);

}  // namespace tessera
