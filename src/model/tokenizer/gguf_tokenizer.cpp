// Tokenizers from GGUF metadata.
#include <fmt/core.h>

#include <cmath>

#include "model/tokenizer/gguf_pre_tokenizers.h"
#include "model/tokenizer/pipeline_tokenizer.h"
#include "model/tokenizer/sentencepiece_tokenizer.h"
#include "tessera/error.h"

namespace tessera {
namespace tokenizers {
namespace {

/// Metadata with the checks that both models need.
class Reader {
 public:
  Reader(const GgufTokenizerData& data, const std::string& source) : data_(data), source_(source) {}

  [[noreturn]] void fail(const char* key, const std::string& message) const {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: tokenizer.ggml.{}: {}", source_, key, message));
  }

  void check() const {
    const std::size_t count = data_.tokens.size();
    if (count == 0) fail("tokens", "is missing or empty");
    if (count > static_cast<std::size_t>(Vocabulary::kMaxId) + 1)
      fail("tokens", fmt::format("has {} entries, expected at most {}", count, Vocabulary::kMaxId + 1));
    if (!data_.scores.empty() && data_.scores.size() != count)
      fail("scores",
           fmt::format("has {} entries, expected {}, one for each token", data_.scores.size(), count));
    if (!data_.token_types.empty() && data_.token_types.size() != count)
      fail("token_type",
           fmt::format("has {} entries, expected {}, one for each token", data_.token_types.size(), count));
    for (std::size_t i = 0; i < count; ++i) {
      if (!unicode::is_valid_utf8(data_.tokens[i])) fail("tokens", fmt::format("entry {} is not UTF-8", i));
      if (!data_.token_types.empty() && (data_.token_types[i] < 1 || data_.token_types[i] > 6))
        fail("token_type", fmt::format("entry {} is {}, expected 1 to 6", i, data_.token_types[i]));
    }
    check_id("bos_token_id", data_.bos_token_id);
    check_id("eos_token_id", data_.eos_token_id);
    check_id("unknown_token_id", data_.unknown_token_id);
  }

  PieceType type(std::size_t i) const {
    if (!data_.token_types.empty()) return static_cast<PieceType>(data_.token_types[i]);
    const auto id = static_cast<TokenId>(i);
    if (id == data_.unknown_token_id) return PieceType::kUnknown;
    if (id == data_.bos_token_id || id == data_.eos_token_id) return PieceType::kControl;
    const std::string& text = data_.tokens[i];
    const bool is_byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
    return is_byte && data_.model != "gpt2" ? PieceType::kByte : PieceType::kNormal;
  }

  /// Whether the entry only fills a vocabulary up to the model's: no text has this token.
  bool is_padding(std::size_t i) const {
    return type(i) == PieceType::kUnused && data_.tokens[i] == gguf_padding_token(static_cast<TokenId>(i));
  }

  /// The one token that is put before or behind a text, if any.
  std::vector<TokenId> around(const char* key, std::optional<bool> asked, bool otherwise,
                              std::optional<TokenId> id) const {
    if (asked.value_or(false) && !id) fail(key, "is missing, but a text is to get this token");
    if (!asked.value_or(otherwise) || !id) return {};
    return {*id};
  }

  void check_length(std::size_t i, std::size_t longest) const {
    if (data_.tokens[i].size() > longest)
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: tokenizer.ggml.tokens: entry {} has {} bytes; at most {} are supported",
                              source_, i, data_.tokens[i].size(), longest));
  }

 private:
  void check_id(const char* key, std::optional<TokenId> id) const {
    if (id && (*id < 0 || static_cast<std::size_t>(*id) >= data_.tokens.size()))
      fail(key, fmt::format("is {}, expected an id below {}", *id, data_.tokens.size()));
  }

  const GgufTokenizerData& data_;
  const std::string& source_;
};

/// All tokens but padding. Those that stand for themselves in a text are added, too.
Vocabulary read_vocabulary(const GgufTokenizerData& data, const Reader& reader,
                           std::vector<AddedToken>& added_tokens) {
  Vocabulary vocabulary;
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (reader.is_padding(i)) continue;
    vocabulary.set(id, data.tokens[i]);
    const PieceType type = reader.type(i);
    const bool special = type == PieceType::kControl || type == PieceType::kUnknown;
    if ((!special && type != PieceType::kUserDefined) || data.tokens[i].empty()) continue;
    reader.check_length(i, AddedTokenMatcher::kLongestContent);
    added_tokens.push_back({.content = data.tokens[i], .id = id, .special = special});
  }
  return vocabulary;
}

std::vector<BpeMerge> read_merges(const GgufTokenizerData& data, const Vocabulary& vocabulary,
                                  const Reader& reader) {
  std::vector<BpeMerge> merges;
  merges.reserve(data.merges.size());
  std::string joined;
  for (std::size_t i = 0; i < data.merges.size(); ++i) {
    const std::string_view merge = data.merges[i];
    const std::size_t space = merge.find(' ', 1);
    if (space == merge.npos) reader.fail("merges", fmt::format("entry {} has no two parts", i));
    const auto id_of = [&](std::string_view text) {
      const auto id = vocabulary.find(text);
      if (!id)
        reader.fail("merges", fmt::format("entry {} needs a token that is not in tokenizer.ggml.tokens", i));
      return *id;
    };
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    joined = left;
    joined += right;
    merges.push_back({id_of(left), id_of(right), id_of(joined)});
  }
  return merges;
}

std::shared_ptr<const Tokenizer> make_byte_level(const GgufTokenizerData& data, const Reader& reader,
                                                 const std::string& source) {
  const PreTokenizerKind& kind = pre_tokenizer_kind(data.pre, source);
  PipelineParts parts;
  Vocabulary vocabulary = read_vocabulary(data, reader, parts.added_tokens);
  if (kind.normalize_nfc) parts.normalizer = Normalizer({unicode_step(unicode::NormalizationForm::kNfc)});
  for (const std::string_view pattern : kind.patterns)
    parts.pre_tokenizer.steps.push_back(
        split_step(regex_matcher(Regex(pattern, source)), SplitBehavior::kIsolated, false));
  parts.pre_tokenizer.words_are_bytes = true;
  const std::vector<BpeMerge> merges = read_merges(data, vocabulary, reader);
  parts.model = std::make_unique<const BpeModel>(
      std::move(vocabulary), merges,
      BpeOptions{.unknown_id = data.unknown_token_id, .ignore_merges = kind.ignore_merges});
  parts.source = source;
  parts.prefix = reader.around("bos_token_id", data.add_bos_token, kind.add_bos, data.bos_token_id);
  parts.suffix = reader.around("eos_token_id", data.add_eos_token, false, data.eos_token_id);
  parts.decoder.byte_level = true;
  parts.decode_added_tokens = false;
  parts.bos_token_id = data.bos_token_id;
  return make_pipeline_tokenizer(std::move(parts));
}

std::shared_ptr<const Tokenizer> make_sentencepiece(const GgufTokenizerData& data, const Reader& reader,
                                                    const std::string& source) {
  if (data.scores.empty()) reader.fail("scores", "is missing, but SentencePiece models need it");
  SentencePieceParts parts;
  parts.source = source;
  parts.pieces = data.tokens;
  parts.scores = data.scores;
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    if (std::isnan(data.scores[i])) reader.fail("scores", fmt::format("entry {} is not a number", i));
    reader.check_length(i, kLongestPiece);
    parts.types.push_back(reader.type(i));
  }
  parts.add_space_prefix = data.add_space_prefix.value_or(true);
  parts.prefix = reader.around("bos_token_id", data.add_bos_token, true, data.bos_token_id);
  parts.suffix = reader.around("eos_token_id", data.add_eos_token, false, data.eos_token_id);
  parts.bos_token_id = data.bos_token_id;
  parts.unknown_token_id = data.unknown_token_id;
  return make_sentencepiece_tokenizer(std::move(parts));
}

/// Gemma 4's: merges of characters, spaces as symbols, nothing split but runs of line ends from the rest.
std::shared_ptr<const Tokenizer> make_character_bpe(const GgufTokenizerData& data, const Reader& reader,
                                                    const std::string& source) {
  PipelineParts parts;
  Vocabulary vocabulary = read_vocabulary(data, reader, parts.added_tokens);
  const std::string space(unicode::kSpaceSymbol);
  parts.normalizer = Normalizer({replace_step(literal_matcher(" "), space)});
  parts.pre_tokenizer.steps.push_back(
      split_step(regex_matcher(Regex(R"([^\n]+|[\n]+)", source)), SplitBehavior::kIsolated, false));
  const std::vector<BpeMerge> merges = read_merges(data, vocabulary, reader);
  parts.model = std::make_unique<const BpeModel>(
      std::move(vocabulary), merges,
      BpeOptions{.unknown_id = data.unknown_token_id, .fuse_unknown = true, .byte_fallback = true});
  parts.source = source;
  parts.prefix = reader.around("bos_token_id", data.add_bos_token, true, data.bos_token_id);
  parts.suffix = reader.around("eos_token_id", data.add_eos_token, false, data.eos_token_id);
  parts.decoder.steps.push_back(metaspace_token_step(space, /*drop_first=*/false));
  parts.decoder.byte_fallback = true;
  parts.decode_added_tokens = false;
  parts.bos_token_id = data.bos_token_id;
  return make_pipeline_tokenizer(std::move(parts));
}

}  // namespace
}  // namespace tokenizers

std::shared_ptr<const Tokenizer> make_gguf_tokenizer(const GgufTokenizerData& data,
                                                     const std::string& source) {
  using namespace tokenizers;
  const Reader reader(data, source);
  if (data.model == "gpt2" || data.model == "llama" || data.model == "gemma4") reader.check();
  if (data.model == "gpt2") return make_byte_level(data, reader, source);
  if (data.model == "llama") return make_sentencepiece(data, reader, source);
  if (data.model == "gemma4") return make_character_bpe(data, reader, source);
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: tokenizer.ggml.model is \"{}\"; supported are \"gpt2\" (byte-level BPE), "
                          "\"llama\" (SentencePiece) and \"gemma4\" (BPE of characters)",
                          source, printable(data.model)));
}

}  // namespace tessera
