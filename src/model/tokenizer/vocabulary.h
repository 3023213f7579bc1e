#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace tessera::tokenizers {

/// The two-way map of token ids and texts.
class Vocabulary {
 public:
  /// Ids must be in [0, kMaxId], and at most kMaxIdPerToken times the number of tokens plus kFreeIds, so that
  /// no id in a hostile file can make a large table.
  static constexpr std::int64_t kMaxId = (1 << 24) - 1;
  static constexpr std::int64_t kMaxIdPerToken = 16;
  static constexpr std::int64_t kFreeIds = 1 << 16;

  /// Whether `id` may be added to a vocabulary that has or will have `token_count` tokens.
  static bool is_valid_id(std::int64_t id, std::size_t token_count);

  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  /// Adds a token with a valid id. Returns false, changing nothing, if the id or the text is already there.
  bool add(TokenId id, std::string_view text);
  /// Adds a text, or replaces the one that `id` had. A text that several ids have is found as the first.
  void set(TokenId id, std::string_view text);

  std::optional<TokenId> find(std::string_view text) const;
  bool contains(TokenId id) const;
  std::string_view text(TokenId id) const;  ///< requires contains(id)
  std::size_t count() const { return texts_.size(); }
  std::int64_t id_limit() const { return static_cast<std::int64_t>(entries_.size()); }  ///< highest id + 1

 private:
  std::deque<std::string> texts_;      // a deque: the views in ids_ stay valid
  std::vector<std::int32_t> entries_;  // (highest id + 1) index into texts_, or -1
  std::unordered_map<std::string_view, TokenId> ids_;
};

}  // namespace tessera::tokenizers
