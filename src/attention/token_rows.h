#pragma once

#include <cstdint>

#include "attention/sequence.h"
#include "tessera/attention.h"

namespace tessera {

/// Where sequence `b` of a batch keeps its rows: elements from the start of a tensor to the row of one token
/// and head, whatever the storage (dense, ragged, paged). For arrays in CPU memory.
struct TokenRows {
  const AttentionProblem& problem;
  std::int64_t b = 0;
  SequenceExtent extent;

  TokenRows(const AttentionProblem& p, std::int64_t b) : problem(p), b(b), extent(sequence_extent(p, b)) {}

  /// Query i of head h in q or o.
  template <class Void>
  std::int64_t query(const BasicAttentionTensor<Void>& tensor, std::int64_t i, int h) const {
    return (problem.ragged_q ? 0 : b * tensor.batch_stride) + (extent.q_begin + i) * tensor.seq_stride +
           h * tensor.head_stride;
  }

  /// Key j of kv head h in k or v.
  std::int64_t key(const AttentionInput& tensor, std::int64_t j, int h) const {
    if (problem.paged_kv) {
      const PagedKv& paged = *problem.paged_kv;
      const std::int64_t page = paged.block_table[b * paged.block_table_stride + j / paged.page_size];
      return page * tensor.batch_stride + j % paged.page_size * tensor.seq_stride + h * tensor.head_stride;
    }
    return (problem.ragged_kv ? 0 : b * tensor.batch_stride) + (extent.kv_begin + j) * tensor.seq_stride +
           h * tensor.head_stride;
  }

  /// Log-sum-exp of query i of head h.
  std::int64_t lse(const LseOutput& output, std::int64_t i, int h) const {
    return (problem.ragged_q ? 0 : b * output.batch_stride) + h * output.head_stride +
           (extent.q_begin + i) * output.seq_stride;
  }
};

}  // namespace tessera
