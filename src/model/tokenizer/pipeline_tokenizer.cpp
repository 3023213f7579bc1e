// The tokenizer that passes a text through the parts of a pipeline.
#include "model/tokenizer/pipeline_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "model/tokenizer/framed_tokenizer.h"
#include "tessera/error.h"

namespace tessera::tokenizers {
namespace {

class PipelineTokenizer final : public FramedTokenizer {
 public:
  explicit PipelineTokenizer(PipelineParts parts)
      : FramedTokenizer({parts.source, std::move(parts.prefix), std::move(parts.suffix), parts.bos_token_id,
                         /*longest_text=*/std::size_t{1} << 30, parts.decoder.byte_fallback}),
        parts_(std::move(parts)) {
    const Vocabulary& vocabulary = parts_.model->vocabulary();
    vocab_size_ = vocabulary.id_limit();
    std::size_t text_bytes = vocabulary.text_bytes();
    for (const AddedToken& token : parts_.added_tokens) text_bytes += token.content.size();
    WorkBudget budget(source(), text_bytes);
    std::vector<AddedToken> as_given, normalized;
    for (AddedToken& token : parts_.added_tokens) {
      vocab_size_ = std::max<std::int64_t>(vocab_size_, token.id + 1);
      added_.set(token.id, token.content);
      if (token.special) special_ids_.insert(token.id);
      if (token.normalized) {
        std::string content = parts_.normalizer.apply(token.content, budget);
        if (content != token.content) normalized_spellings_.insert_or_assign(token.id, content);
        token.content = std::move(content);
      }
      if (!token.content.empty()) (token.normalized ? normalized : as_given).push_back(std::move(token));
    }
    parts_.added_tokens = {};
    matcher_ = AddedTokenMatcher(std::move(as_given));
    normalized_matcher_ = AddedTokenMatcher(std::move(normalized));
    bytes_begin_.reserve(static_cast<std::size_t>(vocab_size_) + 1);
    for (TokenId id = 0; id < vocab_size_; ++id) {
      bytes_begin_.push_back(bytes_.size());
      if (contains(id)) bytes_ += decoded(id, false, budget);
    }
    bytes_begin_.push_back(bytes_.size());
  }

  void append_token_bytes(TokenId id, bool first, bool skip_special_tokens,
                          std::string& bytes) const override {
    require(id);
    if (skip_special_tokens && is_special(id)) return;
    if (first) {
      WorkBudget budget(source(), token_text(id).size());
      bytes += decoded(id, true, budget);
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
    return added_.contains(id) ? added_.text(id) : parts_.model->vocabulary().text(id);
  }

  std::optional<TokenId> find_token(std::string_view text) const override {
    if (const auto added = added_.find(text)) return added;
    return parts_.model->vocabulary().find(text);
  }

  bool is_special(TokenId id) const override { return special_ids_.contains(id); }

  std::int64_t vocab_size() const override { return vocab_size_; }

 protected:
  void append_tokens(std::string_view text, const EncodeOptions& wanted,
                     std::vector<TokenId>& ids) const override {
    EncodeOptions options = wanted;
    if (parts_.split_special_tokens) options.parse_special_tokens = false;
    WorkBudget budget(source(), text.size());
    BpeModel::Workspace workspace;
    std::vector<TextSegment> segments, inner;
    matcher_.split(text, options, segments);
    for (const TextSegment& segment : segments) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
        continue;
      }
      std::string_view part = text.substr(segment.begin, segment.end - segment.begin);
      std::string normalized;
      EncodeOptions inner_options = options;
      std::vector<TextRange> plain;
      if (normalized_matcher_.empty()) {
        inner_options.plain = {};
      } else {
        plain = plain_parts(part, segment.begin, options.plain, budget);
        inner_options.plain = plain;
      }
      if (!parts_.normalizer.empty()) {
        normalized = parts_.normalizer.apply(part, budget);
        part = normalized;
      }
      inner.clear();
      normalized_matcher_.split(part, inner_options, inner);
      for (const TextSegment& piece : inner) {
        if (piece.id >= 0)
          ids.push_back(piece.id);
        else
          encode_text(part.substr(piece.begin, piece.end - piece.begin),
                      segment.begin == 0 && piece.begin == 0, budget, workspace, ids);
      }
    }
  }

 private:
  /// Which parts of `part`, once normalized, are in `plain`, whose ranges are of the text that it is cut from
  /// at `offset`. A range's end is where the text before it ends when that is normalized alone: what a
  /// character behind it would change there counts as plain.
  std::vector<TextRange> plain_parts(std::string_view part, std::size_t offset,
                                     std::span<const TextRange> plain, WorkBudget& budget) const {
    std::vector<TextRange> result;
    for (const TextRange range : plain) {
      if (range.end <= offset || range.begin >= offset + part.size()) continue;
      const std::size_t begin = std::max(range.begin, offset) - offset;
      const std::size_t end = std::min(range.end - offset, part.size());
      const auto normalized_size = [&](std::size_t size) {
        return parts_.normalizer.empty() ? size
                                         : parts_.normalizer.apply(part.substr(0, size), budget).size();
      };
      result.push_back({normalized_size(begin), normalized_size(end)});
    }
    return result;
  }

  /// The bytes of a token that is there.
  std::string decoded(TokenId id, bool first, WorkBudget& budget) const {
    if (!added_.contains(id))
      return parts_.decoder.decode(parts_.model->vocabulary().text(id), first, budget);
    if (!parts_.decode_added_tokens) return std::string(added_.text(id));
    const auto normalized = normalized_spellings_.find(id);
    return parts_.decoder.decode(
        normalized != normalized_spellings_.end() ? normalized->second : added_.text(id), first, budget);
  }

  void encode_text(std::string_view text, bool at_start, WorkBudget& budget, BpeModel::Workspace& workspace,
                   std::vector<TokenId>& ids) const {
    TextPieces pieces;
    pieces.pieces.push_back({text, at_start});
    for (const PreTokenizerStep& step : parts_.pre_tokenizer.steps) {
      step(pieces, budget);
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
  void check_growth(std::string_view text, const TextPieces& pieces) const {
    std::size_t size = 0;
    for (const TextPiece& piece : pieces.pieces) size += piece.text.size();
    if (size > Normalizer::kMaxGrowth * text.size() + Normalizer::kFreeGrowth)
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: the pre-tokenizer makes a text of {} bytes more than {} times longer",
                              source(), text.size(), Normalizer::kMaxGrowth));
  }

  PipelineParts parts_;
  AddedTokenMatcher matcher_, normalized_matcher_;
  Vocabulary added_;
  std::set<TokenId> special_ids_;
  std::map<TokenId, std::string> normalized_spellings_;  // of added tokens that their normalization changes
  std::string bytes_;                                    // of all tokens, as they decode behind another
  std::vector<std::size_t> bytes_begin_;                 // (vocab_size + 1) where each token's start
  std::int64_t vocab_size_ = 0;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_pipeline_tokenizer(PipelineParts parts) {
  return std::make_shared<PipelineTokenizer>(std::move(parts));
}

}  // namespace tessera::tokenizers
