// Attention cases whose values are a part of the keys.

#include <fmt/core.h>

#include "verify/attention_case_list.h"

namespace tessera {

/// Multi-head latent attention: all query heads share keys, whose first part the values are. DeepSeek-V2
/// (2024), with the up-projections absorbed into q and o.
void add_latent_attention_cases(CaseList& list) {
  AttentionCase c;
  c.head_dim_qk = 576;
  c.head_dim_v = 512;
  c.values_in_keys = true;
  c.num_kv_heads = 1;
  c.seq_len_q = 1;
  for (const int heads : {1, 16, 64, 100}) {
    c.num_heads = heads;
    c.seq_len_kv = 200;
    c.kv_storage = KvStorage::kDense;
    c.lens_kv.clear();
    c.quick = heads == 16;
    list.add_dtypes(c, fmt::format("latent attention, {} heads, decode", heads));
    c.quick = false;
    c.kv_storage = KvStorage::kPaged;
    c.lens_kv = {200, 77};
    for (const int page_size : {16, 64}) {
      c.page_size = page_size;
      list.add_dtypes(c, fmt::format("latent attention, {} heads, decode, page_size {}", heads, page_size));
    }
  }
  c.num_heads = 20;
  c.seq_len_q = 5;
  c.seq_len_kv = 300;
  c.lens_kv = {300, 131};
  c.diagonal = DiagonalMask::causal();
  list.add_dtypes(c, "latent attention, 5 queries, causal, paged");
  c.content = Content::kNanInHiddenKeys;
  c.diagonal = DiagonalMask::sliding_window(70, 0);
  list.add_dtypes(c, "latent attention, window, NaN in hidden keys, paged");
  c.content = Content::kNanInLastKeys;
  c.diagonal = DiagonalMask::causal();
  list.add_dtypes(c, "latent attention, NaN in the last keys, paged");
  c.content = Content::kNormal;
  c.kv_storage = KvStorage::kRagged;
  c.lens_q = {5, 0};
  c.lens_kv = {300, 0};
  c.sinks = true;
  list.add_dtypes(c, "latent attention, sinks, ragged");
  c.kv_storage = KvStorage::kPadded;
  c.lens_q.clear();
  c.strides = StrideStyle::kPacked;
  c.softmax_scale = -0.05f;
  c.softcap = 20.0f;
  list.add_dtypes(c, "latent attention, softcap, padded, packed");
}

}  // namespace tessera
