// Few queries over many keys with head_dims that tiles of 64 columns don't divide, or of more than 128, for
// which kernels of few queries lay out their tiles differently.

#include "verify/attention_case_list.h"

namespace tessera {

void add_decode_head_cases(CaseList& list) {
  for (const auto& [name, text] : {
           std::pair{"72, one query/bf16",
                     "dtype=bf16 batch=2 len_q=1 len_kv=900 heads=8 kv_heads=2 dim_qk=72 dim_v=72 lse=1"},
           {"80, one query, pages of 16/bf16",
            "dtype=bf16 batch=3 len_q=1 len_kv=900 lens_kv=900,1,515 heads=8 kv_heads=2 dim_qk=80 dim_v=80 "
            "storage=paged page_size=16 lse=1"},
           {"80, pages of 8, more values/f16",
            "dtype=f16 batch=2 len_q=2 len_kv=700 lens_kv=700,133 heads=8 kv_heads=2 dim_qk=40 dim_v=80 "
            "storage=paged page_size=8 diagonal=all,0,bottom_right"},
           {"96, 64 rows, causal/bf16",
            "dtype=bf16 batch=2 len_q=16 len_kv=1200 lens_kv=1200,64 storage=padded heads=8 kv_heads=2 "
            "dim_qk=96 dim_v=96 diagonal=all,0,bottom_right lse=1"},
           {"96, ragged, sinks, window/f16",
            "dtype=f16 batch=4 len_q=3 lens_q=3,0,1,2 len_kv=900 lens_kv=900,5,0,700 heads=12 kv_heads=4 "
            "dim_qk=96 dim_v=96 storage=ragged sinks=1 diagonal=200,0,bottom_right"},
           {"104 and 56, softcap, alibi/bf16",
            "dtype=bf16 batch=2 len_q=5 len_kv=800 heads=8 kv_heads=2 dim_qk=104 dim_v=56 softcap=20 alibi=1 "
            "diagonal=all,0,bottom_right"},
           {"112, masks, 40 rows/f16",
            "dtype=f16 batch=2 len_q=10 len_kv=600 heads=8 kv_heads=2 dim_qk=112 dim_v=112 "
            "additive=bf16,bq,0.3,1 boolean=bool,h,0.3,1"},
           {"120, NaN in hidden keys/bf16",
            "dtype=bf16 batch=2 len_q=4 len_kv=700 heads=8 kv_heads=2 dim_qk=120 dim_v=120 "
            "content=nan_hidden_keys diagonal=300,0,bottom_right"},
           {"160, one query, pages of 64/bf16",
            "dtype=bf16 batch=3 len_q=1 len_kv=900 lens_kv=900,64,515 heads=8 kv_heads=1 dim_qk=160 "
            "dim_v=160 "
            "storage=paged page_size=64 lse=1"},
           {"192 and 128, ragged/f16",
            "dtype=f16 batch=3 len_q=4 lens_q=4,1,2 len_kv=1100 lens_kv=1100,3,400 heads=8 kv_heads=8 "
            "dim_qk=192 dim_v=128 storage=ragged diagonal=all,0,bottom_right lse=1"},
           {"128 and 256, 17 rows/bf16",
            "dtype=bf16 batch=2 len_q=17 len_kv=900 heads=4 kv_heads=4 dim_qk=128 dim_v=256 "
            "diagonal=all,0,bottom_right"},
           {"136 and 248, alibi, odd strides/f16",
            "dtype=f16 batch=2 len_q=9 len_kv=500 heads=4 kv_heads=2 dim_qk=136 dim_v=248 alibi=1"},
           {"256, one sequence/bf16",
            "dtype=bf16 batch=1 len_q=1 len_kv=3000 heads=8 kv_heads=4 dim_qk=256 dim_v=256 lse=1"},
           {"256, 64 rows, pages of 16, softcap, sinks/bf16",
            "dtype=bf16 batch=3 len_q=16 len_kv=900 lens_kv=900,16,515 heads=16 kv_heads=4 dim_qk=256 "
            "dim_v=256 storage=paged page_size=16 softcap=50 sinks=1 diagonal=all,0,bottom_right"},
           {"256, many sequences, pages of 8/f16",
            "dtype=f16 batch=10 len_q=2 len_kv=300 lens_kv=300,8,299,150,2,64,65,200,290,100 heads=64 "
            "kv_heads=32 dim_qk=256 dim_v=256 storage=paged page_size=8 diagonal=100,0,bottom_right"},
           {"256, NaN in values/bf16",
            "dtype=bf16 batch=2 len_q=3 len_kv=700 heads=4 kv_heads=2 dim_qk=256 dim_v=256 "
            "content=nan_one_value diagonal=all,0,bottom_right"},
       })
    list.add_random(text, std::string("few queries, head_dim ") + name);
  for (const auto& [name, text] : {
           std::pair{"32, one query/bf16",
                     "dtype=bf16 batch=2 len_q=1 len_kv=900 heads=8 kv_heads=2 dim_qk=32 dim_v=32 lse=1"},
           {"80, pages of 16/bf16",
            "dtype=bf16 batch=3 len_q=1 len_kv=900 lens_kv=900,1,515 heads=8 kv_heads=2 dim_qk=80 dim_v=80 "
            "storage=paged page_size=16 kv_scales=head lse=1"},
           {"96, 12 rows, causal/f16",
            "dtype=f16 batch=2 len_q=3 len_kv=1200 lens_kv=1200,64 storage=padded heads=8 kv_heads=2 "
            "dim_qk=96 dim_v=96 diagonal=all,0,bottom_right kv_scales=tensor"},
           {"112 and 48, softcap, sinks/bf16",
            "dtype=bf16 batch=2 len_q=2 len_kv=800 heads=8 kv_heads=2 dim_qk=112 dim_v=48 softcap=20 sinks=1 "
            "diagonal=all,0,bottom_right"},
           {"144, ragged, window, alibi/f16",
            "dtype=f16 batch=4 len_q=3 lens_q=3,0,1,2 len_kv=900 lens_kv=900,5,0,700 heads=12 kv_heads=4 "
            "dim_qk=144 dim_v=144 storage=ragged alibi=1 diagonal=200,0,bottom_right kv_scales=head"},
           {"192 and 128, 16 rows/bf16",
            "dtype=bf16 batch=3 len_q=4 len_kv=1100 lens_kv=1100,3,400 storage=padded heads=8 kv_heads=2 "
            "dim_qk=192 dim_v=128 diagonal=all,0,bottom_right lse=1"},
           {"64 and 256, masks/bf16",
            "dtype=bf16 batch=2 len_q=2 len_kv=600 heads=8 kv_heads=2 dim_qk=64 dim_v=256 "
            "additive=bf16,bq,0.3,1 boolean=bool,h,0.3,1"},
           {"256, one sequence/f16",
            "dtype=f16 batch=1 len_q=1 len_kv=3000 heads=8 kv_heads=4 dim_qk=256 dim_v=256 lse=1"},
           {"256, 16 rows, pages of 8/bf16",
            "dtype=bf16 batch=10 len_q=4 len_kv=600 lens_kv=600,8,299,150,2,64,65,200,290,100 heads=16 "
            "kv_heads=4 dim_qk=256 dim_v=256 storage=paged page_size=8 diagonal=100,0,bottom_right "
            "kv_scales=head"},
           {"256, NaN in hidden keys, pages of 64/bf16",
            "dtype=bf16 batch=2 len_q=2 len_kv=700 lens_kv=700,90 heads=4 kv_heads=2 dim_qk=256 dim_v=256 "
            "storage=paged page_size=64 content=nan_hidden_keys diagonal=300,0,bottom_right"},
       })
    list.add_random(std::string(text) + " kv_dtype=f8e4m3",
                    std::string("few queries, kv f8e4m3, head_dim ") + name);
}

}  // namespace tessera
