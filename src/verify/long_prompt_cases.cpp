// Attention cases of several large tiles of queries and keys.

#include "verify/attention_case_list.h"

namespace tessera {
namespace {

/// Several large tiles of queries and keys.
AttentionCase long_prompts(std::int64_t batch) {
  AttentionCase c;
  c.batch = batch;
  c.seq_len_q = 300;
  c.seq_len_kv = 410;
  return c;
}

void pad_keys(AttentionCase& c) {
  c.kv_storage = KvStorage::kPadded;
  c.lens_kv = {410, 0, 260};
}

void make_ragged(AttentionCase& c) {
  c.kv_storage = KvStorage::kRagged;
  c.lens_q = {130, 0, 300};
  c.lens_kv = {129, 5, 410};
}

/// As the kernels for long prompts take them, with their edges: the last tile reads what is behind a
/// sequence, which may be NaN.
void add_long_prompts(CaseList& list) {
  AttentionCase c = long_prompts(3);
  c.diagonal = DiagonalMask::causal();
  for (const auto& [qk, v] :
       {std::pair{64, 64}, {80, 80}, {112, 112}, {128, 128}, {192, 128}, {192, 192}, {256, 256}}) {
    c.head_dim_qk = qk;
    c.head_dim_v = v;
    c.quick = qk == 128;
    list.add_dtypes(c, fmt::format("long prompts, head_dim {} and {}", qk, v));
  }
  c.quick = false;
  c.head_dim_qk = c.head_dim_v = 128;
  c.sinks = true;
  c.strides = StrideStyle::kPacked;
  c.diagonal = DiagonalMask::sliding_window(90, 30);
  list.add_dtypes(c, "long prompts, window, sinks, packed");
  c.strides = StrideStyle::kBatchHeadsSeq;
  pad_keys(c);
  list.add_dtypes(c, "long prompts, window, sinks, padded");
  c.strides = StrideStyle::kBatchSeqHeads;
  make_ragged(c);
  for (const bool causal : {false, true}) {
    if (causal) c.diagonal = DiagonalMask::causal();
    for (const auto& [name, content] : {std::pair{"", Content::kNormal},
                                        {", NaN in hidden keys", Content::kNanInHiddenKeys},
                                        {", NaN in the last keys", Content::kNanInLastKeys},
                                        {", NaN in values", Content::kNanInValues},
                                        {", largest values", Content::kLargestValues}}) {
      c.content = content;
      c.quick = causal && content == Content::kNanInHiddenKeys;
      list.add_dtypes(c, fmt::format("long prompts, {}, ragged{}", causal ? "causal" : "window", name));
    }
  }
}

/// Rows that no copy of 16 bytes fits: kernels may have them copied first.
void add_unaligned_long_prompts(CaseList& list) {
  AttentionCase plain = long_prompts(3);
  plain.diagonal = DiagonalMask::causal();
  const auto add = [&](const char* name, int qk, int v, StrideStyle strides, auto change) {
    AttentionCase c = plain;
    c.head_dim_qk = qk;
    c.head_dim_v = v;
    c.strides = strides;
    change(c);
    list.add_dtypes(c, fmt::format("long prompts, unaligned rows, {}", name));
  };
  add("head_dim 100", 100, 100, StrideStyle::kBatchSeqHeads, [](AttentionCase&) {});
  add("head_dim 250, heads first", 250, 250, StrideStyle::kBatchHeadsSeq, [](AttentionCase&) {});
  add("head_dim 128, odd strides", 128, 128, StrideStyle::kOdd, [](AttentionCase&) {});
  add("head_dim 65 and 121, window, padded", 65, 121, StrideStyle::kOdd, [](AttentionCase& c) {
    c.diagonal = DiagonalMask::sliding_window(90, 30);
    c.sinks = true;
    pad_keys(c);
  });
  for (const auto& [name, content] :
       {std::pair{"head_dim 36 and 100, ragged, NaN in hidden keys", Content::kNanInHiddenKeys},
        {"head_dim 36 and 100, ragged, NaN in values", Content::kNanInValues}}) {
    add(name, 36, 100, StrideStyle::kPacked, [what = content](AttentionCase& c) {
      c.content = what;
      make_ragged(c);
    });
  }
  add("head_dim 100, shared keys", 100, 100, StrideStyle::kOdd, [](AttentionCase& c) { c.shared_kv = true; });
  add("head_dim 100, terms", 100, 100, StrideStyle::kOdd, [](AttentionCase& c) {
    c.softcap = 30.0f;
    c.alibi = true;
    c.boolean_mask = MaskRecipe{DType::kBool, true, false, true, 0.3, 1, true};
  });
}

/// Aligned ones with what happens to scores, and with pages.
void add_terms_of_long_prompts(CaseList& list) {
  AttentionCase plain = long_prompts(2);
  plain.head_dim_qk = plain.head_dim_v = 128;
  const auto add = [&](const char* name, auto change) {
    AttentionCase c = plain;
    change(c);
    list.add_dtypes(c, fmt::format("long prompts, {}", name));
  };
  const auto mask = [](DType dtype, bool per_batch, bool per_head) {
    return MaskRecipe{dtype, per_batch, per_head, true, 0.3, 1, true};
  };
  add("softcap", [](AttentionCase& c) { c.softcap = 20.0f; });
  add("scores near the softcap", [](AttentionCase& c) { c.softcap = 0.5f; });
  add("ALiBi, softmax_scale below 0", [](AttentionCase& c) {
    c.alibi = true;
    c.softmax_scale = -0.1f;
  });
  add("additive bf16 mask by query",
      [&](AttentionCase& c) { c.additive_mask = mask(DType::kBF16, false, false); });
  add("additive f32 mask by head",
      [&](AttentionCase& c) { c.additive_mask = mask(DType::kF32, false, true); });
  add("additive mask by key", [&](AttentionCase& c) { c.additive_mask = MaskRecipe{}; });
  add("boolean mask, head_dim 256", [&](AttentionCase& c) {
    c.head_dim_qk = c.head_dim_v = 256;
    c.boolean_mask = mask(DType::kU8, true, true);
  });
  add("all terms, head_dim 64", [&](AttentionCase& c) {
    c.head_dim_qk = c.head_dim_v = 64;
    c.diagonal = DiagonalMask::sliding_window(200, 3);
    c.softcap = 30.0f;
    c.alibi = c.sinks = true;
    c.boolean_mask = mask(DType::kBool, true, false);
    c.additive_mask = mask(DType::kF16, true, true);
  });
  for (const int page_size : {8, 16, 256}) {
    add(page_size == 8    ? "pages of 8"
        : page_size == 16 ? "pages of 16"
                          : "pages of 256",
        [&](AttentionCase& c) {
          c.head_dim_qk = c.head_dim_v = page_size == 16 ? 64 : 128;
          c.diagonal = DiagonalMask::causal();
          c.kv_storage = KvStorage::kPaged;
          c.page_size = page_size;
          c.lens_kv = {410, 130};
        });
  }
}

/// Pages of any number of keys, whose rows are gathered one by one.
void add_gathered_pages(CaseList& list) {
  for (const auto& [name, text] : {
           std::pair{"pages of 1, causal, ragged/bf16",
                     "dtype=bf16 batch=3 len_q=300 lens_q=300,1,77 len_kv=410 lens_kv=410,130,77 heads=8 "
                     "kv_heads=2 dim_qk=128 dim_v=128 storage=paged page_size=1 diagonal=all,0,bottom_right "
                     "lse=1"},
           {"pages of 24, window/f16",
            "dtype=f16 batch=2 len_q=300 len_kv=610 lens_kv=610,333 heads=4 kv_heads=4 dim_qk=64 dim_v=64 "
            "storage=paged page_size=24 diagonal=130,40,bottom_right"},
           {"pages of 100, head_dim 256, additive mask/bf16",
            "dtype=bf16 batch=2 len_q=200 len_kv=408 lens_kv=408,130 heads=4 kv_heads=2 dim_qk=256 dim_v=256 "
            "storage=paged page_size=100 additive=bf16,q,0.3,1"},
           {"pages of 17, head_dims 192 and 128, softcap, alibi/bf16",
            "dtype=bf16 batch=2 len_q=260 len_kv=520 lens_kv=520,0 heads=4 kv_heads=4 dim_qk=192 dim_v=128 "
            "storage=paged page_size=17 softcap=20 alibi=1 diagonal=all,0,bottom_right"},
           {"pages of 5, head_dim 80, NaN in the last keys/f16",
            "dtype=f16 batch=2 len_q=200 len_kv=390 lens_kv=390,131 heads=4 kv_heads=2 dim_qk=80 dim_v=80 "
            "storage=paged page_size=5 content=nan_last_keys boolean=bool,h,0.3,1"},
           {"pages of 200, head_dim 192, sinks/bf16",
            "dtype=bf16 batch=2 len_q=270 len_kv=400 lens_kv=400,250 heads=4 kv_heads=2 dim_qk=192 dim_v=192 "
            "storage=paged page_size=200 sinks=1 diagonal=all,0,top_left"},
       })
    list.add_random(text, std::string("long prompts, ") + name);
}

/// Masks whose rows no copy of 16 bytes fits, for all heads: kernels may have them copied first.
void add_unaligned_masks(CaseList& list) {
  for (const auto& [name, text] : {
           std::pair{"additive f32, a row a query/bf16",
                     "dtype=bf16 batch=2 len_q=500 len_kv=531 heads=16 kv_heads=4 dim_qk=128 dim_v=128 "
                     "additive=f32,q,0.3,1"},
           {"additive bf16, a row a sequence, ragged/f16",
            "dtype=f16 batch=3 len_q=400 lens_q=400,1,277 len_kv=610 lens_kv=610,33,401 heads=16 kv_heads=16 "
            "dim_qk=96 dim_v=96 storage=ragged additive=bf16,b,0.3,1 diagonal=all,0,bottom_right"},
           {"boolean, a row a query of each sequence, pages of 32/bf16",
            "dtype=bf16 batch=2 len_q=450 len_kv=613 lens_kv=613,450 heads=16 kv_heads=8 dim_qk=128 "
            "dim_v=128 "
            "storage=paged page_size=32 boolean=bool,bq,0.3,1 content=nan_hidden_keys"},
           {"both, head_dim 100/f16",
            "dtype=f16 batch=2 len_q=500 len_kv=521 heads=16 kv_heads=2 dim_qk=100 dim_v=100 "
            "additive=f16,q,0.3,1 boolean=u8,q,0.3,1"},
       })
    list.add_random(text, std::string("long prompts, unaligned masks, ") + name);
}

/// Queries of 8 bits over pages that make up tiles.
void add_narrow_prompts_over_pages(CaseList& list) {
  for (const auto& [name, text] : {
           std::pair{
               "pages of 16, causal, sinks, ragged/f16",
               "dtype=f16 batch=3 len_q=260 lens_q=260,1,131 len_kv=400 lens_kv=400,90,333 heads=8 "
               "kv_heads=2 dim_qk=128 dim_v=128 storage=paged page_size=16 kv_dtype=f8e4m3 "
               "kv_scales=head narrow_q=1 q_scales=page_head sinks=1 diagonal=all,0,bottom_right lse=1"},
           {"pages of 64, window/bf16",
            "dtype=bf16 batch=2 len_q=200 len_kv=600 lens_kv=600,130 heads=4 kv_heads=4 dim_qk=64 dim_v=64 "
            "storage=paged page_size=64 kv_dtype=f8e4m3 narrow_q=1 diagonal=70,3,bottom_right"},
           {"pages of 8, head_dim 256/bf16",
            "dtype=bf16 batch=2 len_q=300 len_kv=400 lens_kv=400,0 heads=4 kv_heads=2 dim_qk=256 dim_v=256 "
            "storage=paged page_size=8 kv_dtype=f8e4m3 kv_scales=tensor narrow_q=1 q_scales=tensor"},
           {"pages of 128, causal/bf16",
            "dtype=bf16 batch=2 len_q=300 len_kv=500 lens_kv=500,257 heads=4 kv_heads=2 dim_qk=128 dim_v=128 "
            "storage=paged page_size=128 kv_dtype=f8e4m3 kv_scales=head narrow_q=1 "
            "diagonal=all,0,bottom_right"},
           {"pages of 256, head_dim 256/f16",
            "dtype=f16 batch=2 len_q=150 len_kv=500 lens_kv=500,270 heads=2 kv_heads=2 dim_qk=256 dim_v=256 "
            "storage=paged page_size=256 kv_dtype=f8e4m3 narrow_q=1 q_scales=tensor"},
           {"pages of 32, head_dim 176, NaN in the last keys/f16",
            "dtype=f16 batch=2 len_q=150 len_kv=300 lens_kv=300,131 heads=4 kv_heads=2 dim_qk=176 dim_v=176 "
            "storage=paged page_size=32 kv_dtype=f8e4m3 narrow_q=1 content=nan_last_keys "
            "diagonal=all,0,bottom_right"},
       })
    list.add_random(text, std::string("q f8e4m3, prompts, ") + name);
}

}  // namespace

void add_long_prompt_cases(CaseList& list) {
  add_long_prompts(list);
  add_unaligned_long_prompts(list);
  add_terms_of_long_prompts(list);
  add_gathered_pages(list);
  add_unaligned_masks(list);
  add_narrow_prompts_over_pages(list);
}

}  // namespace tessera
