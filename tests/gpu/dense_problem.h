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

}  // namespace tessera::testing
