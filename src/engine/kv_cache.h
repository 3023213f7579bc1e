#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ops/backend.h"
#include "tessera/dtype.h"

namespace tessera {

/// What a layer has of a cache whose layers differ.
struct KvLayerShape {
  int num_kv_heads = 0;
  int head_dim = 0;
  int source = -1;       ///< the earlier layer whose keys and values it reads; -1: it has its own
  bool has_keys = true;  ///< false: it keeps none, and its other members say nothing
};

/// Sizes of a cache of keys and values in pages.
struct KvCacheShape {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;
  int page_size = 0;           ///< tokens in a page
  std::int64_t num_pages = 0;  ///< pages, each for one page of tokens in all layers
  /// Values are the first numbers of keys, which are all that is kept.
  bool values_in_keys = false;
  std::vector<KvLayerShape> layers = {};  ///< (num_layers); empty: as num_kv_heads and head_dim say

  KvLayerShape layer(int index) const {
    return layers.empty() ? KvLayerShape{num_kv_heads, head_dim} : layers[static_cast<std::size_t>(index)];
  }
};

/// Hands out page numbers [0, num_pages). A page may have several owners, and is free again when the last
/// gives it back. Pages given back last are given out first: they are the likeliest to be in the processor's
/// cache.
///
/// A page whose content may be of use later (keep) is idle when it has no owner: it is given out only when no
/// other is left, the one longest idle first.
class PageAllocator {
 public:
  explicit PageAllocator(std::int64_t num_pages);

  /// Appends `count` pages to `pages`, or does nothing and returns false if fewer are free or idle.
  bool allocate(std::int64_t count, std::vector<std::int32_t>& pages);
  /// One more owner for a page that has owners or is idle.
  void share(std::int32_t page);
  /// Takes back pages from one owner. Of several that become idle at once the first stay longest.
  void release(std::span<const std::int32_t> pages) noexcept;
  /// From now on the page becomes idle instead of free, until it is given out anew.
  void keep(std::int32_t page) { state(page).is_kept = true; }
  /// Called when an idle page is given out, and its content lost.
  void on_loss(std::function<void(std::int32_t page)> call) { on_loss_ = std::move(call); }

  std::int64_t num_pages() const { return static_cast<std::int64_t>(states_.size()); }
  /// What allocate can give out: free and idle ones.
  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()) + num_idle_; }
  std::int64_t num_idle() const { return num_idle_; }

 private:
  static constexpr std::int32_t kNone = -1;

  struct PageState {
    std::int32_t num_owners = 0;
    bool is_kept = false;
    std::int32_t before = kNone, after = kNone;  // of the idle ones
  };

  PageState& state(std::int32_t page) { return states_[static_cast<std::size_t>(page)]; }
  void append_idle(std::int32_t page) noexcept;
  void remove_idle(std::int32_t page) noexcept;

  std::vector<PageState> states_;
  std::vector<std::int32_t> free_;  // capacity num_pages, so that release never allocates
  std::int32_t first_idle_ = kNone, last_idle_ = kNone;
  std::int64_t num_idle_ = 0;
  std::function<void(std::int32_t)> on_loss_;
};

class KvCache;

/// The pages of one sequence; given back when it is destroyed. Must not outlive its KvCache.
class KvSequence {
 public:
  explicit KvSequence(KvCache& cache) : cache_(&cache) {}
  ~KvSequence() { release(); }
  KvSequence(KvSequence&& other) noexcept;
  KvSequence& operator=(KvSequence&& other) noexcept;

  /// Makes room for `num_tokens` tokens in all. If there are too few free pages it changes nothing and
  /// returns false (try_reserve) or throws Error{kOutOfMemory} with the pages asked for, free and in all
  /// (reserve).
  bool try_reserve(std::int64_t num_tokens);
  void reserve(std::int64_t num_tokens);

  /// Appends pages that others have or had, as one more owner.
  void append_shared(std::span<const std::int32_t> pages);
  /// Takes a page of the same content in place of page `index`.
  void replace(std::size_t index, std::int32_t page);

  /// Gives the pages back that hold only tokens from num_tokens on.
  void truncate(std::int64_t num_tokens) noexcept;

  /// Gives all pages back.
  void release() noexcept;

  /// Page i holds tokens [i * page_size, (i + 1) * page_size).
  std::span<const std::int32_t> block_table() const { return pages_; }

 private:
  std::int64_t missing_pages(std::int64_t num_tokens) const;

  KvCache* cache_;
  std::vector<std::int32_t> pages_;
};

/// Keys and values of all layers in pages of a device's memory, and which pages are free.
///
/// A layer's keys are (num_pages, num_kv_heads, page_size, head_dim), its values likewise, or they are in the
/// keys: what one head reads of a page is contiguous.
class KvCache {
 public:
  /// Throws Error{kInvalidArgument} for sizes below 1, Error{kOutOfMemory} if the pages don't fit in memory.
  KvCache(const KvCacheShape& shape, OpsBackend& ops);
  KvCache(const KvCache&) = delete;  // sequences refer to it
  KvCache& operator=(const KvCache&) = delete;

  /// One view a layer, without a block table; of layers without keys there is the page size alone.
  const std::vector<KvCacheView>& layers() const { return layers_; }
  const KvCacheShape& shape() const { return shape_; }
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(memory_.size_bytes); }

  std::int64_t pages_for(std::int64_t num_tokens) const {
    return (num_tokens + shape_.page_size - 1) / shape_.page_size;
  }
  PageAllocator& pages() { return pages_; }
  const PageAllocator& pages() const { return pages_; }

 private:
  KvCacheShape shape_;
  DeviceBuffer memory_;  // before the lists of its pages, which a size that is refused would make large
  PageAllocator pages_;
  std::vector<KvCacheView> layers_;
};

}  // namespace tessera
