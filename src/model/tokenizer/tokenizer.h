#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.h"

namespace tessera {

using TokenId = std::int32_t;

class TokenizerConfig;  // tokenizer_config.h

struct EncodeOptions {
  bool add_special_tokens = true;    ///< BOS/EOS as the tokenizer's post-processor says
  bool parse_special_tokens = true;  ///< text that spells a special token becomes that token
  /// Parts of the text, ascending, that must not make control tokens: one that has a byte there stays text.
  std::span<const TextRange> plain = {};
  /// Beside special tokens those added ones are control tokens that stand in here (and are not white space
  /// alone).
  std::string_view control_text = {};
};

/// Turns text into token ids and back. Immutable and safe to use from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of `text`, which may hold any bytes: invalid UTF-8 is read as U+FFFD, as Hugging Face's tokenizers
  /// does. Time and memory are at most O(n log n) in the text's length.
  virtual std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const = 0;

  /// Text of `ids`. Bytes that don't form UTF-8 become U+FFFD, one for all that begin a character, or one a
  /// byte if replaces_each_byte(). Throws Error{kInvalidArgument} for an id that is not in the vocabulary.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = true) const;

  /// Appends the raw bytes of one token to `bytes`, which may end inside a UTF-8 sequence. `first` says that
  /// it opens the text (SentencePiece drops the leading space there). Special tokens add nothing if
  /// skip_special_tokens.
  virtual void append_token_bytes(TokenId id, bool first, bool skip_special_tokens,
                                  std::string& bytes) const = 0;

  /// Whether `id` has a token: ids below vocab_size() may be missing.
  virtual bool contains(TokenId id) const = 0;
  /// The token as the vocabulary spells it. Throws like decode.
  virtual std::string_view token_text(TokenId id) const = 0;
  virtual std::optional<TokenId> find_token(std::string_view text) const = 0;
  virtual bool is_special(TokenId id) const = 0;
  virtual std::int64_t vocab_size() const = 0;  ///< highest id + 1
  /// Whether bytes that form no text have tokens of their own, each of which is a U+FFFD then, as
  /// SentencePiece and Hugging Face's tokenizers have it. (The latter's ByteFallback also loses the whole
  /// characters of a run of such tokens that isn't UTF-8 throughout; they stay here, as SentencePiece leaves
  /// them.)
  virtual bool replaces_each_byte() const = 0;
  virtual std::optional<TokenId> bos_token_id() const = 0;
};

/// `ids` without those that have no token: a model's vocabulary is often padded beyond its tokenizer's, and
/// what has no token is no text. Throws Error{kInvalidArgument} for an id that neither the tokenizer nor a
/// model of `vocab_size` tokens has.
std::vector<TokenId> ids_with_tokens(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                                     std::int64_t vocab_size);

/// Decodes a stream of tokens: each call returns the longest prefix of whole UTF-8 characters that is new, so
/// that no piece ever ends inside a character.
class StreamDecoder {
 public:
  /// opens_text: nothing stands before the stream's text, so that SentencePiece drops a leading space.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens = true, bool opens_text = true);
  std::string push(TokenId id);
  /// What is left; an unfinished character becomes U+FFFD as in decode.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  bool first_ = true;
  std::string pending_;
};

/// Bytes of a tokenizer.json: far more than any real one has.
inline constexpr std::size_t kLongestTokenizerJson = std::size_t{1} << 27;

/// Reads a Hugging Face tokenizer.json. Throws Error{kIo}, Error{kCorruptFile} (naming the field) or
/// Error{kUnsupported} (naming the component that has no implementation here).
std::shared_ptr<const Tokenizer> load_tokenizer_json(const std::filesystem::path& path);

/// The same from text in memory; `source` names it in errors. `config` (may be null) is what stands beside
/// it.
std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string_view json, const std::string& source,
                                                      const TokenizerConfig* config = nullptr);

/// A tokenizer.json that says all that `json` and `config` together say. Throws like parse_tokenizer_json,
/// and Error{kUnsupported} naming a key that a tokenizer.json has nothing for.
std::string merged_tokenizer_json(const std::string& json, const std::string& source,
                                  const TokenizerConfig& config);

/// What GGUF's metadata says about a tokenizer (keys tokenizer.ggml.*).
struct GgufTokenizerData {
  std::string model;  ///< "gpt2" (byte-level BPE) or "llama" (SentencePiece)
  std::string pre;    ///< name of the pre-tokenizer: "llama-bpe", "qwen2", "gpt-2", "default", …
  std::vector<std::string> tokens;  ///< (vocab_size)
  std::vector<float> scores;        ///< (vocab_size) or empty
  std::vector<std::int32_t>
      token_types;  ///< (vocab_size) or empty; 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte
  std::vector<std::string> merges;  ///< "left right", best first; empty for "llama"
  std::optional<TokenId> bos_token_id, eos_token_id, unknown_token_id;
  std::optional<bool> add_bos_token, add_eos_token, add_space_prefix;
};

/// Throws Error{kCorruptFile} or Error{kUnsupported} like load_tokenizer_json.
std::shared_ptr<const Tokenizer> make_gguf_tokenizer(const GgufTokenizerData& data,
                                                     const std::string& source);

/// What GGUF files call an id that has no token, "[PAD7]": their lists of tokens are as long as the model's
/// vocabulary. Of the type 5 (unused) it is none to tokenizers.
std::string gguf_padding_token(TokenId id);

/// A tokenizer.json as GGUF's metadata says it.
struct GgufTokenizerForm {
  GgufTokenizerData data;  ///< beginning and end of a text are those that are put around it
  /// Whether make_gguf_tokenizer(data) does all that the tokenizer.json says. What it may leave out are
  /// spaces before texts that have some or that follow an added token, conditions of added tokens, and those
  /// beyond the model's, which it can't take anyway.
  bool is_complete = false;
};

/// The form of the tokenizer.json `json`, which `source` names and `tokenizer` was made of, for a model of
/// `vocab_size` tokens. Throws Error{kUnsupported} naming what such metadata can't say: another pre-tokenizer
/// or normalizer than those with a name, merges that are no order of pieces, tokens beyond the model's that
/// nobody added.
/// lists_merges: of a model with byte fallback its merges are listed, as Gemma 4's files have them, and are
/// not taken for an order of pieces.
GgufTokenizerForm gguf_tokenizer_form(std::string_view json, const std::string& source,
                                      const Tokenizer& tokenizer, std::int64_t vocab_size,
                                      bool lists_merges = false);

}  // namespace tessera
