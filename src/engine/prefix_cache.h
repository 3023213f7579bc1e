#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/keyed_hash.h"
#include "engine/kv_cache.h"

namespace tessera {

/// Where a sequence's pages are known up to.
struct PrefixChain {
  std::uint64_t last = 0;      ///< the page known last; 0: none
  std::int64_t num_pages = 0;  ///< known
};

/// Finds full pages of keys and values by the tokens that they and all pages before them hold. Each page that
/// is known has a number that is never used again; it is found by its parent's number and its own tokens,
/// which are compared, so that equal hashes do no harm. Who owns a page owns those before it and gives them
/// back later, so that a page is never lost before those behind it.
class PrefixCache {
 public:
  /// `cache` must outlive this; it tells this of pages that are lost.
  explicit PrefixCache(KvCache& cache);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  /// Pages that hold the beginning of `tokens`, at most max_pages, and the chain of them. They are nobody's
  /// until someone shares them.
  std::vector<std::int32_t> find(std::span<const std::int32_t> tokens, std::int64_t max_pages,
                                 PrefixChain& chain) const;

  /// Makes the pages of a sequence known up to num_pages, which must be full and computed, from its chain on.
  /// Where others hold the same already, the sequence takes theirs in place of its own.
  void add(std::span<const std::int32_t> tokens, std::int64_t num_pages, KvSequence& pages,
           PrefixChain& chain);

  /// The tokens of page `index` among those of a sequence.
  std::span<const std::int32_t> page_tokens(std::span<const std::int32_t> tokens, std::int64_t index) const;

 private:
  struct Entry {
    std::uint64_t number = 0;
    std::int32_t page = 0;
  };

  std::string key_of(std::uint64_t parent, std::span<const std::int32_t> page_tokens) const;

  KvCache& cache_;
  std::unordered_map<std::string, Entry, KeyedHash> entries_;  // by the bytes of parent and tokens
  std::vector<const std::string*> keys_;                       // (num_pages), null: not known
  std::uint64_t last_number_ = 0;
};

}  // namespace tessera
