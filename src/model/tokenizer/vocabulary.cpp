// Storage of token texts.
#include "model/tokenizer/vocabulary.h"

namespace tessera::tokenizers {

bool Vocabulary::is_valid_id(std::int64_t id, std::size_t token_count) {
  return id >= 0 && id <= kMaxId && id <= kMaxIdPerToken * static_cast<std::int64_t>(token_count) + kFreeIds;
}

bool Vocabulary::add(TokenId id, std::string_view text) {
  if (contains(id) || find(text)) return false;
  set(id, text);
  return true;
}

void Vocabulary::set(TokenId id, std::string_view text) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= entries_.size()) entries_.resize(index + 1, -1);
  entries_[index] = static_cast<std::int32_t>(texts_.size());
  ids_.try_emplace(texts_.emplace_back(text), id);
}

std::optional<TokenId> Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

bool Vocabulary::contains(TokenId id) const {
  return id >= 0 && id < id_limit() && entries_[static_cast<std::size_t>(id)] >= 0;
}

std::string_view Vocabulary::text(TokenId id) const {
  return texts_[static_cast<std::size_t>(entries_[static_cast<std::size_t>(id)])];
}

}  // namespace tessera::tokenizers
