// The tokenizer that passes a text through the parts of a pipeline.
#include "model/tokenizer/pipeline_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>

#include "model/tokenizer/unicode.h"
#include "tessera/error.h"

namespace tessera::tokenizers {
namespace {

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(PipelineParts parts) : parts_(std::move(parts)) {
    const Vocabulary& vocabulary = parts_.model->vocabulary();
    vocab_size_ = vocabulary.id_limit();
    std::vector<AddedToken> as_given, normalized;
    for (AddedToken& token : parts_.added_tokens) {
      Added added{token.content, "", token.special};
      if (token.normalized) token.content = parts_.normalizer.apply(token.content);
      if (parts_.decode_added_tokens) added.spelling = token.content;
      vocab_size_ = std::max<std::int64_t>(vocab_size_, token.id + 1);
      added_ids_.insert_or_assign(added.content, token.id);
      added_.insert_or_assign(token.id, std::move(added));
      if (!token.content.empty()) (token.normalized ? normalized : as_given).push_back(std::move(token));
    }
    parts_.added_tokens = {};
    matcher_ = AddedTokenMatcher(std::move(as_given));
    normalized_matcher_ = AddedTokenMatcher(std::move(normalized));
    for (TokenId id = 0; id < vocab_size_; ++id) {
      bytes_begin_.push_back(bytes_.size());
      if (contains(id)) bytes_ += decoded(id, false);
    }
    bytes_begin_.push_back(bytes_.size());
  }

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    if (text.size() > kLongestText)
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("the text has {} bytes; at most {} can be encoded at once", text.size(), kLongestText));
    std::string repaired;
    if (!unicode::is_valid_utf8(text)) {
      repaired = unicode::replace_invalid_utf8(text);
      text = repaired;
    }
    std::vector<TokenId> ids;
    if (options.add_special_tokens) ids = parts_.prefix;
    BpeModel::Workspace workspace;
    std::vector<TextSegment> segments, inner;
    matcher_.split(text, options.parse_special_tokens, segments);
    for (const TextSegment& segment : segments) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
        continue;
      }
      std::string_view part = text.substr(segment.begin, segment.end - segment.begin);
      std::string normalized;
      if (!parts_.normalizer.empty()) {
        normalized = parts_.normalizer.apply(part);
        part = normalized;
      }
      inner.clear();
      normalized_matcher_.split(part, options.parse_special_tokens, inner);
      for (const TextSegment& piece : inner) {
        if (piece.id >= 0)
          ids.push_back(piece.id);
        else
          encode_text(part.substr(piece.begin, piece.end - piece.begin),
                      segment.begin == 0 && piece.begin == 0, workspace, ids);
      }
    }
    if (options.add_special_tokens) ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
    return ids;
  }

  void append_token_bytes(TokenId id, bool first, bool skip_special_tokens,
                          std::string& bytes) const override {
    require(id);
    if (skip_special_tokens && is_special(id)) return;
    if (first) {
      bytes += decoded(id, true);
    } else {
      const auto* begin = &bytes_begin_[static_cast<std::size_t>(id)];
      bytes.append(bytes_, begin[0], begin[1] - begin[0]);
    }
  }

  bool contains(TokenId id) const override {
    return added_.contains(id) || parts_.model->vocabulary().contains(id);
  }

  std::string_view token_text(TokenId id) const override {
    require(id);
    const auto added = added_.find(id);
    return added != added_.end() ? added->second.content : parts_.model->vocabulary().text(id);
  }

  std::optional<TokenId> find_token(std::string_view text) const override {
    if (const auto added = added_ids_.find(std::string(text)); added != added_ids_.end())
      return added->second;
    return parts_.model->vocabulary().find(text);
  }

  bool is_special(TokenId id) const override {
    const auto added = added_.find(id);
    return added != added_.end() && added->second.special;
  }

  std::int64_t vocab_size() const override { return vocab_size_; }
  std::optional<TokenId> bos_token_id() const override { return parts_.bos_token_id; }

 private:
  struct Added {
    std::string content;
    std::string
        spelling;  // what the decoder reads: normalised if the token is; empty if it decodes to itself
    bool special;
  };

  static constexpr std::size_t kLongestText = std::size_t{1} << 30;

  void require(TokenId id) const {
    if (!contains(id))
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("token id {} is not in the vocabulary, whose ids are below {}", id, vocab_size_));
  }

  /// The bytes of a token that is there.
  std::string decoded(TokenId id, bool first) const {
    const auto added = added_.find(id);
    if (added == added_.end()) return parts_.decoder.decode(parts_.model->vocabulary().text(id), first);
    if (!parts_.decode_added_tokens) return added->second.content;
    return parts_.decoder.decode(added->second.spelling, first);
  }

  void encode_text(std::string_view text, bool at_start, BpeModel::Workspace& workspace,
                   std::vector<TokenId>& ids) const {
    TextPieces pieces;
    pieces.pieces.push_back({text, at_start});
    for (const PreTokenizerStep& step : parts_.pre_tokenizer.steps) {
      step(pieces);
      check_growth(text, pieces);
    }
    for (const TextPiece& word : pieces.pieces) {
      if (parts_.pre_tokenizer.words_are_bytes)
        parts_.model->encode_bytes(word.text, workspace, ids);
      else
        parts_.model->encode_characters(word.text, workspace, ids);
    }
  }

  /// Steps that add spaces and steps that split could, in turns, double the text again and again.
  static void check_growth(std::string_view text, const TextPieces& pieces) {
    std::size_t size = 0;
    for (const TextPiece& piece : pieces.pieces) size += piece.text.size();
    if (size > Normalizer::kMaxGrowth * text.size() + Normalizer::kFreeGrowth)
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("the pre-tokenizer makes a text of {} bytes more than {} times longer",
                              text.size(), Normalizer::kMaxGrowth));
  }

  PipelineParts parts_;
  AddedTokenMatcher matcher_, normalized_matcher_;
  std::unordered_map<TokenId, Added> added_;
  std::unordered_map<std::string, TokenId> added_ids_;
  std::string bytes_;                     // of all tokens, as they decode behind another
  std::vector<std::size_t> bytes_begin_;  // (vocab_size + 1) where each token's start
  std::int64_t vocab_size_ = 0;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_pipeline_tokenizer(PipelineParts parts) {
  return std::make_shared<PipelineTokenizer>(std::move(parts));
}

}  // namespace tessera::tokenizers
