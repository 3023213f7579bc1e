#include "engine/prefix_cache.h"

#include <cstring>
#include <utility>

namespace tessera {

PrefixCache::PrefixCache(KvCache& cache)
    : cache_(cache), keys_(static_cast<std::size_t>(cache.pages().num_pages())) {
  cache_.pages().on_loss([this](std::int32_t page) {
    const std::string* const key = std::exchange(keys_[static_cast<std::size_t>(page)], nullptr);
    entries_.erase(entries_.find(*key));
  });
}

PrefixCache::~PrefixCache() { cache_.pages().on_loss({}); }

std::string PrefixCache::key_of(std::uint64_t parent, std::span<const std::int32_t> page_tokens) const {
  std::string key(sizeof parent + page_tokens.size_bytes(), '\0');
  std::memcpy(key.data(), &parent, sizeof parent);
  std::memcpy(key.data() + sizeof parent, page_tokens.data(), page_tokens.size_bytes());
  return key;
}

std::span<const std::int32_t> PrefixCache::page_tokens(std::span<const std::int32_t> tokens,
                                                       std::int64_t index) const {
  const auto size = static_cast<std::size_t>(cache_.shape().page_size);
  return tokens.subspan(static_cast<std::size_t>(index) * size, size);
}

std::vector<std::int32_t> PrefixCache::find(std::span<const std::int32_t> tokens, std::int64_t max_pages,
                                            PrefixChain& chain) const {
  chain = {};
  std::vector<std::int32_t> pages;
  while (chain.num_pages < max_pages) {
    const auto entry = entries_.find(key_of(chain.last, page_tokens(tokens, chain.num_pages)));
    if (entry == entries_.end()) break;
    pages.push_back(entry->second.page);
    chain.last = entry->second.number;
    ++chain.num_pages;
  }
  return pages;
}

void PrefixCache::add(std::span<const std::int32_t> tokens, std::int64_t num_pages, KvSequence& pages,
                      PrefixChain& chain) {
  for (; chain.num_pages < num_pages; ++chain.num_pages) {
    const auto index = static_cast<std::size_t>(chain.num_pages);
    const std::int32_t page = pages.block_table()[index];
    const auto [entry, is_new] = entries_.try_emplace(
        key_of(chain.last, page_tokens(tokens, chain.num_pages)), Entry{last_number_ + 1, page});
    if (is_new) {
      ++last_number_;
      keys_[static_cast<std::size_t>(page)] = &entry->first;
      cache_.pages().keep(page);
    } else {
      pages.replace(index, entry->second.page);
    }
    chain.last = entry->second.number;
  }
}

}  // namespace tessera
