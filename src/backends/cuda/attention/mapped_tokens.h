#pragma once

#include <cstdint>

#include "tessera/attention.h"

namespace tessera::cuda {

/// Where tokens are, as a tensor map counts it: how many of a sequence, of all ragged ones, or of a page, and
/// how many such there are.
struct TokenStorage {
  std::int64_t tokens;
  std::int64_t sequences;
};

inline TokenStorage key_storage(const AttentionProblem& p) {
  if (p.paged_kv) return {p.paged_kv->page_size, p.paged_kv->num_pages};
  if (p.ragged_kv) return {p.ragged_kv->total_tokens, 1};
  return {p.seq_len_kv, p.batch};
}

/// Whether a tensor map can describe distances of `stride` elements between `count` things.
inline bool is_mappable(std::int64_t stride, std::int64_t count) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
  return count <= 1 || (stride > 0 && stride < kMostBytes / 2);
}

/// Whether one can describe all of a tensor.
template <class Tensor>
bool has_map(const Tensor& t, const TokenStorage& storage, int heads) {
  return storage.tokens > 0 && storage.sequences > 0 && is_mappable(t.seq_stride, storage.tokens) &&
         is_mappable(t.head_stride, heads) && is_mappable(t.batch_stride, storage.sequences);
}

/// Whether boxes of whole pages, or of parts of one, make up tiles of keys. Eight rows of 128 bytes are what
/// the copy engine swizzles.
inline bool has_whole_pages(int page_size, int block_n) {
  return page_size % 8 == 0 && (page_size % block_n == 0 || block_n % page_size == 0);
}

}  // namespace tessera::cuda
