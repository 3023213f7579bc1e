#include "grammar/token_trie.h"

#include <algorithm>
#include <utility>

namespace tessera::grammar {

TokenTrie::TokenTrie(std::vector<std::string> token_bytes, std::vector<std::int32_t> end_tokens)
    : token_bytes_(std::move(token_bytes)),
      end_tokens_(std::move(end_tokens)),
      same_bytes_(token_bytes_.size(), -1) {
  std::ranges::sort(end_tokens_);
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < token_bytes_.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (token_bytes_[i].empty() || token_bytes_[i].size() > kMaxTokenBytes || is_end(id)) continue;
    order.push_back(id);
    max_token_bytes_ = std::max(max_token_bytes_, token_bytes_[i].size());
  }
  std::ranges::stable_sort(order, {}, [this](std::int32_t id) -> const std::string& {
    return token_bytes_[static_cast<std::size_t>(id)];
  });
  nodes_.emplace_back();
  std::vector<std::uint32_t> path = {0};  // nodes from the root to the last one added
  std::int32_t last = -1;
  for (const std::int32_t id : order) {
    const std::string_view text = bytes(id);
    if (last >= 0 && bytes(last) == text) {
      same_bytes_[static_cast<std::size_t>(last)] = id;
      last = id;
      continue;
    }
    std::size_t shared = 0;
    while (last >= 0 && shared < text.size() && shared + 1 < path.size() &&
           nodes_[path[shared + 1]].byte == static_cast<std::uint8_t>(text[shared])) {
      ++shared;
    }
    while (path.size() > shared + 1) {
      nodes_[path.back()].end = static_cast<std::uint32_t>(nodes_.size());
      path.pop_back();
    }
    for (std::size_t i = shared; i < text.size(); ++i) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({0, -1, static_cast<std::uint16_t>(i + 1), static_cast<std::uint8_t>(text[i])});
    }
    nodes_.back().token = id;
    last = id;
  }
  for (const std::uint32_t node : path) nodes_[node].end = static_cast<std::uint32_t>(nodes_.size());
}

bool TokenTrie::is_end(std::int32_t token) const { return std::ranges::binary_search(end_tokens_, token); }

}  // namespace tessera::grammar
