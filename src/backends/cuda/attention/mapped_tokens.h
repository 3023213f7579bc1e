#pragma once

#include <cstdint>

#include "attention/tensor_extents.h"

namespace tessera::cuda {

/// Whether a tensor map can describe distances of `stride` elements between `count` things.
inline bool is_mappable(std::int64_t stride, std::int64_t count) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
  return count <= 1 || (stride > 0 && stride < kMostBytes / 2);
}

/// Whether one can describe all of a tensor.
template <class Tensor>
bool has_map(const Tensor& t, const TensorExtents& extents) {
  return extents.tokens > 0 && extents.outer > 0 && is_mappable(t.seq_stride, extents.tokens) &&
         is_mappable(t.head_stride, extents.heads) && is_mappable(t.batch_stride, extents.outer);
}

/// Whether boxes of whole pages, or of parts of one, make up tiles of keys. Eight rows of 128 bytes are what
/// the copy engine swizzles.
inline bool has_whole_pages(int page_size, int block_n) {
  return page_size % 8 == 0 && (page_size % block_n == 0 || block_n % page_size == 0);
}

}  // namespace tessera::cuda
