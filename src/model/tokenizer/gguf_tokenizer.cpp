// Tokenizers from GGUF metadata.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "model/tokenizer/pipeline_tokenizer.h"
#include "model/tokenizer/sentencepiece_tokenizer.h"
#include "tessera/error.h"

namespace tessera {
namespace tokenizers {
namespace {

/// What the name in tokenizer.ggml.pre stands for: what the models' own tokenizer.json files have.
struct PreTokenizerKind {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;  // each splits what the one before left
  bool normalize_nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // unless the file says otherwise
};

const std::vector<PreTokenizerKind>& pre_tokenizer_kinds() {
  static const std::vector<PreTokenizerKind> kinds = {
      {{"gpt-2", "gpt2", "default", "", "mpt", "olmo", "jais"}, {kGpt2Pattern}},
      {{"llama-bpe", "llama3", "llama-v3"},
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
        R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       false,
       true,
       true},
      {{"qwen2", "stablelm2"},
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
        R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       true},
      {{"deepseek-r1-qwen"},
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
        R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell"}, {R"(\p{N})", kGpt2Pattern}},
      {{"tekken"},
       {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
        R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
        R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       false,
       true},
      {{"deepseek-v3"},
       {R"(\p{N}{1,3})", R"([一-龥぀-ゟ゠-ヿ]+)",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
        R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
  };
  return kinds;
}

const PreTokenizerKind& find_pre_tokenizer(const std::string& name, const std::string& source) {
  std::string known;
  for (const PreTokenizerKind& kind : pre_tokenizer_kinds()) {
    if (std::find(kind.names.begin(), kind.names.end(), name) != kind.names.end()) return kind;
    for (const std::string_view other : kind.names)
      if (!other.empty()) known += (known.empty() ? "" : ", ") + std::string(other);
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: tokenizer.ggml.pre is \"{}\", which is not supported; supported are {}",
                          source, printable(name), known));
}

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
    return is_byte && data_.model == "llama" ? PieceType::kByte : PieceType::kNormal;
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
  const PreTokenizerKind& kind = find_pre_tokenizer(data.pre, source);
  PipelineParts parts;
  Vocabulary vocabulary;
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    vocabulary.set(id, data.tokens[i]);
    const PieceType type = reader.type(i);
    const bool special = type == PieceType::kControl || type == PieceType::kUnknown;
    if ((!special && type != PieceType::kUserDefined) || data.tokens[i].empty()) continue;
    reader.check_length(i, AddedTokenMatcher::kLongestContent);
    parts.added_tokens.push_back({.content = data.tokens[i], .id = id, .special = special});
  }
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

}  // namespace
}  // namespace tokenizers

std::shared_ptr<const Tokenizer> make_gguf_tokenizer(const GgufTokenizerData& data,
                                                     const std::string& source) {
  using namespace tokenizers;
  const Reader reader(data, source);
  if (data.model == "gpt2" || data.model == "llama") reader.check();
  if (data.model == "gpt2") return make_byte_level(data, reader, source);
  if (data.model == "llama") return make_sentencepiece(data, reader, source);
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: tokenizer.ggml.model is \"{}\"; supported are \"gpt2\" (byte-level BPE) and "
                          "\"llama\" (SentencePiece)",
                          source, printable(data.model)));
}

}  // namespace tessera
