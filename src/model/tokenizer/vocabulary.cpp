// Storage of token texts.
#include "model/tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/keyed_hash.h"

namespace tessera::tokenizers {

void TextList::reserve(std::size_t count, std::size_t bytes) {
  characters_.reserve(bytes);
  begins_.reserve(count + 1);
}

void TextList::add(std::string_view text) {
  characters_ += text;
  begins_.push_back(characters_.size());
}

bool Vocabulary::is_valid_id(std::int64_t id, std::size_t token_count) {
  return id >= 0 && id <= kMaxId && id <= kMaxIdPerToken * static_cast<std::int64_t>(token_count) + kFreeIds;
}

std::size_t Vocabulary::find_slot(std::string_view text, std::size_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  const auto bits = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.entry < 0) return at;
    if (slot.hash_bits == bits && texts_[static_cast<std::size_t>(slot.entry)] == text) return at;
  }
}

void Vocabulary::grow_table(std::size_t token_count) {
  const std::size_t wanted = std::bit_ceil(2 * token_count + 2);
  if (wanted <= slots_.size()) return;
  const std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(wanted));
  for (const Slot& slot : before) {
    if (slot.entry < 0) continue;
    const std::string_view text = texts_[static_cast<std::size_t>(slot.entry)];
    slots_[find_slot(text, KeyedHash()(text))] = slot;
  }
}

void Vocabulary::reserve(std::size_t token_count, std::size_t text_bytes) {
  texts_.reserve(token_count, text_bytes);
  ids_.reserve(token_count);
  entries_.reserve(token_count);
  grow_table(token_count);
}

bool Vocabulary::add(TokenId id, std::string_view text) {
  if (contains(id) || find(text)) return false;
  set(id, text);
  return true;
}

void Vocabulary::set(TokenId id, std::string_view text) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= entries_.size()) entries_.resize(index + 1, -1);
  grow_table(texts_.size() + 1);
  const auto entry = static_cast<std::int32_t>(texts_.size());
  const std::size_t hash = KeyedHash()(text);
  Slot& slot = slots_[find_slot(text, hash)];
  if (slot.entry < 0) slot = {static_cast<std::uint32_t>(hash >> 32), entry};
  texts_.add(text);
  ids_.push_back(id);
  entries_[index] = entry;
}

std::optional<TokenId> Vocabulary::find(std::string_view text) const {
  if (slots_.empty()) return std::nullopt;
  const Slot& slot = slots_[find_slot(text, KeyedHash()(text))];
  if (slot.entry < 0) return std::nullopt;
  return ids_[static_cast<std::size_t>(slot.entry)];
}

bool Vocabulary::contains(TokenId id) const {
  return id >= 0 && id < id_limit() && entries_[static_cast<std::size_t>(id)] >= 0;
}

std::string_view Vocabulary::text(TokenId id) const {
  return texts_[static_cast<std::size_t>(entries_[static_cast<std::size_t>(id)])];
}

}  // namespace tessera::tokenizers
