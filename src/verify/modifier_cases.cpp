#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

#include "verify/attention_case_list.h"
#include "verify/modifier_example.h"

namespace tessera {
namespace {

/// The name of an example on a kind of problem: "modifier causal, paged".
std::string case_name(ModifierExample example, const char* kind) {
  return fmt::format("modifier {}, {}", modifier_example_name(example), kind);
}

}  // namespace

void add_modifier_cases(CaseList& list) {
  for (int n = 1; n < kNumModifierExamples; ++n) {
    const auto example = static_cast<ModifierExample>(n);
    AttentionCase c;
    c.modifier = example;
    c.content = Content::kNanInHiddenKeys;
    c.seq_len_q = 70;
    c.seq_len_kv = 150;
    c.quick = true;
    list.add_dtypes(c, case_name(example, "dense"));
    c.quick = false;

    AttentionCase ragged = c;
    ragged.batch = 3;
    ragged.lens_q = {70, 1, 33};
    ragged.lens_kv = {150, 90, 33};
    ragged.kv_storage = KvStorage::kRagged;
    ragged.strides = StrideStyle::kOdd;
    list.add(ragged, case_name(example, "ragged, odd strides/f32"));

    AttentionCase decode = c;
    decode.seq_len_q = 1;
    decode.batch = 3;
    decode.num_heads = 8;
    decode.kv_storage = KvStorage::kPaged;
    decode.lens_kv = {150, 77, 1};
    decode.dtype = DType::kBF16;
    list.add(decode, case_name(example, "paged decode/bf16"));
    decode.kv_dtype = DType::kF8E4M3;
    decode.kv_scaling = KvScaling::kPageHead;
    decode.seq_len_q = 3;
    decode.diagonal = DiagonalMask::causal();
    list.add(decode, case_name(example, "paged decode of f8e4m3, causal/bf16"));

    AttentionCase terms = c;
    terms.content = Content::kNormal;
    terms.softcap = 4.0f;
    terms.alibi = terms.sinks = true;
    terms.additive_mask = MaskRecipe{DType::kF32, true, false, true, 0.1, 1};
    terms.diagonal = DiagonalMask::sliding_window(60, 10);
    list.add(terms, case_name(example, "with all terms/f32"));
  }
  // What makes something finite of -inf: no key that a query's place hides may come back by that, and of
  // infinite keys, whose scores may be -inf, none may be lost.
  AttentionCase few;
  few.modifier = ModifierExample::kSoftcap;
  few.batch = 1;
  few.num_heads = few.num_kv_heads = 2;
  few.seq_len_q = 4;
  few.seq_len_kv = 90;
  few.diagonal = DiagonalMask::causal();
  list.add_dtypes(few, case_name(ModifierExample::kSoftcap, "few queries, causal"));
  for (const char* dtype : {"f32", "bf16"}) {
    for (const int len_q : {4, 70}) {
      list.add_random(
          fmt::format("dtype={} batch=1 len_q={} len_kv=90 heads=2 kv_heads=1 dim_qk=64 dim_v=64 alibi=1 "
                      "modifier=softcap content=infinite_keys",
                      dtype, len_q),
          fmt::format("{}, {} queries/{}", case_name(ModifierExample::kSoftcap, "infinite keys"), len_q,
                      dtype));
    }
  }
  // Few queries over keys that are split, and of which most tiles are hidden, or none.
  for (const ModifierExample example :
       {ModifierExample::kCausal, ModifierExample::kWindow, ModifierExample::kDocuments,
        ModifierExample::kNatten, ModifierExample::kDraftTree}) {
    AttentionCase c;
    c.modifier = example;
    c.content = Content::kNanInHiddenKeys;
    c.batch = 2;
    c.num_heads = 8;
    c.num_kv_heads = 2;
    c.seq_len_q = 1;
    c.seq_len_kv = 4200;
    c.head_dim_qk = c.head_dim_v = 128;
    list.add_dtypes(c, case_name(example, "one query, long keys"));
    c.seq_len_q = 16;
    c.kv_storage = KvStorage::kPaged;
    c.lens_kv = {4200, 1111};
    c.dtype = DType::kBF16;
    list.add(c, case_name(example, "16 queries, long keys, paged/bf16"));
    c.seq_len_q = 3;
    list.add_dtypes(c, case_name(example, "3 queries, long keys, paged"));
    c.kv_dtype = DType::kF8E4M3;
    c.kv_scaling = KvScaling::kHead;
    list.add(c, case_name(example, "3 queries, long keys of f8e4m3, paged/bf16"));
  }
  // Tiles of the size that kernels for long prompts take, of which most are empty or full.
  for (const ModifierExample example :
       {ModifierExample::kWindow, ModifierExample::kDocuments, ModifierExample::kAlibi,
        ModifierExample::kSinksAndWindow, ModifierExample::kSoftcap}) {
    AttentionCase c;
    c.modifier = example;
    c.batch = 1;
    c.num_heads = c.num_kv_heads = 2;
    c.seq_len_q = c.seq_len_kv = 600;
    c.head_dim_qk = c.head_dim_v = 128;
    c.dtype = DType::kBF16;
    list.add(c, case_name(example, "long prompt/bf16"));
    if (example != ModifierExample::kSoftcap) continue;
    // Scores of which most are beyond a polynomial for tanh's middle, and of which none is; and what another
    // mask hides, which stays hidden.
    c.softmax_scale = 0.03f;
    c.dtype = DType::kF16;
    list.add(c, case_name(example, "long prompt of small scores/f16"));
    c.boolean_mask = MaskRecipe{DType::kBool, true, true, true, 0.3, 2};
    list.add(c, case_name(example, "long prompt, boolean mask/f16"));
  }
  // Tiles of queries that see nothing: what was asked for before that is known comes to no good place.
  for (const int head_dim : {128, 576}) {
    AttentionCase c;
    c.modifier = ModifierExample::kCausal;
    c.batch = head_dim == 128 ? 8 : 2;
    c.num_heads = c.num_kv_heads = 8;
    c.seq_len_q = 400;
    c.seq_len_kv = 80;
    c.head_dim_qk = c.head_dim_v = head_dim;
    list.add_dtypes(c, case_name(c.modifier, head_dim == 128 ? "more queries than keys"
                                                             : "more queries than keys, large heads"));
  }
  // The same where other kernels take prompts: large heads, packed heads whose keys are split, fp32, keys of
  // 8 bits.
  for (const ModifierExample example : {ModifierExample::kWindow, ModifierExample::kDocuments,
                                        ModifierExample::kSinksAndWindow, ModifierExample::kPrefixLm}) {
    AttentionCase c;
    c.modifier = example;
    c.content = Content::kNanInHiddenKeys;
    c.batch = 1;
    c.num_heads = 4;
    c.num_kv_heads = 2;
    c.seq_len_q = c.seq_len_kv = 600;
    c.head_dim_qk = c.head_dim_v = 320;
    c.dtype = DType::kBF16;
    list.add(c, case_name(example, "long prompt, large heads/bf16"));
    c.head_dim_qk = c.head_dim_v = 128;
    c.kv_dtype = DType::kF8E4M3;
    c.kv_scaling = KvScaling::kHead;
    c.kv_storage = KvStorage::kPaged;
    c.lens_kv = {600};
    list.add(c, case_name(example, "long prompt of f8e4m3 keys, paged/bf16"));
    c.kv_dtype.reset();
    c.kv_scaling = KvScaling::kNone;
    c.dtype = DType::kF32;
    list.add(c, case_name(example, "long prompt, paged/f32"));
    c.kv_storage = KvStorage::kDense;
    c.lens_kv.clear();
    c.seq_len_q = 40;
    c.seq_len_kv = 4200;
    list.add_dtypes(c, case_name(example, "40 queries, long keys"));
  }
  // Values that are a part of the keys: groups of rows that share what they copy, and pages that are left
  // out.
  for (const ModifierExample example : {ModifierExample::kCausal, ModifierExample::kWindow,
                                        ModifierExample::kDocuments, ModifierExample::kDraftTree}) {
    AttentionCase c;
    c.modifier = example;
    c.content = Content::kNanInHiddenKeys;
    c.head_dim_qk = 576;
    c.head_dim_v = 512;
    c.values_in_keys = true;
    c.num_kv_heads = 1;
    c.num_heads = 100;
    c.seq_len_q = 1;
    c.seq_len_kv = 2100;
    c.dtype = DType::kBF16;
    list.add(c, case_name(example, "latent attention/bf16"));
    c.num_heads = 20;
    c.seq_len_q = 9;
    c.kv_storage = KvStorage::kPaged;
    c.lens_kv = {2100, 333};
    list.add_dtypes(c, case_name(example, "latent attention, 9 queries, paged"));
  }
  // Segments of which nobody sees a key. Of a prompt few heads: each of its scores asks the modifier, which
  // takes the CPU longer than all else.
  constexpr std::string_view kManyHeads = "heads=8 kv_heads=2", kFewHeads = "heads=2 kv_heads=1";
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    for (const auto& [heads, text] :
         {std::pair{kManyHeads, "len_q=1 modifier=window"}, std::pair{kManyHeads, "len_q=60 modifier=window"},
          std::pair{kManyHeads, "len_q=60 modifier=window content=nan_one_value softcap=10"},
          std::pair{kManyHeads, "len_q=3 modifier=window content=nan_hidden_keys lse=1"},
          std::pair{kFewHeads, "len_q=300 modifier=causal lse=1"}}) {
      list.add_random(fmt::format("dtype={} batch=2 len_kv=2300 {} dim_qk=128 dim_v=128 storage=padded "
                                  "lens_kv=2300,1030 diagonal=all,0,bottom_right invariant=1 {}",
                                  dtype, heads, text),
                      fmt::format("modifier, batch_invariant, {}/{}", text, dtype));
    }
  }
}

}  // namespace tessera
