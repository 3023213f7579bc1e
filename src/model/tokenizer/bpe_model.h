#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/vocabulary.h"

namespace tessera::tokenizers {

struct BpeOptions {
  std::optional<TokenId> unknown_id;  ///< for characters without a token; without it they are dropped
  bool fuse_unknown = false;          ///< one unknown token for several characters in a row
  bool byte_fallback = false;  ///< characters without a token become their bytes' tokens, <0x00> to <0xFF>
  bool ignore_merges = false;  ///< a word that is a token becomes it, whatever the merges say
};

/// Two neighbouring tokens that become one. Their place in a list is their rank: lower ranks go first.
struct BpeMerge {
  TokenId left, right, result;
};

/// Byte pair encoding (Sennrich et al., 2016) of single words. Immutable and thread safe.
class BpeModel {
 public:
  /// What encoding a word needs besides the model; reused from word to word.
  struct Workspace {
    struct Symbol {
      TokenId id;
      std::int32_t previous, next;  // neighbours still there, or -1
      bool merged = false;          // gone into its left neighbour
    };
    struct Candidate {
      std::uint32_t rank;
      std::int32_t position;  // of the left one
      TokenId result;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::string text;
  };

  /// The ids in `merges` must be in `vocabulary`. Of equal pairs the last counts.
  BpeModel(Vocabulary vocabulary, const std::vector<BpeMerge>& merges, const BpeOptions& options);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  /// Appends the tokens of `word` (valid UTF-8, less than 2^31 bytes), whose symbols are its characters.
  /// O(n log n) time.
  void encode_characters(std::string_view word, Workspace& workspace, std::vector<TokenId>& ids) const;

  /// The same for a word whose bytes the vocabulary spells in the byte-level alphabet.
  void encode_bytes(std::string_view word, Workspace& workspace, std::vector<TokenId>& ids) const;

 private:
  struct MergeEntry {
    TokenId right;
    std::uint32_t rank;
    TokenId result;
  };
  struct PendingUnknown {
    std::optional<TokenId> id;
  };

  void encode_word(std::string_view word, Workspace& workspace, std::vector<TokenId>& ids) const;
  const MergeEntry* find_merge(TokenId left, TokenId right) const;
  static void push_symbol(TokenId id, Workspace& workspace);
  void push_unknown(std::string_view character, PendingUnknown& pending, Workspace& workspace) const;
  void merge_all(Workspace& workspace, std::vector<TokenId>& ids) const;

  Vocabulary vocabulary_;
  BpeOptions options_;
  // Merges by left id: those of id l are merges_[merge_begin_[l] .. merge_begin_[l + 1]), sorted by right id.
  // Binary search has no bad case that a file could provoke, as a hash table has.
  std::vector<std::uint32_t> merge_begin_;
  std::vector<MergeEntry> merges_;
  // Whether no merge joins a space symbol to what is before it, nor to one before a character that has no
  // token and is left out. A text is then cut there without a change, which keeps the heaps small for models
  // that get whole texts as one word.
  bool cut_at_space_symbols_;
  std::array<TokenId, 128> ascii_ids_;     // token of each ASCII character, or -1
  std::array<TokenId, 256> byte_ids_;      // token of each byte's byte-level character, or -1
  std::array<TokenId, 256> fallback_ids_;  // token of each byte as <0x..>, or -1
};

}  // namespace tessera::tokenizers
