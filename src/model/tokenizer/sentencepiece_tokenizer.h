#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace tessera::tokenizers {

/// What a piece of a SentencePiece vocabulary is; the numbers are those of its files and of GGUF.
enum class PieceType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,  ///< always found in the text, whatever the scores
  kUnused = 5,       ///< only on the way to other pieces
  kByte = 6,         ///< one byte of a character that has no piece, spelled <0x00> to <0xFF>
};

struct SentencePieceParts {
  std::string source;                   ///< the file, for errors
  std::vector<std::string> pieces;      ///< (vocab_size) valid UTF-8 of at most kLongestPiece bytes
  std::vector<float> scores;            ///< (vocab_size) none is NaN
  std::vector<PieceType> types;         ///< (vocab_size)
  bool add_space_prefix = true;         ///< a space goes before every text
  std::vector<TokenId> prefix, suffix;  ///< tokens put around the text if add_special_tokens
  std::optional<TokenId> bos_token_id, unknown_token_id;
};

inline constexpr std::size_t kLongestPiece = 512;

/// SentencePiece's byte pair encoding (Kudo and Richardson, 2018): of all neighbours that make a piece
/// together, those whose piece has the highest score are joined first.
std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(SentencePieceParts parts);

}  // namespace tessera::tokenizers
