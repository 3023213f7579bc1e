// The list of cases that attention has to pass: every feature by itself in every dtype, then together.

#include <fmt/core.h>

#include <array>
#include <string_view>
#include <utility>

#include "verify/attention_case_list.h"
#include "verify/attention_properties.h"
#include "verify/verify.h"

namespace tessera {
namespace {

constexpr std::array kDTypes = {DType::kF32, DType::kF16, DType::kBF16};

void add_head_dims(CaseList& list) {
  for (const int head_dim : {1, 3, 17, 40, 64, 72, 80, 96, 128, 160, 192, 256, 512, 576}) {
    AttentionCase c;
    c.head_dim_qk = c.head_dim_v = head_dim;
    c.diagonal = DiagonalMask::causal();
    c.quick = head_dim == 17 || head_dim == 64 || head_dim == 128;
    list.add_dtypes(c, fmt::format("head_dim {}", head_dim));
    c.quick = false;
    c.seq_len_q = 1;
    c.seq_len_kv = 150;
    list.add_dtypes(c, fmt::format("head_dim {}, decode", head_dim));
  }
  for (const auto& [qk, v] : {std::pair{192, 128}, {64, 512}, {40, 17}, {1, 128}, {512, 1}, {576, 512}}) {
    AttentionCase c;
    c.head_dim_qk = qk;
    c.head_dim_v = v;
    c.quick = qk == 192;
    list.add_dtypes(c, fmt::format("head_dim {} and {}", qk, v));
  }
}

void add_heads(CaseList& list) {
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {3, 3}, {8, 2}, {6, 1}, {32, 1}, {12, 4}}) {
    AttentionCase c;
    c.num_heads = heads;
    c.num_kv_heads = kv_heads;
    c.head_dim_qk = c.head_dim_v = 40;
    c.quick = heads == 6;
    list.add_dtypes(c, fmt::format("heads {}/{}", heads, kv_heads));
    c.quick = false;
    c.seq_len_q = 1;
    list.add_dtypes(c, fmt::format("heads {}/{}, decode", heads, kv_heads));
  }
}

void add_lengths(CaseList& list) {
  const std::pair<std::int64_t, std::int64_t> kLengths[] = {
      {1, 1},     {1, 17},    {1, 300},  {2, 33},    {4, 129},  {7, 7},    {64, 64},   {65, 127}, {127, 65},
      {128, 128}, {129, 257}, {200, 50}, {300, 300}, {1, 4096}, {3, 4100}, {16, 2048}, {5, 0},    {0, 5}};
  for (const auto& [len_q, len_kv] : kLengths) {
    for (const bool causal : {false, true}) {
      AttentionCase c;
      c.seq_len_q = len_q;
      c.seq_len_kv = len_kv;
      if (len_kv >= 300) c.batch = 1;
      if (causal) c.diagonal = DiagonalMask::causal();
      c.quick = causal && len_kv <= 127;
      list.add_dtypes(c, fmt::format("lengths {}/{}{}", len_q, len_kv, causal ? ", causal" : ""));
    }
  }
  AttentionCase empty;
  empty.batch = 0;
  empty.quick = true;
  list.add_dtypes(empty, "empty batch");
  AttentionCase large_batch;
  large_batch.batch = 19;
  large_batch.seq_len_q = 3;
  list.add_dtypes(large_batch, "batch 19");
  AttentionCase long_prefill;
  long_prefill.batch = 1;
  long_prefill.num_heads = long_prefill.num_kv_heads = 1;
  long_prefill.seq_len_q = 500;
  long_prefill.seq_len_kv = 600;
  long_prefill.head_dim_qk = long_prefill.head_dim_v = 128;
  long_prefill.diagonal = DiagonalMask::causal();
  list.add_dtypes(long_prefill, "lengths 500/600, causal");
  // A library that sums so many keys in parts has to share out what no tile of them divides.
  AttentionCase many_keys = long_prefill;
  many_keys.seq_len_q = 16;
  many_keys.seq_len_kv = 24208;
  many_keys.head_dim_qk = many_keys.head_dim_v = 256;
  many_keys.diagonal.reset();
  list.add_dtypes(many_keys, "lengths 16/24208");
}

void add_narrow_keys(CaseList& list) {
  constexpr std::pair<std::string_view, KvScaling> kScalings[] = {
      {"no scales", KvScaling::kNone},
      {"a scale", KvScaling::kTensor},
      {"a scale a head", KvScaling::kHead},
      {"a scale a page and head", KvScaling::kPageHead}};
  for (const auto& [name, scaling] : kScalings) {
    AttentionCase c;
    c.kv_dtype = DType::kF8E4M3;
    c.kv_scaling = scaling;
    c.diagonal = DiagonalMask::causal();
    c.quick = scaling == KvScaling::kHead;
    list.add_dtypes(c, fmt::format("kv f8e4m3, {}", name));
    c.kv_storage = KvStorage::kPaged;
    c.lens_kv = {83, 52};
    c.quick = scaling == KvScaling::kPageHead;
    list.add_dtypes(c, fmt::format("kv f8e4m3, {}, paged", name));
    c.quick = false;
    c.num_heads = 8;
    c.seq_len_q = 1;
    c.seq_len_kv = 700;
    c.lens_kv = {700, 333};
    c.head_dim_qk = c.head_dim_v = 128;
    list.add_dtypes(c, fmt::format("kv f8e4m3, {}, paged, decode", name));
    c.kv_storage = KvStorage::kDense;
    c.lens_kv.clear();
    list.add_dtypes(c, fmt::format("kv f8e4m3, {}, decode", name));
    c.head_dim_qk = 72;
    c.head_dim_v = 40;
    c.strides = StrideStyle::kOdd;
    list.add_dtypes(c, fmt::format("kv f8e4m3, {}, decode, odd strides", name));
    c.seq_len_q = 130;
    c.seq_len_kv = 300;
    list.add_dtypes(c, fmt::format("kv f8e4m3, {}, odd strides", name));
  }
  AttentionCase c;
  c.kv_dtype = DType::kF8E4M3;
  c.kv_scaling = KvScaling::kHead;
  c.seq_len_kv = 200;
  for (const auto& [name, content] : {std::pair{"NaN in hidden keys", Content::kNanInHiddenKeys},
                                      {"NaN in values", Content::kNanInValues},
                                      {"NaN in keys", Content::kNanInKeys},
                                      {"largest values", Content::kLargestValues}}) {
    c.content = content;
    c.diagonal = DiagonalMask::causal();
    c.seq_len_q = 37;
    list.add_dtypes(c, fmt::format("kv f8e4m3, {}", name));
    c.seq_len_q = 1;
    c.diagonal = DiagonalMask::sliding_window_keys(70);
    list.add_dtypes(c, fmt::format("kv f8e4m3, {}, decode", name));
  }
}

void add_narrow_queries(CaseList& list) {
  AttentionCase c;
  c.kv_dtype = DType::kF8E4M3;
  c.narrow_q = true;
  c.diagonal = DiagonalMask::causal();
  list.add_dtypes(c, "q f8e4m3, no scales");
  c.q_scaling = c.kv_scaling = KvScaling::kTensor;
  list.add_dtypes(c, "q f8e4m3, a scale");
  c.q_scaling = c.kv_scaling = KvScaling::kPageHead;
  c.num_heads = 8;
  c.quick = true;
  list.add_dtypes(c, "q f8e4m3, a scale a sequence and head");
  c.quick = false;
  AttentionCase odd = c;
  odd.head_dim_qk = 72;
  odd.head_dim_v = 40;
  odd.strides = StrideStyle::kOdd;
  odd.softcap = 4.0f;
  odd.alibi = odd.sinks = true;
  list.add_dtypes(odd, "q f8e4m3, odd strides, with terms");
  AttentionCase prompt = c;
  prompt.batch = 3;
  prompt.head_dim_qk = prompt.head_dim_v = 128;
  prompt.seq_len_q = 260;
  prompt.seq_len_kv = 400;
  prompt.lens_q = {260, 1, 131};
  prompt.lens_kv = {400, 90, 333};
  prompt.kv_storage = KvStorage::kPaged;
  list.add_dtypes(prompt, "q f8e4m3, ragged and paged prompts");
  prompt.kv_storage = KvStorage::kDense;
  prompt.lens_kv = {};
  prompt.lens_q = {};
  prompt.seq_len_q = 200;
  for (const int head_dim : {48, 128, 176, 256}) {
    prompt.head_dim_qk = prompt.head_dim_v = head_dim;
    list.add_dtypes(prompt, fmt::format("q f8e4m3, prompts, head_dim {}", head_dim));
  }
  prompt.head_dim_qk = prompt.head_dim_v = 64;
  prompt.diagonal = DiagonalMask::sliding_window_keys(70);
  list.add_dtypes(prompt, "q f8e4m3, prompts, window");
  for (const auto& [name, content] : {std::pair{"NaN in values", Content::kNanInValues},
                                      {"NaN in keys", Content::kNanInKeys},
                                      {"largest values", Content::kLargestValues}}) {
    prompt.content = content;
    list.add_dtypes(prompt, fmt::format("q f8e4m3, prompts, {}", name));
  }
  prompt.content = Content::kNormal;
  prompt.softmax_scale = 4.0f;
  list.add_dtypes(prompt, "q f8e4m3, prompts, large scale");
  AttentionCase decode = c;
  decode.seq_len_q = 1;
  decode.seq_len_kv = 700;
  decode.lens_kv = {700, 333};
  decode.head_dim_qk = decode.head_dim_v = 128;
  decode.kv_storage = KvStorage::kPaged;
  decode.kv_scaling = KvScaling::kHead;
  list.add_dtypes(decode, "q f8e4m3, paged, decode");
}

void add_diagonals(CaseList& list) {
  constexpr auto kTopLeft = DiagonalAlignment::kTopLeft;
  constexpr auto kBottomRight = DiagonalAlignment::kBottomRight;
  const std::pair<std::string_view, DiagonalMask> kDiagonals[] = {
      {"causal, bottom-right", DiagonalMask::causal()},
      {"causal, top-left", DiagonalMask::causal(kTopLeft)},
      {"window 16 left, causal", {16, 0, kBottomRight}},
      {"window 0 left, 16 right", {0, 16, kBottomRight}},
      {"window 7 left, 5 right", {7, 5, kBottomRight}},
      {"window of the diagonal alone", {0, 0, kBottomRight}},
      {"window 9 right", {std::nullopt, 9, kBottomRight}},
      {"window 9 left", {9, std::nullopt, kBottomRight}},
      {"window 7 left, 5 right, top-left", {7, 5, kTopLeft}},
      {"window beyond all keys", {std::int64_t{1} << 62, std::int64_t{1} << 62, kBottomRight}},
      {"diagonal mask without limits", {std::nullopt, std::nullopt, kBottomRight}},
  };
  for (const auto& [name, diagonal] : kDiagonals) {
    AttentionCase c;
    c.diagonal = diagonal;
    c.quick = name == "window 7 left, 5 right";
    list.add_dtypes(c, fmt::format("{}", name));
    c.quick = false;
    c.seq_len_q = 150;
    c.seq_len_kv = 70;
    list.add_dtypes(c, fmt::format("{}, more queries than keys", name));
    c.seq_len_q = 140;
    c.seq_len_kv = 300;
    list.add(c, fmt::format("{}, several tiles/f32", name));
    c.seq_len_q = 1;
    list.add_dtypes(c, fmt::format("{}, decode", name));
  }
}

std::string broadcast_name(const MaskRecipe& mask) {
  std::string name;
  if (mask.per_batch) name += " batch";
  if (mask.per_head) name += " head";
  if (mask.per_query) name += " query";
  return name.empty() ? " key only" : name;
}

/// Masks that hide by their type's lowest number, some rows whole.
void add_lowest_masks(CaseList& list) {
  for (const auto& [name, len_q, heads, dim] : {std::tuple{"decode", 1, 2, 64},
                                                {"eight queries", 8, 8, 128},
                                                {"prompt", 150, 4, 128},
                                                {"prompt", 70, 2, 320}}) {
    for (const auto& [mask_dtype, hidden_share] : {std::pair{DType::kF32, 0.995}, {DType::kBF16, 1.0}}) {
      AttentionCase c;
      c.seq_len_q = len_q;
      c.seq_len_kv = len_q == 8 ? 64 : 300;  // of splits each would weigh as much, however many keys it has
      c.num_heads = heads;
      c.num_kv_heads = 2;
      c.head_dim_qk = c.head_dim_v = dim;
      c.with_lse = false;
      c.additive_mask = MaskRecipe{mask_dtype, true, false, true, hidden_share};
      c.additive_mask->hides_by_lowest = true;
      c.quick = dim == 128;
      list.add_dtypes(c, fmt::format("additive {} mask of lowest numbers, head_dim {}, {}",
                                     dtype_name(mask_dtype), dim, name));
    }
  }
}

void add_masks(CaseList& list) {
  for (int form = 0; form < 8; ++form) {
    MaskRecipe mask;
    mask.per_batch = (form & 1) != 0;
    mask.per_head = (form & 2) != 0;
    mask.per_query = (form & 4) != 0;
    for (const DType mask_dtype : kDTypes) {
      AttentionCase c;
      c.head_dim_qk = c.head_dim_v = 40;
      mask.dtype = mask_dtype;
      c.additive_mask = mask;
      c.quick = form == 7;
      const std::string name =
          fmt::format("additive {} mask by{}", dtype_name(mask_dtype), broadcast_name(mask));
      if (form == 0 || form == 7) {
        list.add_dtypes(c, name);
      } else {
        list.add(c, name + "/f32");
      }
    }
    AttentionCase c;
    c.head_dim_qk = c.head_dim_v = 40;
    mask.dtype = form % 2 == 0 ? DType::kBool : DType::kU8;
    c.boolean_mask = mask;
    c.quick = form == 7;
    list.add_dtypes(c, fmt::format("boolean mask by{}", broadcast_name(mask)));
    c.quick = false;
    c.seq_len_q = 1;
    list.add_dtypes(c, fmt::format("boolean mask by{}, decode", broadcast_name(mask)));
  }
  AttentionCase wide;
  wide.additive_mask = MaskRecipe{DType::kF32, true, true, true, 0.3, 3};
  wide.boolean_mask = MaskRecipe{DType::kBool, true, true, true, 0.3, 2};
  list.add_dtypes(wide, "masks with a stride between keys");
  AttentionCase hidden;
  hidden.boolean_mask = MaskRecipe{DType::kBool, true, true, true, 0.97, 1};
  hidden.quick = true;
  list.add_dtypes(hidden, "rows without a visible key by boolean mask");
  hidden.boolean_mask.reset();
  hidden.additive_mask = MaskRecipe{DType::kF32, true, true, true, 0.97, 1};
  list.add_dtypes(hidden, "rows without a visible key by additive mask");
  hidden.additive_mask->hidden_share = 1;
  hidden.sinks = true;
  list.add_dtypes(hidden, "no visible key at all, with sinks");
  add_lowest_masks(list);
}

void add_score_terms(CaseList& list) {
  // Every subset of the terms.
  for (int terms = 1; terms < 64; ++terms) {
    AttentionCase c;
    c.seq_len_q = 19;
    c.seq_len_kv = 45;
    c.head_dim_qk = c.head_dim_v = 40;
    std::string name = "terms";
    if (terms & 1) c.softcap = 2.5f, name += " softcap";
    if (terms & 2) c.alibi = true, name += " alibi";
    if (terms & 4) c.additive_mask = MaskRecipe{DType::kF32, true, false, true, 0.2, 1}, name += " additive";
    if (terms & 8) c.boolean_mask = MaskRecipe{DType::kBool, false, true, true, 0.2, 1}, name += " boolean";
    if (terms & 16) c.diagonal = DiagonalMask::sliding_window(20, 3), name += " window";
    if (terms & 32) c.sinks = true, name += " sinks";
    c.quick = (terms & (terms - 1)) == 0;  // one term alone
    if (c.quick || terms == 63) {
      list.add_dtypes(c, name);
    } else {
      list.add(c, name + "/f32");
    }
  }
  AttentionCase c;
  c.alibi = c.alibi_per_batch = true;
  list.add_dtypes(c, "alibi by batch");
  c.diagonal = DiagonalMask::causal(DiagonalAlignment::kTopLeft);
  list.add_dtypes(c, "alibi on a top-left diagonal");
  for (const float scale : {0.0f, 1.0f, -0.3f}) {
    AttentionCase scaled;
    scaled.softmax_scale = scale;
    list.add_dtypes(scaled, fmt::format("softmax_scale {}", scale));
  }
  AttentionCase capped;
  capped.softcap = 30.0f;
  capped.logit_spread = 50;
  list.add_dtypes(capped, "softcap of large logits");
}

/// All terms at once, for the storage forms.
void use_all_terms(AttentionCase& c) {
  c.softcap = 4.0f;
  c.alibi = c.alibi_per_batch = c.sinks = true;
  c.additive_mask = MaskRecipe{DType::kBF16, true, true, true, 0.1, 1};
  c.boolean_mask = MaskRecipe{DType::kU8, true, false, true, 0.1, 1};
  c.diagonal = DiagonalMask::sliding_window(40, 0);
}

void add_storage_of(CaseList& list, AttentionCase c, const std::string& name, bool quick) {
  c.quick = quick;
  list.add_dtypes(c, name);
  c.quick = false;
  c.diagonal = DiagonalMask::causal();
  list.add_dtypes(c, name + ", causal");
  use_all_terms(c);
  c.strides = StrideStyle::kOdd;
  list.add_dtypes(c, name + ", all terms, odd strides");
}

void add_storage(CaseList& list) {
  AttentionCase c;
  c.batch = 5;
  c.seq_len_q = 37;
  c.seq_len_kv = 90;
  c.lens_kv = {83, 0, 1, 90, 48};

  AttentionCase padded = c;
  padded.kv_storage = KvStorage::kPadded;
  add_storage_of(list, padded, "padded", true);

  AttentionCase ragged = c;
  ragged.kv_storage = KvStorage::kRagged;
  ragged.lens_q = {37, 5, 0, 1, 20};
  add_storage_of(list, ragged, "ragged", true);
  ragged.strides = StrideStyle::kBatchHeadsSeq;
  add_storage_of(list, ragged, "ragged, heads first", false);
  ragged.lens_q.clear();
  add_storage_of(list, ragged, "ragged keys, dense queries", false);
  AttentionCase ragged_q = c;
  ragged_q.lens_q = {0, 37, 0, 1, 0};
  ragged_q.lens_kv.clear();
  add_storage_of(list, ragged_q, "ragged queries, dense keys", false);
  ragged_q.lens_kv = c.lens_kv;
  ragged_q.kv_storage = KvStorage::kPadded;
  add_storage_of(list, ragged_q, "ragged queries, padded keys", false);

  for (const int page_size : {1, 3, 16, 64, 256}) {
    AttentionCase paged = c;
    paged.kv_storage = KvStorage::kPaged;
    paged.page_size = page_size;
    add_storage_of(list, paged, fmt::format("paged by {}", page_size), page_size == 16);
    paged.seq_len_q = 1;
    add_storage_of(list, paged, fmt::format("paged by {}, decode", page_size), page_size == 3);
    paged.seq_len_q = 37;
    paged.lens_q = {37, 5, 0, 1, 20};
    add_storage_of(list, paged, fmt::format("paged by {}, ragged queries", page_size), false);
    paged.strides = StrideStyle::kBatchHeadsSeq;
    list.add_dtypes(paged, fmt::format("paged by {}, heads first", page_size));
  }
  AttentionCase long_paged;
  long_paged.seq_len_q = 1;
  long_paged.seq_len_kv = 3000;
  long_paged.lens_kv = {3000, 1234};
  long_paged.kv_storage = KvStorage::kPaged;
  long_paged.page_size = 16;
  list.add_dtypes(long_paged, "paged by 16, long decode");
}

/// Few queries of sequences of very different lengths, whose rows fill a tile together with the heads'.
void add_shared_out(CaseList& list) {
  AttentionCase c;
  c.batch = 5;
  c.num_heads = 8;
  c.num_kv_heads = 2;
  c.head_dim_qk = c.head_dim_v = 128;
  c.seq_len_q = 16;
  c.seq_len_kv = 3000;
  c.lens_kv = {1, 700, 64, 3000, 0};
  c.diagonal = DiagonalMask::causal();
  c.kv_storage = KvStorage::kPaged;
  for (const int page_size : {8, 32, 192}) {
    c.page_size = page_size;
    list.add_dtypes(c, fmt::format("paged by {}, 16 queries of long and short sequences, decode", page_size));
  }
  c.lens_q = {16, 0, 7, 2, 1};
  c.kv_storage = KvStorage::kRagged;
  c.sinks = true;
  list.add_dtypes(c, "ragged, few queries of long and short sequences, sinks, decode");
  c.diagonal = DiagonalMask::sliding_window(300, 0);
  c.softcap = 20.0f;
  list.add_dtypes(c, "ragged, few queries of long and short sequences, window, softcap, decode");
  AttentionCase mqa;
  mqa.num_heads = 64;
  mqa.num_kv_heads = 1;
  mqa.head_dim_qk = mqa.head_dim_v = 128;
  mqa.seq_len_q = 1;
  mqa.seq_len_kv = 1100;
  list.add_dtypes(mqa, "64 heads of one kv head, decode");
  mqa.kv_storage = KvStorage::kPadded;
  mqa.lens_kv = {1100, 65};
  list.add_dtypes(mqa, "64 heads of one kv head, padded, decode");
}

/// Sequences that decode among prompts, enough for GPUs to take them apart; lengths between, too.
void add_mixed_steps(CaseList& list) {
  AttentionCase c;
  c.batch = 24;
  c.num_heads = 16;
  c.num_kv_heads = 2;
  c.head_dim_qk = c.head_dim_v = 64;
  c.seq_len_q = 70;
  c.seq_len_kv = 2100;
  c.lens_q = {1, 1, 1, 70, 1, 2, 1, 1, 0, 1, 1, 8, 1, 1, 9, 1, 1, 1, 1, 40, 1, 1, 1, 1};
  c.lens_kv = {2100, 900, 1,  70,  64, 700, 65, 128, 9, 300, 33, 1500,
               700,  2,   17, 130, 12, 256, 0,  940, 5, 63,  40, 2099};
  c.diagonal = DiagonalMask::causal();
  c.kv_storage = KvStorage::kPaged;
  c.page_size = 16;
  c.sinks = true;
  list.add_dtypes(c, "single queries among prompts, pages of 16, sinks");
  c.kv_storage = KvStorage::kPadded;
  c.sinks = false;
  c.head_dim_qk = c.head_dim_v = 128;
  list.add_dtypes(c, "single queries among prompts, padded");
  c.diagonal = DiagonalMask::sliding_window(600, 0);
  c.alibi = true;
  c.softcap = 20.0f;
  c.dtype = DType::kBF16;
  list.add(c, "single queries among prompts, padded, window, softcap, alibi");
}

void add_strides(CaseList& list) {
  for (const auto& [name, strides] : {std::pair{"batch, seq, heads", StrideStyle::kBatchSeqHeads},
                                      {"batch, heads, seq", StrideStyle::kBatchHeadsSeq},
                                      {"packed in wider rows", StrideStyle::kPacked},
                                      {"odd strides", StrideStyle::kOdd}}) {
    AttentionCase c;
    c.strides = strides;
    c.diagonal = DiagonalMask::causal();
    c.quick = true;
    list.add_dtypes(c, fmt::format("layout {}", name));
    c.quick = false;
    c.seq_len_q = 1;
    list.add_dtypes(c, fmt::format("layout {}, decode", name));
  }
  AttentionCase shared;
  shared.batch = 3;
  shared.shared_kv = true;
  list.add_dtypes(shared, "keys shared by a batch stride of 0");
}

void add_contents(CaseList& list) {
  for (const double spread : {30.0, 300.0}) {
    AttentionCase c;
    c.logit_spread = spread;
    c.quick = spread == 300;
    list.add_dtypes(c, fmt::format("logits with spread {}", spread));
    c.sinks = true;
    c.quick = false;
    list.add_dtypes(c, fmt::format("logits with spread {}, sinks", spread));
    c.seq_len_q = 1;
    c.seq_len_kv = 2000;
    list.add_dtypes(c, fmt::format("logits with spread {}, decode", spread));
  }
  for (const auto& [name, content] :
       {std::pair{"equal logits", Content::kEqualLogits}, {"constant values", Content::kConstantValue}}) {
    AttentionCase c;
    c.content = content;
    list.add_dtypes(c, name);
    c.seq_len_q = 1;
    c.seq_len_kv = 1500;
    list.add_dtypes(c, fmt::format("{}, decode", name));
  }
  for (const std::int64_t seq_len_q : {1, 37}) {
    AttentionCase c;
    c.seq_len_q = seq_len_q;
    c.content = Content::kNanInHiddenKeys;
    c.quick = seq_len_q == 37;
    const std::string lengths = fmt::format("{} queries", seq_len_q);
    c.boolean_mask = MaskRecipe{DType::kBool, true, false, false, 0.4, 1};
    list.add_dtypes(c, "NaN in keys that a boolean mask hides, " + lengths);
    c.boolean_mask.reset();
    c.additive_mask = MaskRecipe{DType::kF32, true, false, false, 0.4, 1};
    list.add_dtypes(c, "NaN in keys that an additive mask hides, " + lengths);
    c.additive_mask.reset();
    c.diagonal = DiagonalMask::sliding_window(4, 0);
    list.add_dtypes(c, "NaN in keys outside the window, " + lengths);
  }
  // Whatever shares the keys of a row out, what has no weight beside the others still counts.
  for (const bool paged : {false, true}) {
    AttentionCase c;
    c.seq_len_q = 1;
    c.seq_len_kv = 2000;
    c.head_dim_qk = c.head_dim_v = 128;
    c.content = Content::kNanInOneValue;
    c.logit_spread = 3000;
    if (paged) {
      c.kv_storage = KvStorage::kPaged;
      c.lens_kv = {2000, 130};
    }
    list.add_dtypes(c, fmt::format("NaN in a value that weighs nothing{}, decode", paged ? ", paged" : ""));
  }
  AttentionCase c;
  c.content = Content::kNanInLastKeys;
  c.diagonal = DiagonalMask::causal();
  c.quick = true;
  list.add_dtypes(c, "NaN in keys that some queries see, causal");
  c.seq_len_q = 140;
  c.seq_len_kv = 200;
  c.quick = false;
  list.add_dtypes(c, "NaN in keys that some queries see, causal, several tiles");
  c.seq_len_q = 37;
  c.seq_len_kv = 83;
  c.diagonal.reset();
  c.boolean_mask = MaskRecipe{DType::kBool, true, true, true, 0.8, 1};
  list.add_dtypes(c, "NaN in keys that some queries see, boolean mask");

  AttentionCase without_lse;
  without_lse.with_lse = false;
  list.add_dtypes(without_lse, "without lse");
  without_lse.seq_len_q = 1;
  without_lse.seq_len_kv = 2000;
  list.add_dtypes(without_lse, "without lse, decode");
}

/// Numbers that are hard on the way products are made, each compared with its own bound.
void add_wide_ranges(CaseList& list) {
  for (const char* dtype : {"f32", "bf16"}) {
    for (const int len_q : {1, 130}) {
      for (const auto& [name, numbers] : {std::pair{"values that span 2^60", "exponents=30 scale=1e-10"},
                                          {"values that span 2^16", "exponents=8 scale=0.001"},
                                          {"scores that span 2^70", "exponents=35 scale=0.0001"},
                                          {"values near the largest number", "content=largest_values"},
                                          {"infinite keys", "content=infinite_keys"},
                                          {"NaN in all keys", "content=nan_keys"}}) {
        list.add_random(
            fmt::format("dtype={} batch=1 len_q={} len_kv=150 heads=2 kv_heads=1 {}", dtype, len_q, numbers),
            fmt::format("{}, {} queries/{}", name, len_q, dtype));
      }
    }
  }
  // Weights of 2^-20 to 2^-60 are all that counts, of values alike or not.
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    for (const int len_q : {1, 130}) {
      for (const char* spreads : {"q_spread=1.5", "q_spread=4", "q_spread=3 exponents=12"}) {
        list.add_random(
            fmt::format("dtype={} batch=2 len_q={} len_kv=300 heads=2 kv_heads=1 dim_qk=64 dim_v=64 "
                        "content=heavy_zeros lse=1 {}",
                        dtype, len_q, spreads),
            fmt::format("heavy keys have no value, {}, {} queries/{}", spreads, len_q, dtype));
      }
    }
  }
  // Scores near 2^31, whose rounding alone would take weights of 2^-100, and values that are lost with such.
  list.add_random(
      "dtype=bf16 batch=1 len_q=139 len_kv=70 heads=1 kv_heads=1 dim_qk=96 dim_v=31 scale=2.9802322e-08 "
      "exponents=29 seed=228150597",
      "scores near 2^31, small values/bf16");
  // A row whose only score is so large that its maximum, rounded, is above it by more than exponents reach.
  list.add_random(
      "batch=1 len_q=14 len_kv=1 heads=1 kv_heads=1 dim_qk=88 dim_v=1 scale=9.094947e-13 k_spread=50 "
      "exponents=36 seed=306281855",
      "one score near 2^37, 14 queries/f32");
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    for (const int len_q : {1, 4, 130}) {
      list.add_random(
          fmt::format("dtype={} batch=2 len_q={} len_kv=300 heads=16 kv_heads=2 dim_qk=128 dim_v=128 "
                      "diagonal=0,0,bottom_right scale=1048576 q_spread=200 k_spread=200",
                      dtype, len_q),
          fmt::format("one score near 2^38, {} queries/{}", len_q, dtype));
    }
  }
  // Keys of 8 bits whose scores, of 2^40, differ by less than their rounding.
  for (const int len_q : {1, 5, 100}) {
    list.add_random(
        fmt::format("dtype=bf16 batch=1 len_q={} len_kv=1200 heads=8 kv_heads=1 dim_qk=16 dim_v=16 "
                    "kv_dtype=f8e4m3 q_spread=300 exponents=27",
                    len_q),
        fmt::format("keys of 8 bits, scores near 2^40, {} queries/bf16", len_q));
  }
  // Below 2^-14, what products of f16 take as 0 on gfx90a.
  for (const int len_q : {1, 130}) {
    list.add_random(
        fmt::format("dtype=f16 batch=1 len_q={} len_kv=150 heads=2 kv_heads=1 q_spread=8192 k_spread=3e-05 "
                    "v_spread=1.5e-05",
                    len_q),
        fmt::format("subnormal numbers, {} queries/f16", len_q));
  }
}

/// Problems whose batch-invariant bits depended on the rows beside: in kernels whose base seldom moves, and
/// in those that do rows again.
void add_invariant_problems(CaseList& list) {
  for (const auto& [name, text] :
       {std::pair{
            "one kv head, most keys masked/bf16",
            "dtype=bf16 batch=3 len_q=70 len_kv=130 heads=16 kv_heads=1 dim_qk=128 dim_v=80 storage=padded "
            "lens_kv=130,90,127 boolean=bool,bq,0.9,1 diagonal=all,0,bottom_right q_spread=30"},
        {"alibi, causal/f32",
         "dtype=f32 batch=2 len_q=100 len_kv=140 heads=3 kv_heads=3 dim_qk=176 dim_v=176 alibi=1 "
         "diagonal=all,0,bottom_right q_spread=20"},
        {"35 heads, a window from the top left/f32",
         "dtype=f32 batch=1 len_q=90 len_kv=120 heads=35 kv_heads=5 dim_qk=224 dim_v=68 "
         "diagonal=65,0,top_left "
         "q_spread=20"},
        {"NaN in values, causal/f16",
         "dtype=f16 batch=2 len_q=100 len_kv=160 heads=4 kv_heads=2 dim_qk=128 dim_v=128 "
         "content=nan_one_value "
         "diagonal=all,0,bottom_right"},
        // Keys of several segments, which GPUs take one by one.
        {"long keys, causal/f32",
         "dtype=f32 batch=3 len_q=70 len_kv=1700 heads=4 kv_heads=2 dim_qk=64 dim_v=64 storage=padded "
         "lens_kv=1700,512,513 diagonal=all,0,bottom_right lse=1 q_spread=10"},
        {"long keys, pages, sinks/bf16",
         "dtype=bf16 batch=3 len_q=5 len_kv=2100 heads=16 kv_heads=2 dim_qk=128 dim_v=128 storage=paged "
         "page_size=16 lens_kv=2100,511,1025 diagonal=all,0,bottom_right sinks=1 lse=1"},
        {"long keys, a window that leaves segments out/f16",
         "dtype=f16 batch=2 len_q=160 len_kv=2000 heads=4 kv_heads=4 dim_qk=128 dim_v=96 "
         "diagonal=600,0,bottom_right alibi=1 sinks=1"},
        {"long keys, most masked/bf16",
         "dtype=bf16 batch=2 len_q=40 len_kv=1600 heads=4 kv_heads=1 dim_qk=256 dim_v=256 "
         "boolean=bool,bq,0.99,1 softcap=20 q_spread=20 lse=1"},
        {"long keys, NaN in values, causal/bf16",
         "dtype=bf16 batch=2 len_q=100 len_kv=1300 heads=4 kv_heads=2 dim_qk=64 dim_v=64 "
         "content=nan_one_value diagonal=all,0,bottom_right"},
        {"one query, no keys in some sequences, additive mask/f16",
         "dtype=f16 batch=3 len_q=1 len_kv=113 heads=16 kv_heads=1 dim_qk=96 dim_v=96 storage=padded "
         "lens_kv=0,113,0 additive=bf16,bqk,1,2 diagonal=all,0,bottom_right lse=1"},
        // Enough for GPUs to take sequences of few queries apart.
        {"single queries among prompts, pages of 16/bf16",
         "dtype=bf16 batch=24 len_q=70 len_kv=2100 heads=16 kv_heads=2 dim_qk=128 dim_v=128 "
         "lens_q=1,1,1,70,1,2,1,1,0,1,1,8,1,1,9,1,1,1,1,40,1,1,1,1 storage=paged page_size=16 "
         "lens_kv=2100,900,1,70,64,700,65,128,9,300,33,1500,700,2,17,130,12,256,0,940,5,63,40,2099 "
         "diagonal=all,0,bottom_right lse=1"},
        {"one query, few columns, pages/f16",
         "dtype=f16 batch=3 len_q=1 len_kv=600 heads=16 kv_heads=1 dim_qk=5 dim_v=5 storage=padded "
         "lens_kv=1,600,0 page_size=64 lse=1"},
        // A few keys a segment, so that no segment's sum leaves fp32's range, but those of several do.
        {"long keys, values of one sign near the largest number, one query/f32",
         "dtype=f32 batch=2 len_q=1 len_kv=4000 heads=16 kv_heads=2 dim_qk=64 dim_v=64 "
         "boolean=bool,bq,0.998,1 content=constant_value v_spread=8.5e37 sinks=1 lse=1"},
        {"long keys, values of one sign near the largest number, one query/bf16",
         "dtype=bf16 batch=2 len_q=1 len_kv=4000 heads=16 kv_heads=2 dim_qk=128 dim_v=128 "
         "boolean=bool,bq,0.998,1 content=constant_value v_spread=8.5e37 lse=1"},
        {"long keys, values of one sign near the largest number/f32",
         "dtype=f32 batch=1 len_q=50 len_kv=3000 heads=2 kv_heads=1 dim_qk=40 dim_v=24 "
         "boolean=bool,bq,0.998,1 content=constant_value v_spread=8.5e37 lse=1"},
        {"long keys, values of one sign near the largest number/bf16",
         "dtype=bf16 batch=1 len_q=50 len_kv=3000 heads=2 kv_heads=1 dim_qk=320 dim_v=320 "
         "boolean=bool,bq,0.998,1 content=constant_value v_spread=8.5e37 lse=1"},
        // Infinite values of keys whose score is -inf: kernels that share a row's bits have to agree whether
        // it sees them.
        {"infinite keys, rows of odd strides/f16",
         "dtype=f16 batch=1 len_q=6 len_kv=6 kv_heads=1 dim_qk=80 dim_v=80 strides=odd scale=1 "
         "diagonal=all,0,top_left content=infinite_keys seed=1280331094"},
        {"infinite keys, a window/bf16",
         "dtype=bf16 batch=2 len_q=40 len_kv=1100 heads=4 kv_heads=2 dim_qk=128 dim_v=128 "
         "diagonal=6,0,bottom_right content=infinite_keys lse=1"},
        {"infinite keys, a window from the top left/f32",
         "dtype=f32 batch=2 len_q=20 len_kv=70 heads=4 kv_heads=2 dim_qk=64 dim_v=64 "
         "diagonal=6,0,top_left content=infinite_keys lse=1"},
        {"long keys, NaN in values, rows of odd strides/bf16",
         "dtype=bf16 batch=2 len_q=200 len_kv=700 heads=4 kv_heads=2 dim_qk=100 dim_v=65 strides=odd "
         "content=nan_one_value diagonal=all,0,bottom_right lse=1"},
        {"long keys, large heads/f16",
         "dtype=f16 batch=2 len_q=20 len_kv=1200 heads=4 kv_heads=2 dim_qk=320 dim_v=320 "
         "diagonal=all,0,bottom_right"}}) {
    list.add_random(fmt::format("{} invariant=1", text),
                    fmt::format("batch_invariant beside others, {}", name));
  }
}

std::vector<VerifyCase> make_cases() {
  CaseList list;
  add_head_dims(list);
  add_heads(list);
  add_lengths(list);
  add_narrow_keys(list);
  add_narrow_queries(list);
  add_diagonals(list);
  add_masks(list);
  add_score_terms(list);
  add_storage(list);
  add_shared_out(list);
  add_mixed_steps(list);
  add_strides(list);
  add_contents(list);
  add_long_prompt_cases(list);
  add_latent_attention_cases(list);
  add_modifier_cases(list);
  add_wide_ranges(list);
  add_invariant_problems(list);
  add_large_head_cases(list);
  add_decode_head_cases(list);
  std::vector<VerifyCase> cases = list.take();
  for (VerifyCase& c : attention_property_cases()) cases.push_back(std::move(c));
  return cases;
}

}  // namespace

std::span<const VerifyCase> attention_verify_cases() {
  static const std::vector<VerifyCase> cases = make_cases();
  return cases;
}

}  // namespace tessera
