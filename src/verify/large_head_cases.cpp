// Attention cases with head_dims above 256, of which tensor cores need tiles of their own, and with rows and
// keys of 8 bits that only the kernels for all of Ampere and later take.

#include "verify/attention_case_list.h"

namespace tessera {

void add_large_head_cases(CaseList& list) {
  for (const auto& [name, text] : {
           std::pair{"causal, grouped heads, ragged/bf16",
                     "dtype=bf16 batch=3 len_q=150 lens_q=150,1,67 len_kv=300 lens_kv=300,90,127 heads=8 "
                     "kv_heads=2 dim_qk=512 dim_v=512 storage=ragged diagonal=all,0,bottom_right lse=1"},
           {"pages, sinks/f16",
            "dtype=f16 batch=2 len_q=70 len_kv=333 lens_kv=333,200 heads=4 kv_heads=2 dim_qk=320 dim_v=320 "
            "storage=paged page_size=5 sinks=1 diagonal=100,0,bottom_right"},
           {"few queries, pages, ragged/bf16",
            "dtype=bf16 batch=3 len_q=2 len_kv=900 lens_kv=900,1,515 heads=16 kv_heads=2 dim_qk=512 "
            "dim_v=512 "
            "storage=paged page_size=16 diagonal=all,0,bottom_right lse=1"},
           {"one query, softcap, alibi/bf16",
            "dtype=bf16 batch=2 len_q=1 len_kv=1200 heads=8 kv_heads=1 dim_qk=576 dim_v=576 softcap=20 "
            "alibi=1"},
           {"values of few columns, masks/f16",
            "dtype=f16 batch=2 len_q=40 len_kv=130 heads=3 kv_heads=3 dim_qk=336 dim_v=40 "
            "additive=bf16,bq,0.3,1 boolean=bool,h,0.3,1"},
           {"values of many columns, odd strides/bf16",
            "dtype=bf16 batch=2 len_q=65 len_kv=200 heads=4 kv_heads=2 dim_qk=17 dim_v=411 strides=odd "
            "diagonal=all,0,top_left"},
           {"NaN in hidden keys/bf16",
            "dtype=bf16 batch=2 len_q=33 len_kv=200 heads=4 kv_heads=2 dim_qk=448 dim_v=448 "
            "content=nan_hidden_keys diagonal=50,0,bottom_right"},
           {"batch_invariant, causal/bf16",
            "dtype=bf16 batch=3 len_q=80 len_kv=400 lens_kv=400,129,64 heads=4 kv_heads=2 dim_qk=512 "
            "dim_v=512 "
            "storage=padded diagonal=all,0,bottom_right invariant=1 q_spread=20"},
           {"batch_invariant, NaN in values/f16",
            "dtype=f16 batch=2 len_q=50 len_kv=200 heads=4 kv_heads=4 dim_qk=576 dim_v=576 "
            "content=nan_one_value diagonal=all,0,bottom_right invariant=1"},
           {"keys of 8 bits/bf16",
            "dtype=bf16 batch=2 len_q=70 len_kv=300 heads=4 kv_heads=2 dim_qk=512 dim_v=512 kv_dtype=f8e4m3 "
            "kv_scales=head diagonal=all,0,bottom_right"},
           {"keys of 8 bits, one query, pages/f16",
            "dtype=f16 batch=3 len_q=1 len_kv=700 lens_kv=700,5,333 heads=8 kv_heads=2 dim_qk=320 dim_v=320 "
            "storage=paged page_size=16 kv_dtype=f8e4m3 kv_scales=tensor"},
       })
    list.add_random(text, std::string("large heads, ") + name);
  for (const auto& [name, text] : {
           std::pair{"causal/bf16",
                     "dtype=bf16 batch=3 len_q=150 len_kv=300 lens_kv=300,90,127 heads=8 kv_heads=2 "
                     "dim_qk=128 dim_v=128 storage=padded kv_dtype=f8e4m3 kv_scales=head invariant=1 "
                     "diagonal=all,0,bottom_right q_spread=20"},
           {"one query, pages/bf16",
            "dtype=bf16 batch=3 len_q=1 len_kv=900 lens_kv=900,1,515 heads=16 kv_heads=2 dim_qk=128 "
            "dim_v=128 storage=paged page_size=16 kv_dtype=f8e4m3 kv_scales=tensor invariant=1"},
           {"long keys, few queries/bf16",
            "dtype=bf16 batch=2 len_q=3 len_kv=1800 heads=8 kv_heads=2 dim_qk=128 dim_v=128 storage=padded "
            "lens_kv=1800,700 kv_dtype=f8e4m3 kv_scales=head invariant=1 diagonal=all,0,bottom_right"},
           {"softcap, sinks, odd head_dim/f16",
            "dtype=f16 batch=2 len_q=37 len_kv=200 heads=4 kv_heads=2 dim_qk=76 dim_v=52 kv_dtype=f8e4m3 "
            "softcap=10 sinks=1 invariant=1"},
           {"NaN in values, head_dim 256/bf16",
            "dtype=bf16 batch=2 len_q=100 len_kv=160 heads=4 kv_heads=2 dim_qk=256 dim_v=256 kv_dtype=f8e4m3 "
            "kv_scales=head content=nan_one_value diagonal=all,0,bottom_right invariant=1"},
           {"NaN in keys, head_dim 64/f16",
            "dtype=f16 batch=2 len_q=100 len_kv=160 heads=4 kv_heads=2 dim_qk=64 dim_v=64 kv_dtype=f8e4m3 "
            "content=nan_last_keys invariant=1"},
       })
    list.add_random(text, std::string("keys of 8 bits, batch_invariant, ") + name);
  // Rows that are aligned to 8 and to 4 bytes.
  list.add_random(
      "dtype=bf16 batch=2 len_q=150 len_kv=300 heads=4 kv_heads=2 dim_qk=100 dim_v=100 storage=paged "
      "page_size=7 lens_kv=300,133 diagonal=all,0,bottom_right",
      "rows of 8 bytes, pages/bf16");
  list.add_random(
      "dtype=f16 batch=2 len_q=9 len_kv=300 heads=4 kv_heads=1 dim_qk=90 dim_v=54 "
      "diagonal=all,0,bottom_right",
      "rows of 4 bytes/f16");
}

}  // namespace tessera
