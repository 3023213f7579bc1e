#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe_model.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/token_decoder.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/vocabulary.h"

namespace tessera::tokenizers {

/// The parts of a tokenizer in the order in which a text passes through them.
struct PipelineParts {
  std::string source;                    ///< the file, for errors
  std::vector<AddedToken> added_tokens;  // with ids
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const BpeModel> model;
  std::vector<TokenId> prefix, suffix;  // tokens put around the text if add_special_tokens
  TokenDecoder decoder;
  bool decode_added_tokens = true;    // false: their bytes are their content, whatever the decoder says
  bool split_special_tokens = false;  // true: texts never make special tokens
  std::optional<TokenId> bos_token_id;
};

/// A tokenizer made of added tokens, a normalizer, a pre-tokenizer, BPE, a template and a decoder.
std::shared_ptr<const Tokenizer> make_pipeline_tokenizer(PipelineParts parts);

}  // namespace tessera::tokenizers
