#pragma once

#include <cstdint>

#include "attention/sequence.h"
#include "tessera/attention.h"

namespace tessera {

/// Elements from the start of a dense tensor, or log-sum-exp, to the row of token i and head h of sequence b.
template <class Rows>
std::int64_t dense_row(const Rows& rows, std::int64_t b, std::int64_t i, int h) {
  return b * rows.batch_stride + i * rows.seq_stride + h * rows.head_stride;
}

/// Where sequence `b` of a batch keeps its rows: elements from the start of a tensor to the row of one token
/// and head, whatever the storage (dense, ragged, paged). For arrays in CPU memory.
struct TokenRows {
  const AttentionProblem& problem;
  std::int64_t b = 0;
  SequenceExtent extent;

  TokenRows(const AttentionProblem& p, std::int64_t b) : TokenRows(p, b, sequence_extent(p, b)) {}
  TokenRows(const AttentionProblem& p, std::int64_t b, const SequenceExtent& extent)
      : problem(p), b(b), extent(extent) {}

  /// Query i of head h in q, o or lse.
  template <class Rows>
  std::int64_t query(const Rows& rows, std::int64_t i, int h) const {
    return dense_row(rows, problem.ragged_q ? 0 : b, extent.q_begin + i, h);
  }

  /// Key j of kv head h in k or v.
  std::int64_t key(const AttentionInput& tensor, std::int64_t j, int h) const {
    if (problem.paged_kv) {
      const PagedKv& paged = *problem.paged_kv;
      const std::int64_t page = paged.block_table[b * paged.block_table_stride + j / paged.page_size];
      return dense_row(tensor, page, j % paged.page_size, h);
    }
    return dense_row(tensor, problem.ragged_kv ? 0 : b, extent.kv_begin + j, h);
  }

  /// What queries of the heads of kv head h, as stored, are multiplied by.
  float q_scale(int h) const {
    if (!problem.q_scales || problem.q_scales->q == nullptr) return 1.0f;
    return problem.q_scales->q[b * problem.q_scales->batch_stride + h * problem.q_scales->head_stride];
  }
  /// What key j of kv head h, as stored, is multiplied by.
  float k_scale(std::int64_t j, int h) const {
    return problem.kv_scales ? scale(problem.kv_scales->k, j, h) : 1.0f;
  }
  /// Likewise its value.
  float v_scale(std::int64_t j, int h) const {
    return problem.kv_scales ? scale(problem.kv_scales->v, j, h) : 1.0f;
  }

 private:
  float scale(const float* scales, std::int64_t j, int h) const {
    if (scales == nullptr) return 1.0f;
    std::int64_t outer = problem.ragged_kv ? 0 : b;
    if (problem.paged_kv) {
      const PagedKv& paged = *problem.paged_kv;
      outer = paged.block_table[b * paged.block_table_stride + j / paged.page_size];
    }
    return scales[outer * problem.kv_scales->batch_stride + h * problem.kv_scales->head_stride];
  }
};

}  // namespace tessera
