#pragma once

#include "tessera/attention.h"

namespace tessera::testing {

/// One dense sequence without terms, described but without memory.
inline AttentionProblem dense_problem(DeviceKind kind, DType dtype, std::int64_t seq_len_q,
                                      std::int64_t seq_len_kv, int num_heads, int num_kv_heads,
                                      int head_dim) {
  constexpr auto kLayout = AttentionLayout::kBatchSeqHeads;
  AttentionProblem p;
  p.device = {kind, 0};
  p.batch = 1;
  p.seq_len_q = seq_len_q;
  p.seq_len_kv = seq_len_kv;
  p.num_heads = num_heads;
  p.num_kv_heads = num_kv_heads;
  p.head_dim_qk = p.head_dim_v = head_dim;
  p.q = attention_input(kLayout, nullptr, dtype, seq_len_q, num_heads, head_dim);
  p.k = p.v = attention_input(kLayout, nullptr, dtype, seq_len_kv, num_kv_heads, head_dim);
  p.o = attention_output(kLayout, nullptr, dtype, seq_len_q, num_heads, head_dim);
  return p;
}

/// Puts a dense problem's keys and values into pages of 16 tokens.
inline void use_pages(AttentionProblem& p) {
  constexpr int kPageSize = 16;
  p.paged_kv.emplace();
  p.paged_kv->page_size = kPageSize;
  p.paged_kv->num_pages = p.batch * p.seq_len_kv / kPageSize;
  p.paged_kv->max_pages_per_seq = static_cast<int>(p.seq_len_kv / kPageSize);
  p.k.batch_stride = p.v.batch_stride = kPageSize * p.k.seq_stride;
}

}  // namespace tessera::testing
