// Byte pair encoding with a heap of candidate merges over a linked list of symbols.
#include "model/tokenizer/bpe_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/unicode.h"
#include "tessera/error.h"

namespace tessera::tokenizers {

namespace {

/// Positions in a word are 32-bit.
void check_length(std::string_view word) {
  constexpr std::size_t kLongestWord = (std::size_t{1} << 31) - 2;
  if (word.size() > kLongestWord)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the text has a word of {} bytes; at most {} can be encoded", word.size(), kLongestWord));
}

}  // namespace

BpeModel::BpeModel(Vocabulary vocabulary, const std::vector<BpeMerge>& merges, const BpeOptions& options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  for (std::size_t i = 0; i < 128; ++i) {
    const char c = static_cast<char>(i);
    ascii_ids_[i] = vocabulary_.find({&c, 1}).value_or(-1);
  }
  for (std::size_t i = 0; i < 256; ++i) {
    byte_ids_[i] = vocabulary_.find(byte_level::character(static_cast<std::uint8_t>(i))).value_or(-1);
    fallback_ids_[i] = vocabulary_.find(fmt::format("<0x{:02X}>", i)).value_or(-1);
  }

  const bool has_bytes = std::ranges::all_of(fallback_ids_, [](TokenId id) { return id >= 0; });
  const bool leaves_none_out = options_.unknown_id || (options_.byte_fallback && has_bytes);
  cut_at_space_symbols_ = leaves_none_out && vocabulary_.find(unicode::kSpaceSymbol) &&
                          std::none_of(merges.begin(), merges.end(), [&](const BpeMerge& merge) {
                            return vocabulary_.text(merge.right).starts_with(unicode::kSpaceSymbol) &&
                                   !vocabulary_.text(merge.left).ends_with(unicode::kSpaceSymbol);
                          });

  // Order: left, right, then the last of equal pairs first, so that unique() keeps it.
  std::vector<std::uint32_t> order(merges.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const BpeMerge &x = merges[a], &y = merges[b];
    if (x.left != y.left) return x.left < y.left;
    if (x.right != y.right) return x.right < y.right;
    return a > b;
  });
  const auto last = std::unique(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return merges[a].left == merges[b].left && merges[a].right == merges[b].right;
  });
  order.erase(last, order.end());
  merge_begin_.assign(static_cast<std::size_t>(vocabulary_.id_limit()) + 1, 0);
  merges_.reserve(order.size());
  for (const std::uint32_t i : order) {
    merges_.push_back({merges[i].right, i, merges[i].result});
    ++merge_begin_[static_cast<std::size_t>(merges[i].left) + 1];
  }
  for (std::size_t i = 1; i < merge_begin_.size(); ++i) merge_begin_[i] += merge_begin_[i - 1];
}

const BpeModel::MergeEntry* BpeModel::find_merge(TokenId left, TokenId right) const {
  const MergeEntry* begin = merges_.data() + merge_begin_[static_cast<std::size_t>(left)];
  const MergeEntry* end = merges_.data() + merge_begin_[static_cast<std::size_t>(left) + 1];
  const MergeEntry* found = std::lower_bound(
      begin, end, right, [](const MergeEntry& entry, TokenId id) { return entry.right < id; });
  return found != end && found->right == right ? found : nullptr;
}

void BpeModel::push_symbol(TokenId id, Workspace& workspace) {
  const auto position = static_cast<std::int32_t>(workspace.symbols.size());
  if (position > 0) workspace.symbols.back().next = position;
  workspace.symbols.push_back({id, position - 1, -1});
}

void BpeModel::push_unknown(std::string_view character, PendingUnknown& pending, Workspace& workspace) const {
  if (options_.byte_fallback) {
    const auto token_of = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
    if (std::all_of(character.begin(), character.end(), [&](char c) { return token_of(c) >= 0; })) {
      for (const char c : character) push_symbol(token_of(c), workspace);
      return;
    }
  }
  if (!options_.unknown_id) return;
  if (pending.id && !options_.fuse_unknown) push_symbol(*pending.id, workspace);
  pending.id = options_.unknown_id;
}

void BpeModel::encode_characters(std::string_view word, Workspace& workspace,
                                 std::vector<TokenId>& ids) const {
  check_length(word);
  if (options_.ignore_merges) {
    if (const auto id = vocabulary_.find(word)) return ids.push_back(*id);
  }
  if (!cut_at_space_symbols_) return encode_word(word, workspace, ids);
  for (std::size_t begin = 0; begin < word.size();) {
    const std::size_t end = unicode::next_word_start(word, begin);
    encode_word(word.substr(begin, end - begin), workspace, ids);
    begin = end;
  }
}

void BpeModel::encode_word(std::string_view word, Workspace& workspace, std::vector<TokenId>& ids) const {
  workspace.symbols.clear();
  PendingUnknown pending;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t length = unicode::utf8_length(word[i]);
    const std::string_view character = word.substr(i, length);
    const TokenId id = length == 1 ? ascii_ids_[static_cast<unsigned char>(word[i])]
                                   : vocabulary_.find(character).value_or(-1);
    i += length;
    if (id < 0) {
      push_unknown(character, pending, workspace);
      continue;
    }
    if (pending.id) push_symbol(*std::exchange(pending.id, std::nullopt), workspace);
    push_symbol(id, workspace);
  }
  if (pending.id) push_symbol(*pending.id, workspace);
  merge_all(workspace, ids);
}

void BpeModel::encode_bytes(std::string_view word, Workspace& workspace, std::vector<TokenId>& ids) const {
  check_length(word);
  if (options_.ignore_merges) {
    workspace.text.clear();
    for (const char c : word) workspace.text += byte_level::character(static_cast<std::uint8_t>(c));
    if (const auto id = vocabulary_.find(workspace.text)) return ids.push_back(*id);
  }
  workspace.symbols.clear();
  PendingUnknown pending;
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id < 0) {
      push_unknown(byte_level::character(static_cast<std::uint8_t>(c)), pending, workspace);
      continue;
    }
    if (pending.id) push_symbol(*std::exchange(pending.id, std::nullopt), workspace);
    push_symbol(id, workspace);
  }
  if (pending.id) push_symbol(*pending.id, workspace);
  merge_all(workspace, ids);
}

void BpeModel::merge_all(Workspace& workspace, std::vector<TokenId>& ids) const {
  auto& symbols = workspace.symbols;
  auto& heap = workspace.heap;
  const auto goes_later = [](const Workspace::Candidate& a, const Workspace::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto symbol = [&](std::int32_t position) -> Workspace::Symbol& {
    return symbols[static_cast<std::size_t>(position)];
  };
  const auto push_pair = [&](std::int32_t left, std::int32_t right) {
    if (const MergeEntry* merge = find_merge(symbol(left).id, symbol(right).id)) {
      heap.push_back({merge->rank, left, merge->result});
      return true;
    }
    return false;
  };

  heap.clear();
  const auto count = static_cast<std::int32_t>(symbols.size());
  for (std::int32_t i = 0; i + 1 < count; ++i) push_pair(i, i + 1);
  std::make_heap(heap.begin(), heap.end(), goes_later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), goes_later);
    const Workspace::Candidate candidate = heap.back();
    heap.pop_back();
    Workspace::Symbol& left = symbol(candidate.position);
    if (left.merged || left.next < 0) continue;
    Workspace::Symbol& right = symbol(left.next);
    // A candidate is out of date when its symbols are no longer the pair that it was made for. As in the
    // tokenizers package another pair with the same result will do.
    const MergeEntry* merge = find_merge(left.id, right.id);
    if (!merge || merge->result != candidate.result) continue;
    left.id = candidate.result;
    right.merged = true;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = candidate.position;
    if (left.previous >= 0 && push_pair(left.previous, candidate.position))
      std::push_heap(heap.begin(), heap.end(), goes_later);
    if (left.next >= 0 && push_pair(candidate.position, left.next))
      std::push_heap(heap.begin(), heap.end(), goes_later);
  }
  for (std::int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbol(i).next) ids.push_back(symbol(i).id);
}

}  // namespace tessera::tokenizers
