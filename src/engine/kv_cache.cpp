#include "engine/kv_cache.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "tessera/error.h"

namespace tessera {
namespace {

void check_at_least_one(const char* field, std::int64_t value) {
  if (value < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} of the KV cache is {}; expected 1 or more", field, value));
  }
}

/// Elements of the keys of one page in one layer.
std::int64_t page_elements(const KvCacheShape& shape, const KvLayerShape& layer) {
  return std::int64_t{layer.num_kv_heads} * layer.head_dim * shape.page_size;
}

std::size_t page_bytes(const KvCacheShape& shape, const KvLayerShape& layer) {
  return dtype_bytes(shape.dtype, static_cast<std::size_t>(page_elements(shape, layer)));
}

/// Keys and values, or keys that values are in.
std::size_t tensors_of_layer(const KvCacheShape& shape) { return shape.values_in_keys ? 1 : 2; }

/// Bytes of the whole cache. Throws if they pass what 64 bits hold.
std::size_t cache_bytes(const KvCacheShape& shape) {
  // Far beyond any memory; the product stays below 2^64.
  constexpr double kMaxBytes = 0x1p62;
  double bytes = 0;
  std::size_t whole_bytes = 0;  // of no more than kMaxBytes
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    if (shape.layer(layer).source >= 0 || !shape.layer(layer).has_keys) continue;
    const std::size_t of_page = tensors_of_layer(shape) * page_bytes(shape, shape.layer(layer));
    bytes += static_cast<double>(of_page) * static_cast<double>(shape.num_pages);
    if (bytes <= kMaxBytes) whole_bytes += of_page * static_cast<std::size_t>(shape.num_pages);
  }
  if (bytes > kMaxBytes) {
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("a KV cache of {} pages of {} tokens takes {:.3g} bytes; ask for a shorter "
                            "max_seq_len, fewer max_kv_tokens or a smaller max_batch",
                            shape.num_pages, shape.page_size, bytes));
  }
  return whole_bytes;
}

KvCacheShape checked(const KvCacheShape& shape) {
  check_at_least_one("num_layers", shape.num_layers);
  if (!shape.layers.empty() && shape.layers.size() != static_cast<std::size_t>(shape.num_layers)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the KV cache has sizes of {} layers; expected of num_layers, {}",
                            shape.layers.size(), shape.num_layers));
  }
  for (int index = 0; index < shape.num_layers; ++index) {
    const KvLayerShape layer = shape.layer(index);
    if (!layer.has_keys) continue;
    check_at_least_one("num_kv_heads", layer.num_kv_heads);
    check_at_least_one("head_dim", layer.head_dim);
    if (layer.source >= index || (layer.source >= 0 && (shape.layer(layer.source).source >= 0 ||
                                                        !shape.layer(layer.source).has_keys))) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer {} of the KV cache reads keys and values of layer {}; expected an "
                              "earlier one that has its own",
                              index, layer.source));
    }
    if (shape.layers.empty()) break;  // all alike
  }
  check_at_least_one("page_size", shape.page_size);
  check_at_least_one("num_pages", shape.num_pages);
  if (shape.num_pages > std::numeric_limits<std::int32_t>::max()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("num_pages of the KV cache is {}; expected at most {}: take larger pages",
                            shape.num_pages, std::numeric_limits<std::int32_t>::max()));
  }
  cache_bytes(shape);
  return shape;
}

}  // namespace

PageAllocator::PageAllocator(std::int64_t num_pages) : states_(static_cast<std::size_t>(num_pages)) {
  free_.resize(states_.size());
  for (std::size_t i = 0; i < free_.size(); ++i) free_[free_.size() - 1 - i] = static_cast<std::int32_t>(i);
}

bool PageAllocator::allocate(std::int64_t count, std::vector<std::int32_t>& pages) {
  if (count > num_free()) return false;
  pages.reserve(pages.size() + static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t page = first_idle_;
    if (!free_.empty()) {
      page = free_.back();
      free_.pop_back();
    } else {
      remove_idle(page);
      if (on_loss_) on_loss_(page);
    }
    state(page).num_owners = 1;
    state(page).is_kept = false;
    pages.push_back(page);
  }
  return true;
}

void PageAllocator::share(std::int32_t page) {
  if (state(page).num_owners++ == 0) remove_idle(page);
}

void PageAllocator::release(std::span<const std::int32_t> pages) noexcept {
  for (std::size_t i = pages.size(); i-- > 0;) {
    const std::int32_t page = pages[i];
    if (--state(page).num_owners > 0) continue;
    if (state(page).is_kept) {
      append_idle(page);
    } else {
      free_.push_back(page);
    }
  }
}

void PageAllocator::append_idle(std::int32_t page) noexcept {
  state(page).before = last_idle_;
  state(page).after = kNone;
  (last_idle_ == kNone ? first_idle_ : state(last_idle_).after) = page;
  last_idle_ = page;
  ++num_idle_;
}

void PageAllocator::remove_idle(std::int32_t page) noexcept {
  const auto [before, after] = std::pair(state(page).before, state(page).after);
  (before == kNone ? first_idle_ : state(before).after) = after;
  (after == kNone ? last_idle_ : state(after).before) = before;
  --num_idle_;
}

KvSequence::KvSequence(KvSequence&& other) noexcept
    : cache_(other.cache_), pages_(std::exchange(other.pages_, {})) {}

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this != &other) {
    release();
    cache_ = other.cache_;
    pages_ = std::exchange(other.pages_, {});
  }
  return *this;
}

std::int64_t KvSequence::missing_pages(std::int64_t num_tokens) const {
  return std::max<std::int64_t>(0, cache_->pages_for(num_tokens) - static_cast<std::int64_t>(pages_.size()));
}

bool KvSequence::try_reserve(std::int64_t num_tokens) {
  return cache_->pages().allocate(missing_pages(num_tokens), pages_);
}

void KvSequence::reserve(std::int64_t num_tokens) {
  if (try_reserve(num_tokens)) return;
  const PageAllocator& pages = cache_->pages();
  throw Error(
      ErrorCode::kOutOfMemory,
      fmt::format("the KV cache is full: a sequence of {} tokens needs {} more pages of {} tokens, but {} "
                  "of {} are free; raise max_kv_tokens, shorten the prompt or generate fewer tokens",
                  num_tokens, missing_pages(num_tokens), cache_->shape().page_size, pages.num_free(),
                  pages.num_pages()));
}

void KvSequence::append_shared(std::span<const std::int32_t> pages) {
  pages_.reserve(pages_.size() + pages.size());
  for (const std::int32_t page : pages) {
    cache_->pages().share(page);
    pages_.push_back(page);
  }
}

void KvSequence::replace(std::size_t index, std::int32_t page) {
  cache_->pages().share(page);
  cache_->pages().release({&pages_[index], 1});
  pages_[index] = page;
}

void KvSequence::truncate(std::int64_t num_tokens) noexcept {
  const auto kept = static_cast<std::size_t>(cache_->pages_for(num_tokens));
  if (kept >= pages_.size()) return;
  cache_->pages().release(std::span(pages_).subspan(kept));
  pages_.resize(kept);
}

void KvSequence::release() noexcept {
  cache_->pages().release(pages_);
  pages_.clear();
}

KvCache::KvCache(const KvCacheShape& shape, OpsBackend& ops)
    : shape_(checked(shape)),
      memory_(ops.allocate(cache_bytes(shape),
                           "KV cache (max_seq_len, max_batch and max_kv_tokens set its size)")),
      pages_(shape.num_pages) {
  std::byte* memory = memory_.data.get();
  for (int index = 0; index < shape_.num_layers; ++index) {
    const KvLayerShape layer = shape_.layer(index);
    if (layer.source >= 0) {
      layers_.push_back(layers_[static_cast<std::size_t>(layer.source)]);
      continue;
    }
    KvCacheView& view = layers_.emplace_back();
    view.page_size = shape_.page_size;
    if (!layer.has_keys) continue;
    const std::size_t tensor_bytes = page_bytes(shape_, layer) * static_cast<std::size_t>(shape_.num_pages);
    view.k = memory;
    view.v = shape_.values_in_keys ? memory : memory + tensor_bytes;
    view.dtype = shape_.dtype;
    view.page_stride = page_elements(shape_, layer);
    view.token_stride = layer.head_dim;
    view.head_stride = std::int64_t{shape_.page_size} * layer.head_dim;
    view.num_pages = shape_.num_pages;
    memory += tensors_of_layer(shape_) * tensor_bytes;
  }
}

}  // namespace tessera
