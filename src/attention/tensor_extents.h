#pragma once

#include <cstdint>

#include "tessera/attention.h"

namespace tessera {

/// Logical shape of a tensor in memory: the outer dimension is the batch, the pages, or 1 for ragged tokens.
struct TensorExtents {
  std::int64_t outer;
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t head_dim;

  bool is_empty() const { return outer == 0 || tokens == 0 || heads == 0; }
};

/// Of q; of o but for its head_dim.
inline TensorExtents query_extents(const AttentionProblem& p) {
  if (p.ragged_q) return {1, p.ragged_q->total_tokens, p.num_heads, p.head_dim_qk};
  return {p.batch, p.seq_len_q, p.num_heads, p.head_dim_qk};
}

/// Of k; of v but for its head_dim.
inline TensorExtents key_extents(const AttentionProblem& p) {
  if (p.ragged_kv) return {1, p.ragged_kv->total_tokens, p.num_kv_heads, p.head_dim_qk};
  if (p.paged_kv) return {p.paged_kv->num_pages, p.paged_kv->page_size, p.num_kv_heads, p.head_dim_qk};
  return {p.batch, p.seq_len_kv, p.num_kv_heads, p.head_dim_qk};
}

}  // namespace tessera
