// SentencePiece's BPE: a heap of candidate pieces over a linked list of symbols.
#include "model/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "core/keyed_hash.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/framed_tokenizer.h"
#include "model/tokenizer/unicode.h"
#include "model/tokenizer/vocabulary.h"

namespace tessera::tokenizers {
namespace {

using unicode::kSpaceSymbol;

// Positions are 32-bit, and a space becomes 3 bytes.
constexpr std::size_t kLongestText = std::size_t{1} << 29;

std::string replace(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  std::size_t done = 0;
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, done)) {
    out += text.substr(done, at - done);
    out += to;
    done = at + from.size();
  }
  out += text.substr(done);
  return out;
}

class SentencePieceTokenizer final : public FramedTokenizer {
 public:
  explicit SentencePieceTokenizer(SentencePieceParts parts)
      : FramedTokenizer({std::move(parts.source), std::move(parts.prefix), std::move(parts.suffix),
                         parts.bos_token_id, kLongestText, /*replaces_each_byte=*/true}),
        scores_(std::move(parts.scores)),
        types_(std::move(parts.types)),
        add_space_prefix_(parts.add_space_prefix),
        unknown_token_id_(parts.unknown_token_id) {
    byte_ids_.fill(-1);
    std::vector<AddedToken> control, user_defined;
    for (std::size_t i = 0; i < parts.pieces.size(); ++i) {
      const auto id = static_cast<TokenId>(i);
      const std::string& piece = parts.pieces[i];
      if (types_[i] == PieceType::kUnused && piece == gguf_padding_token(id)) continue;
      vocabulary_.set(id, piece);
      if (piece.empty()) continue;
      switch (types_[i]) {
        case PieceType::kByte:
          if (const auto byte = byte_of(piece)) byte_ids_[static_cast<unsigned char>(*byte)] = id;
          break;
        case PieceType::kUnknown:
        case PieceType::kControl:
          control.push_back({.content = piece, .id = id, .special = true});
          break;
        case PieceType::kUserDefined:
          user_defined.push_back({.content = replace(piece, " ", kSpaceSymbol), .id = id});
          break;
        case PieceType::kNormal:
        case PieceType::kUnused:
          longest_piece_ = std::max(longest_piece_, piece.size());
          if (unicode::next_word_start(piece, 0) < piece.size()) cut_at_space_symbols_ = false;
          break;
      }
    }
    for (std::size_t i = 0; i < types_.size(); ++i) {  // now that the texts no longer move
      const auto id = static_cast<TokenId>(i);
      if (contains(id) && !vocabulary_.text(id).empty() &&
          (types_[i] == PieceType::kNormal || types_[i] == PieceType::kUnused))
        piece_ids_.try_emplace(vocabulary_.text(id), id);
    }
    control_matcher_ = AddedTokenMatcher(std::move(control));
    user_defined_matcher_ = AddedTokenMatcher(std::move(user_defined));
  }

  void append_token_bytes(TokenId id, bool first, bool skip_special_tokens,
                          std::string& bytes) const override {
    std::string_view text = token_text(id);
    if (is_special(id)) {
      if (!skip_special_tokens) bytes += text;
      return;
    }
    if (types_[static_cast<std::size_t>(id)] == PieceType::kByte) {
      if (const auto byte = byte_of(text)) bytes += *byte;
      return;
    }
    if (first && add_space_prefix_ && text.starts_with(kSpaceSymbol)) text.remove_prefix(kSpaceSymbol.size());
    bytes += replace(text, kSpaceSymbol, " ");
  }

  bool contains(TokenId id) const override { return vocabulary_.contains(id); }

  std::string_view token_text(TokenId id) const override {
    require(id);
    return vocabulary_.text(id);
  }

  std::optional<TokenId> find_token(std::string_view text) const override { return vocabulary_.find(text); }

  bool is_special(TokenId id) const override {
    if (!contains(id)) return false;
    const PieceType type = types_[static_cast<std::size_t>(id)];
    return type == PieceType::kControl || type == PieceType::kUnknown;
  }

  std::int64_t vocab_size() const override { return vocabulary_.id_limit(); }

 protected:
  void append_tokens(std::string_view text, const EncodeOptions& options,
                     std::vector<TokenId>& ids) const override {
    std::vector<TextSegment> segments;
    if (options.parse_special_tokens)
      control_matcher_.split(text, options, segments);
    else if (!text.empty())
      segments = {{0, text.size(), -1}};
    for (const TextSegment& segment : segments) {
      if (segment.id >= 0)
        ids.push_back(segment.id);
      else
        encode_text(text.substr(segment.begin, segment.end - segment.begin), ids);
    }
  }

 private:
  struct Symbol {
    std::int32_t begin, size;     // of its text; size 0 when it has gone into its left neighbour
    std::int32_t previous, next;  // neighbours, or -1
  };
  struct Candidate {
    float score;
    std::int32_t left, right, size;
  };
  struct Workspace {
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::map<TokenId, std::int32_t> left_sizes;  // how unused pieces were made: bytes of the left part
    std::vector<std::string_view> parts;
    bool after_unknown = false;  // whether the character before had no token
  };

  static std::optional<char> byte_of(std::string_view piece) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
    const std::size_t high = kDigits.find(piece[3]), low = kDigits.find(piece[4]);
    if (high == kDigits.npos || low == kDigits.npos) return std::nullopt;
    return static_cast<char>(static_cast<unsigned char>(16 * high + low));
  }

  TokenId find_piece(std::string_view text) const {
    if (text.size() > longest_piece_) return -1;
    const auto found = piece_ids_.find(text);
    return found == piece_ids_.end() ? -1 : found->second;
  }

  void encode_text(std::string_view raw, std::vector<TokenId>& ids) const {
    std::string text(add_space_prefix_ ? kSpaceSymbol : "");
    text += replace(raw, " ", kSpaceSymbol);
    std::vector<TextSegment> segments;
    user_defined_matcher_.split(text, {}, segments);
    Workspace workspace;
    for (const TextSegment& segment : segments) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
        workspace.after_unknown = false;
        continue;
      }
      const std::string_view part = std::string_view(text).substr(segment.begin, segment.end - segment.begin);
      for (std::size_t begin = 0; begin < part.size();) {
        const std::size_t end = cut_at_space_symbols_ ? unicode::next_word_start(part, begin) : part.size();
        encode_word(part.substr(begin, end - begin), workspace, ids);
        begin = end;
      }
    }
  }

  void encode_word(std::string_view word, Workspace& workspace, std::vector<TokenId>& ids) const {
    auto& symbols = workspace.symbols;
    symbols.clear();
    for (std::size_t at = 0; at < word.size();) {
      const auto index = static_cast<std::int32_t>(symbols.size());
      const std::size_t size = unicode::utf8_length(word[at]);
      if (index > 0) symbols.back().next = index;
      symbols.push_back({static_cast<std::int32_t>(at), static_cast<std::int32_t>(size), index - 1, -1});
      at += size;
    }
    join_symbols(word, workspace);
    for (std::int32_t i = symbols.empty() ? -1 : 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
      const Symbol& symbol = symbols[static_cast<std::size_t>(i)];
      output(word.substr(static_cast<std::size_t>(symbol.begin), static_cast<std::size_t>(symbol.size)),
             workspace, ids);
    }
  }

  void join_symbols(std::string_view word, Workspace& workspace) const {
    auto& symbols = workspace.symbols;
    auto& heap = workspace.heap;
    heap.clear();
    const auto symbol = [&](std::int32_t index) -> Symbol& {
      return symbols[static_cast<std::size_t>(index)];
    };
    const auto goes_later = [](const Candidate& a, const Candidate& b) {
      return a.score != b.score ? a.score < b.score : a.left > b.left;
    };
    const auto push_pair = [&](std::int32_t left, std::int32_t right) {
      if (left < 0 || right < 0) return false;
      const std::int32_t size = symbol(left).size + symbol(right).size;
      const TokenId id = find_piece(
          word.substr(static_cast<std::size_t>(symbol(left).begin), static_cast<std::size_t>(size)));
      if (id < 0) return false;
      heap.push_back({scores_[static_cast<std::size_t>(id)], left, right, size});
      if (types_[static_cast<std::size_t>(id)] == PieceType::kUnused)
        workspace.left_sizes[id] = symbol(left).size;
      return true;
    };
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
      push_pair(static_cast<std::int32_t>(i), static_cast<std::int32_t>(i + 1));
    std::make_heap(heap.begin(), heap.end(), goes_later);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), goes_later);
      const Candidate candidate = heap.back();
      heap.pop_back();
      Symbol& left = symbol(candidate.left);
      Symbol& right = symbol(candidate.right);
      // Out of date if one of them has been joined to another symbol since.
      if (left.size == 0 || right.size == 0 || left.size + right.size != candidate.size) continue;
      left.size = candidate.size;
      right.size = 0;
      left.next = right.next;
      if (left.next >= 0) symbol(left.next).previous = candidate.left;
      if (push_pair(left.previous, candidate.left)) std::push_heap(heap.begin(), heap.end(), goes_later);
      if (push_pair(candidate.left, left.next)) std::push_heap(heap.begin(), heap.end(), goes_later);
    }
  }

  /// Appends the token of `piece`: itself, the parts that an unused piece was made of, or its bytes.
  void output(std::string_view piece, Workspace& workspace, std::vector<TokenId>& ids) const {
    auto& parts = workspace.parts;  // a stack of what is still to be output
    parts = {piece};
    while (!parts.empty()) {
      const std::string_view part = parts.back();
      parts.pop_back();
      const TokenId id = find_piece(part);
      const bool unused = id >= 0 && types_[static_cast<std::size_t>(id)] == PieceType::kUnused;
      const auto made = unused ? workspace.left_sizes.find(id) : workspace.left_sizes.end();
      if (made != workspace.left_sizes.end()) {
        const auto left_size = static_cast<std::size_t>(made->second);
        parts.push_back(part.substr(left_size));
        parts.push_back(part.substr(0, left_size));
        continue;
      }
      if (id >= 0)
        ids.push_back(id);
      else
        output_unknown(part, workspace.after_unknown, ids);
      workspace.after_unknown = id < 0;
    }
  }

  /// One unknown token stands for several characters in a row.
  void output_unknown(std::string_view character, bool after_unknown, std::vector<TokenId>& ids) const {
    const auto token_of = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
    if (std::all_of(character.begin(), character.end(), [&](char c) { return token_of(c) >= 0; })) {
      for (const char c : character) ids.push_back(token_of(c));
    } else if (unknown_token_id_ && !(after_unknown && !ids.empty() && ids.back() == *unknown_token_id_)) {
      ids.push_back(*unknown_token_id_);
    }
  }

  Vocabulary vocabulary_;
  std::vector<float> scores_;
  std::vector<PieceType> types_;
  bool add_space_prefix_;
  std::optional<TokenId> unknown_token_id_;
  std::unordered_map<std::string_view, TokenId, KeyedHash> piece_ids_;  // those that text can become
  std::size_t longest_piece_ = 0;
  bool cut_at_space_symbols_ = true;  // as no piece has one behind something else, texts can be cut there
  std::array<TokenId, 256> byte_ids_;
  AddedTokenMatcher control_matcher_, user_defined_matcher_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(SentencePieceParts parts) {
  return std::make_shared<SentencePieceTokenizer>(std::move(parts));
}

}  // namespace tessera::tokenizers
