#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/tensor_extents.h"
#include "tessera/attention.h"

namespace tessera::simt {

/// A tensor's elements in memory, with a gap after each dimension and `shift` elements in front.
template <class Element>
struct StoredTensor {
  std::vector<Element> memory;
  AttentionInput tensor;
  std::int64_t shift;

  StoredTensor(DType dtype, const TensorExtents& t, int gap, std::int64_t elements_in_front)
      : shift(elements_in_front) {
    tensor.dtype = dtype;
    tensor.head_stride = t.head_dim + gap;
    tensor.seq_stride = tensor.head_stride * t.heads + gap;
    tensor.batch_stride = tensor.seq_stride * t.tokens + gap;
    memory.resize(static_cast<std::size_t>(tensor.batch_stride * t.outer + shift));
    tensor.data = memory.data() + shift;
  }
  StoredTensor(const StoredTensor&) = delete;
  StoredTensor& operator=(const StoredTensor&) = delete;

  Element* row(std::int64_t outer, std::int64_t token, std::int64_t head) {
    return memory.data() + shift + outer * tensor.batch_stride + token * tensor.seq_stride +
           head * tensor.head_stride;
  }
};

}  // namespace tessera::simt
