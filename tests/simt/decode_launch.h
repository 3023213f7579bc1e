#pragma once

#include <bit>
#include <cstddef>

#include "simt/executor.h"

// Launches of NVIDIA's decode kernel (sm80/attention_decode.cu) on the host, for tests that have included it:
// f16, its head_dim, tensors of whole tokens, keys in pages.

namespace tessera::simt {

/// Each sequence has `queries` queries and up to max_pages pages; every query sees all keys, and nothing is
/// split. page_size: a power of two.
inline kernels::AttentionParams paged_decode_params(int batch, int queries, int num_heads, int num_kv_heads,
                                                    int page_size, int max_pages) {
  constexpr int kDim = kernels::kHeadDimQk;
  kernels::AttentionParams p = {};
  p.page_size = page_size;
  p.page_shift = std::countr_zero(static_cast<unsigned>(page_size));
  p.q = p.o = {nullptr, queries * num_heads * kDim, num_heads * kDim, kDim};
  p.k = p.v = {nullptr, page_size * num_kv_heads * kDim, num_kv_heads * kDim, kDim};
  p.batch = batch;
  p.num_heads = num_heads;
  p.num_kv_heads = num_kv_heads;
  p.head_dim_qk = p.head_dim_v = kDim;
  p.seq_len_q = queries;
  p.seq_len_kv = max_pages * page_size;
  p.block_table_stride = max_pages;
  p.softmax_scale = 0.125f;
  p.window_left = p.window_right = kernels::kUnlimitedWindow;
  p.pack_heads = num_heads / num_kv_heads;
  p.heads_at_once = p.num_splits = 1;
  return p;
}

inline void run_decode(const kernels::AttentionParams& p, int cluster_blocks = 1) {
  const int shared_bytes = kernels::decode_shared_bytes({kernels::kMaxWarps, kernels::kStages}, 2, 2,
                                                        p.head_dim_qk, p.head_dim_v, cluster_blocks);
  run_grid({"attention_decode",
            {cluster_blocks, p.num_kv_heads, p.batch * p.num_splits},
            kernels::kMaxWarps * 32,
            static_cast<std::size_t>(shared_bytes),
            32,
            cluster_blocks},
           [&] { attention_decode(p); });
}

}  // namespace tessera::simt
