#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace tessera::tokenizers {

/// Texts in one block of memory, by number.
class TextList {
 public:
  void reserve(std::size_t count, std::size_t bytes);
  void add(std::string_view text);
  /// Valid until the next add.
  std::string_view operator[](std::size_t index) const {
    return std::string_view(characters_).substr(begins_[index], begins_[index + 1] - begins_[index]);
  }
  std::size_t size() const { return begins_.size() - 1; }
  std::size_t size_bytes() const { return characters_.size(); }

 private:
  std::string characters_;
  std::vector<std::size_t> begins_ = {0};  // (size + 1)
};

/// The two-way map of token ids and texts. It takes some 40 bytes a token beside the text, and look-ups are
/// O(1) whatever the texts are.
class Vocabulary {
 public:
  /// Ids must be in [0, kMaxId], and at most kMaxIdPerToken times the number of tokens plus kFreeIds, so that
  /// no id in a hostile file can make a large table.
  static constexpr std::int64_t kMaxId = (1 << 24) - 1;
  static constexpr std::int64_t kMaxIdPerToken = 16;
  static constexpr std::int64_t kFreeIds = 1 << 16;

  /// Whether `id` may be added to a vocabulary that has or will have `token_count` tokens.
  static bool is_valid_id(std::int64_t id, std::size_t token_count);

  void reserve(std::size_t token_count, std::size_t text_bytes);
  /// Adds a token with a valid id. Returns false, changing nothing, if the id or the text is already there.
  bool add(TokenId id, std::string_view text);
  /// Adds a text, or replaces the one that `id` had. A text that several ids have is found as the first.
  void set(TokenId id, std::string_view text);

  std::optional<TokenId> find(std::string_view text) const;
  bool contains(TokenId id) const;
  std::string_view text(TokenId id) const;  ///< requires contains(id); valid until a token is added
  std::size_t count() const { return texts_.size(); }
  std::size_t text_bytes() const { return texts_.size_bytes(); }
  std::int64_t id_limit() const { return static_cast<std::int64_t>(entries_.size()); }  ///< highest id + 1

 private:
  /// Of an open-addressing table with linear probing.
  struct Slot {
    std::uint32_t hash_bits;
    std::int32_t entry = -1;  // -1: free
  };

  /// The slot of `text`, or the free one where it would go. There must be a free one.
  std::size_t find_slot(std::string_view text, std::size_t hash) const;
  void grow_table(std::size_t token_count);

  TextList texts_;                     // by entry
  std::vector<TokenId> ids_;           // by entry
  std::vector<std::int32_t> entries_;  // (highest id + 1) index into texts_, or -1
  std::vector<Slot> slots_;            // a power of two, at most half of them taken
};

}  // namespace tessera::tokenizers
