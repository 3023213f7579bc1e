// Wrong arguments give an Error that names the argument, its value and what was expected.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

/// A valid problem of batch 2, 3 queries, 4 keys, 4/2 heads and head_dim 8, and storage for its variants.
struct Valid {
  // More than the variants' strides span.
  std::vector<float> q = std::vector<float>(4096), k = q, v = q, o = q;
  std::vector<float> lse = std::vector<float>(2 * 3 * 4), mask = std::vector<float>(2 * 4 * 3 * 4);
  std::vector<float> head_numbers = std::vector<float>(8);
  std::vector<std::int32_t> cu_seqlens_q = {0, 2, 5}, cu_seqlens_kv = {0, 4, 7}, seq_lens = {4, 3};
  std::vector<std::int32_t> block_table = {0, 1, 2, 3};
  AttentionProblem p;

  Valid() {
    p.batch = 2;
    p.seq_len_q = 3;
    p.seq_len_kv = 4;
    p.num_heads = 4;
    p.num_kv_heads = 2;
    p.head_dim_qk = p.head_dim_v = 8;
    constexpr auto kLayout = AttentionLayout::kBatchSeqHeads;
    p.q = attention_input(kLayout, q.data(), DType::kF32, 3, 4, 8);
    p.k = attention_input(kLayout, k.data(), DType::kF32, 4, 2, 8);
    p.v = attention_input(kLayout, v.data(), DType::kF32, 4, 2, 8);
    p.o = attention_output(kLayout, o.data(), DType::kF32, 3, 4, 8);
    p.lse = lse_output(lse.data(), 4, 3);
  }

  void use_ragged() {
    p.ragged_q = RaggedTokens{cu_seqlens_q.data(), 5};
    p.ragged_kv = RaggedTokens{cu_seqlens_kv.data(), 7};
    p.lse = LseOutput{lse.data(), 0, 5, 1};
  }
  void use_paged() { p.paged_kv = PagedKv{block_table.data(), seq_lens.data(), 2, 4, 2, 2}; }
  void use_narrow() {
    p.k.dtype = p.v.dtype = DType::kF8E4M3;
    p.kv_scales = KvScales{head_numbers.data(), head_numbers.data(), 2, 1};
  }
  void use_narrow_q() {
    use_narrow();
    p.q.dtype = DType::kF8E4M3;
    p.q_scales = QScales{head_numbers.data(), 2, 1};
  }
  void use_masks() {
    p.scores.additive_mask = ScoreMask{mask.data(), DType::kF32, 48, 12, 4, 1};
    p.scores.boolean_mask = ScoreMask{mask.data(), DType::kBool, 48, 12, 4, 1};
  }
};

/// A change that makes a problem invalid and what the message must contain.
struct Mistake {
  std::string name;
  std::function<void(Valid&)> make;
  std::vector<std::string> message;
};

std::vector<Mistake> mistakes() {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  return {
      {"BatchNegative", [](Valid& v) { v.p.batch = -1; }, {"batch is -1", "0 to"}},
      {"BatchHuge", [](Valid& v) { v.p.batch = kMax; }, {"batch is 9223372036854775807"}},
      {"SeqLenQNegative", [](Valid& v) { v.p.seq_len_q = -3; }, {"seq_len_q is -3"}},
      {"SeqLenQHuge", [](Valid& v) { v.p.seq_len_q = kMax; }, {"seq_len_q is 9223372036854775807"}},
      {"SeqLenKvNegative", [](Valid& v) { v.p.seq_len_kv = -1; }, {"seq_len_kv is -1"}},
      {"SeqLenKvHuge", [](Valid& v) { v.p.seq_len_kv = kMax / 2; }, {"seq_len_kv is 4611686018427387903"}},
      {"NoHeads", [](Valid& v) { v.p.num_heads = 0; }, {"num_heads is 0", "1 to"}},
      {"HeadsNegative", [](Valid& v) { v.p.num_heads = -4; }, {"num_heads is -4"}},
      {"NoKvHeads", [](Valid& v) { v.p.num_kv_heads = 0; }, {"num_kv_heads is 0"}},
      {"KvHeadsDoNotDivide", [](Valid& v) { v.p.num_kv_heads = 3; }, {"num_kv_heads is 3", "divisor", "4"}},
      {"MoreKvHeadsThanHeads", [](Valid& v) { v.p.num_kv_heads = 8; }, {"num_kv_heads is 8", "4"}},
      {"HeadDimQkZero", [](Valid& v) { v.p.head_dim_qk = 0; }, {"head_dim_qk is 0", "1 to 576"}},
      {"HeadDimQkTooLarge", [](Valid& v) { v.p.head_dim_qk = 577; }, {"head_dim_qk is 577", "1 to 576"}},
      {"HeadDimVZero", [](Valid& v) { v.p.head_dim_v = 0; }, {"head_dim_v is 0", "1 to 576"}},
      {"HeadDimVTooLarge", [](Valid& v) { v.p.head_dim_v = 1024; }, {"head_dim_v is 1024", "576"}},
      {"QDtype", [](Valid& v) { v.p.q.dtype = DType::kI32; }, {"q.dtype is i32", "f32, f16, bf16"}},
      {"KDtype", [](Valid& v) { v.p.k.dtype = DType::kF16; }, {"k.dtype is f16", "f32"}},
      {"VDtype", [](Valid& v) { v.p.v.dtype = DType::kBF16; }, {"v.dtype is bf16", "f32"}},
      {"KDtypeOfAnotherFormatOf8Bits",
       [](Valid& v) { v.p.k.dtype = v.p.v.dtype = DType::kF8E5M2; },
       {"k.dtype is f8e5m2", "f32", "or f8e4m3"}},
      {"OneNarrow", [](Valid& v) { v.p.k.dtype = DType::kF8E4M3; }, {"v.dtype is f32", "f8e4m3", "k.dtype"}},
      {"QNarrowAlone",
       [](Valid& v) { v.p.q.dtype = DType::kF8E4M3; },
       {"k.dtype is f32", "f8e4m3, as q.dtype is"}},
      {"QNarrowBesideOneNarrow",
       [](Valid& v) { v.p.q.dtype = v.p.k.dtype = DType::kF8E4M3; },
       {"v.dtype is f32", "f8e4m3", "k.dtype"}},
      {"AllNarrow",
       [](Valid& v) { v.use_narrow_q(), v.p.o.dtype = DType::kF8E4M3; },
       {"o.dtype is f8e4m3", "bf16, f16 or f32"}},
      {"NarrowQWithIntegerResults",
       [](Valid& v) { v.use_narrow_q(), v.p.o.dtype = DType::kI32; },
       {"o.dtype is i32", "bf16, f16 or f32"}},
      {"QOfAnotherFormatOf8Bits",
       [](Valid& v) { v.use_narrow(), v.p.q.dtype = DType::kF8E5M2; },
       {"q.dtype is f8e5m2", "or f8e4m3"}},
      {"QOtherThanOBesideNarrowKeys",
       [](Valid& v) { v.use_narrow(), v.p.q.dtype = DType::kBF16; },
       {"o.dtype is f32", "bf16, the same as q.dtype"}},
      {"ScalesOfWideQueries",
       [](Valid& v) {
         v.use_narrow();
         v.p.q_scales = QScales{v.head_numbers.data(), 0, 0};
       },
       {"q_scales is set although q is f32", "f8e4m3"}},
      {"QueryScaleStrideNegative",
       [](Valid& v) { v.use_narrow_q(), v.p.q_scales->batch_stride = -2; },
       {"q_scales.batch_stride is -2", "0 or more"}},
      {"QueryScaleStrideOverflows",
       [](Valid& v) { v.use_ragged(), v.use_narrow_q(), v.p.q_scales->batch_stride = kMax; },
       {"strides of q_scales", "64-bit"}},
      {"QueryScalesMisaligned",
       [](Valid& v) {
         v.use_narrow_q();
         v.p.q_scales->q =
             reinterpret_cast<const float*>(reinterpret_cast<const char*>(v.head_numbers.data()) + 2);
       },
       {"q_scales.q is 0x", "multiple of 4"}},
      {"ONarrow", [](Valid& v) { v.use_narrow(), v.p.o.dtype = DType::kF8E4M3; }, {"o.dtype is f8e4m3"}},
      {"ScalesOfWideKeys",
       [](Valid& v) {
         v.p.kv_scales = KvScales{v.head_numbers.data(), nullptr, 0, 0};
       },
       {"kv_scales is set although k and v are f32", "f8e4m3"}},
      {"ScaleStrideNegative",
       [](Valid& v) { v.use_narrow(), v.p.kv_scales->head_stride = -1; },
       {"kv_scales.head_stride is -1", "0 or more"}},
      {"ScaleStrideOverflows",
       [](Valid& v) { v.use_narrow(), v.p.kv_scales->batch_stride = kMax; },
       {"strides of kv_scales", "64-bit"}},
      {"ScalesMisaligned",
       [](Valid& v) {
         v.use_narrow();
         v.p.kv_scales->v =
             reinterpret_cast<const float*>(reinterpret_cast<const char*>(v.head_numbers.data()) + 1);
       },
       {"kv_scales.v is 0x", "multiple of 4"}},
      {"ODtype", [](Valid& v) { v.p.o.dtype = DType::kF64; }, {"o.dtype is f64", "f32"}},
      {"QNull", [](Valid& v) { v.p.q.data = nullptr; }, {"q.data is null", "2 x 3 x 4 x 8"}},
      {"KNull", [](Valid& v) { v.p.k.data = nullptr; }, {"k.data is null", "2 x 4 x 2 x 8"}},
      {"VNull", [](Valid& v) { v.p.v.data = nullptr; }, {"v.data is null", "2 x 4 x 2 x 8"}},
      {"ONull", [](Valid& v) { v.p.o.data = nullptr; }, {"o.data is null", "2 x 3 x 4 x 8"}},
      {"QStrideNegative", [](Valid& v) { v.p.q.seq_stride = -8; }, {"q.seq_stride is -8", "0 or more"}},
      {"KStrideNegative", [](Valid& v) { v.p.k.head_stride = -1; }, {"k.head_stride is -1", "0 or more"}},
      {"VStrideNegative", [](Valid& v) { v.p.v.batch_stride = -64; }, {"v.batch_stride is -64"}},
      {"QStrideOverflows", [](Valid& v) { v.p.q.batch_stride = kMax; }, {"strides of q", "64-bit"}},
      {"KStridesOverflowTogether",
       [](Valid& v) { v.p.k.batch_stride = v.p.k.seq_stride = v.p.k.head_stride = kMax / 8; },
       {"strides of k", "64-bit"}},
      {"OBroadcasts", [](Valid& v) { v.p.o.batch_stride = 0; }, {"o.batch_stride is 0", "share memory"}},
      {"ORowsOverlap", [](Valid& v) { v.p.o.head_stride = 7; }, {"o.head_stride is 7", "at least 8"}},
      {"LseNull", [](Valid& v) { v.p.lse->data = nullptr; }, {"lse.data is null", "2 x 4 x 3"}},
      {"LseStrideNegative", [](Valid& v) { v.p.lse->seq_stride = -1; }, {"lse.seq_stride is -1"}},
      {"LseOverlaps", [](Valid& v) { v.p.lse->head_stride = 2; }, {"lse.head_stride is 2", "at least 3"}},
      {"ScaleNan",
       [=](Valid& v) { v.p.scores.softmax_scale = nan; },
       {"scores.softmax_scale is nan", "finite"}},
      {"ScaleInfinite", [=](Valid& v) { v.p.scores.softmax_scale = inf; }, {"scores.softmax_scale is inf"}},
      {"SoftcapZero", [](Valid& v) { v.p.scores.softcap = 0.0f; }, {"scores.softcap is 0", "above 0"}},
      {"SoftcapNegative", [](Valid& v) { v.p.scores.softcap = -5.0f; }, {"scores.softcap is -5", "above 0"}},
      {"SoftcapNan", [=](Valid& v) { v.p.scores.softcap = nan; }, {"scores.softcap is nan"}},
      {"AlibiNull",
       [](Valid& v) { v.p.scores.alibi = AlibiBias{}; },
       {"scores.alibi.slopes is null", "num_heads"}},
      {"AlibiStride",
       [](Valid& v) {
         v.p.scores.alibi = AlibiBias{v.head_numbers.data(), 3};
       },
       {"scores.alibi.batch_stride is 3", "num_heads"}},
      {"SinksNull", [](Valid& v) { v.p.scores.sinks = AttentionSinks{}; }, {"scores.sinks.logits is null"}},
      {"WindowLeftNegative",
       [](Valid& v) { v.p.scores.diagonal = DiagonalMask::sliding_window(-1, 0); },
       {"scores.diagonal.window_left is -1", "0 or more"}},
      {"WindowRightNegative",
       [](Valid& v) { v.p.scores.diagonal = DiagonalMask::sliding_window(0, -7); },
       {"scores.diagonal.window_right is -7", "0 or more"}},
      {"AdditiveMaskDtype",
       [](Valid& v) { v.use_masks(), v.p.scores.additive_mask->dtype = DType::kBool; },
       {"scores.additive_mask.dtype is bool", "f32, f16, bf16"}},
      {"AdditiveMaskNull",
       [](Valid& v) { v.use_masks(), v.p.scores.additive_mask->data = nullptr; },
       {"scores.additive_mask.data is null"}},
      {"AdditiveMaskStride",
       [](Valid& v) { v.use_masks(), v.p.scores.additive_mask->q_stride = -4; },
       {"scores.additive_mask.q_stride is -4"}},
      {"BooleanMaskDtype",
       [](Valid& v) { v.use_masks(), v.p.scores.boolean_mask->dtype = DType::kF32; },
       {"scores.boolean_mask.dtype is f32", "bool or u8"}},
      {"BooleanMaskStrideOverflows",
       [](Valid& v) { v.use_masks(), v.p.scores.boolean_mask->kv_stride = kMax; },
       {"scores.boolean_mask", "64-bit"}},
      {"RaggedQNull",
       [](Valid& v) { v.use_ragged(), v.p.ragged_q->cu_seqlens = nullptr; },
       {"ragged_q.cu_seqlens is null", "batch + 1 = 3"}},
      {"RaggedQStart",
       [](Valid& v) { v.use_ragged(), v.cu_seqlens_q[0] = 1; },
       {"ragged_q.cu_seqlens[0] is 1", "0"}},
      {"RaggedQDecreases",
       [](Valid& v) {
         v.use_ragged(), v.cu_seqlens_q = {0, -1, 5}, v.use_ragged();
       },
       {"ragged_q.cu_seqlens[1] is -1"}},
      {"RaggedQTooLong",
       [](Valid& v) {
         v.cu_seqlens_q = {0, 4, 5}, v.use_ragged();
       },
       {"ragged_q.cu_seqlens[1] is 4", "seq_len_q"}},
      {"RaggedQTotal",
       [](Valid& v) { v.use_ragged(), v.p.ragged_q->total_tokens = 6; },
       {"ragged_q.total_tokens is 6", "5"}},
      {"RaggedKvDecreases",
       [](Valid& v) {
         v.cu_seqlens_kv = {0, 4, 3}, v.use_ragged(), v.p.ragged_kv->total_tokens = 3;
       },
       {"ragged_kv.cu_seqlens[2] is 3"}},
      {"RaggedKvTotalNegative",
       [](Valid& v) { v.use_ragged(), v.p.ragged_kv->total_tokens = -7; },
       {"ragged_kv.total_tokens is -7"}},
      {"PagedAndRagged",
       [](Valid& v) { v.use_ragged(), v.use_paged(); },
       {"more than one of ragged_kv, paged_kv and seq_lens_kv"}},
      {"PagedAndPadded",
       [](Valid& v) { v.use_paged(), v.p.seq_lens_kv = v.seq_lens.data(); },
       {"more than one of ragged_kv, paged_kv and seq_lens_kv"}},
      {"PageSizeZero",
       [](Valid& v) { v.use_paged(), v.p.paged_kv->page_size = 0; },
       {"paged_kv.page_size is 0"}},
      {"NumPagesNegative",
       [](Valid& v) { v.use_paged(), v.p.paged_kv->num_pages = -1; },
       {"paged_kv.num_pages is -1"}},
      {"MaxPagesNegative",
       [](Valid& v) { v.use_paged(), v.p.paged_kv->max_pages_per_seq = -2; },
       {"paged_kv.max_pages_per_seq is -2"}},
      {"BlockTableStrideNegative",
       [](Valid& v) { v.use_paged(), v.p.paged_kv->block_table_stride = -1; },
       {"paged_kv.block_table_stride is -1"}},
      {"PagedLensNull",
       [](Valid& v) { v.use_paged(), v.p.paged_kv->seq_lens_kv = nullptr; },
       {"paged_kv.seq_lens_kv is null"}},
      {"BlockTableNull",
       [](Valid& v) { v.use_paged(), v.p.paged_kv->block_table = nullptr; },
       {"paged_kv.block_table is null"}},
      {"PagedLenTooLong",
       [](Valid& v) { v.seq_lens[1] = 5, v.use_paged(); },
       {"paged_kv.seq_lens_kv[1] is 5", "0 to 4"}},
      {"PagedLenNegative",
       [](Valid& v) { v.seq_lens[0] = -1, v.use_paged(); },
       {"paged_kv.seq_lens_kv[0] is -1"}},
      {"PageOutside",
       [](Valid& v) { v.block_table[3] = 4, v.use_paged(); },
       {"paged_kv.block_table[1][1] is 4", "0 to 3"}},
      {"PageNegative",
       [](Valid& v) { v.block_table[0] = -1, v.use_paged(); },
       {"paged_kv.block_table[0][0] is -1"}},
      {"PaddedLenTooLong",
       [](Valid& v) { v.seq_lens[0] = 9, v.p.seq_lens_kv = v.seq_lens.data(); },
       {"seq_lens_kv[0] is 9", "0 to 4"}},
      {"PaddedLenNegative",
       [](Valid& v) { v.seq_lens[1] = -2, v.p.seq_lens_kv = v.seq_lens.data(); },
       {"seq_lens_kv[1] is -2"}},
  };
}

class AttentionMistake : public testing::TestWithParam<Mistake> {};

TEST_P(AttentionMistake, IsNamedWithItsValueAndWhatWasExpected) {
  Valid valid;
  ASSERT_NO_THROW(validate(valid.p));
  GetParam().make(valid);
  const std::function<void()> entries[] = {
      [&] { validate(valid.p); },
      [&] { plan_attention(valid.p); },
      [&] { attention_forward(valid.p); },
      [&] { unsupported_reason("reference", valid.p); },
  };
  for (const auto& entry : entries) {
    try {
      entry();
      FAIL() << "expected an Error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      for (const std::string& part : GetParam().message) {
        EXPECT_NE(error.message().find(part), std::string::npos) << error.message() << "\nlacks: " << part;
      }
      EXPECT_NE(error.message().find("expected"), std::string::npos) << error.message();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionMistake, testing::ValuesIn(mistakes()),
                         [](const auto& info) { return info.param.name; });

TEST(AttentionValidate, AcceptsEveryStorageAndMask) {
  Valid dense, ragged, paged, padded;
  dense.use_masks();
  EXPECT_NO_THROW(validate(dense.p));
  ragged.use_ragged();
  ragged.use_masks();
  EXPECT_NO_THROW(validate(ragged.p));
  paged.use_paged();
  EXPECT_NO_THROW(validate(paged.p));
  padded.p.seq_lens_kv = padded.seq_lens.data();
  EXPECT_NO_THROW(validate(padded.p));
}

TEST(AttentionValidate, AcceptsBroadcastInputsAndWideRows) {
  Valid v;
  v.p.k.batch_stride = v.p.v.batch_stride = v.p.q.head_stride = 0;
  v.p.o.seq_stride = 100;
  v.p.o.batch_stride = 1000;
  EXPECT_NO_THROW(validate(v.p));
}

TEST(AttentionValidate, AcceptsAnyStrideOfADimensionOfOne) {
  Valid valid;
  valid.p.batch = valid.p.seq_len_q = valid.p.seq_len_kv = 1;
  for (const std::int64_t stride : {std::int64_t{0}, kMax}) {
    valid.p.q.batch_stride = valid.p.k.batch_stride = valid.p.v.batch_stride = valid.p.o.batch_stride =
        stride;
    valid.p.q.seq_stride = valid.p.k.seq_stride = valid.p.v.seq_stride = valid.p.o.seq_stride = stride;
    EXPECT_NO_THROW(validate(valid.p));
  }
}

TEST(AttentionValidate, AcceptsAnyStrideBetweenTheSlopesOfOneSequence) {
  Valid v;
  v.p.batch = 1;
  v.p.scores.alibi = AlibiBias{v.head_numbers.data(), 1};
  EXPECT_NO_THROW(validate(v.p));
}

TEST(AttentionValidate, NullIsFineWhereThereIsNothing) {
  Valid v;
  v.p.batch = 0;
  v.p.q.data = v.p.k.data = v.p.v.data = nullptr;
  v.p.o.data = nullptr;
  v.p.lse->data = nullptr;
  EXPECT_NO_THROW(validate(v.p));
  Valid no_keys;
  no_keys.p.seq_len_kv = 0;
  no_keys.p.k.data = no_keys.p.v.data = nullptr;
  EXPECT_NO_THROW(validate(no_keys.p));
}

TEST(AttentionValidate, EntriesPastASequencesEndAreNotLookedAt) {
  Valid v;
  v.seq_lens = {2, 0};
  v.block_table = {3, -99, 1 << 30, -1};
  v.use_paged();
  EXPECT_NO_THROW(validate(v.p));
}

TEST(AttentionValidate, LeavesArraysOfOtherDevicesAlone) {
  Valid v;
  v.p.device = {DeviceKind::kCuda, 0};
  v.use_ragged();
  v.p.ragged_q->cu_seqlens = v.p.ragged_kv->cu_seqlens =
      reinterpret_cast<const std::int32_t*>(8);  // not readable
  EXPECT_NO_THROW(validate(v.p));
}

// ---- merge_states

struct ValidMerge {
  std::vector<float> data = std::vector<float>(2 * 3 * 4 * 8), lse = std::vector<float>(2 * 3 * 4);
  MergeStatesProblem p;

  ValidMerge() {
    p.batch = 2;
    p.seq_len_q = 3;
    p.num_heads = 4;
    p.head_dim = 8;
    constexpr auto kLayout = AttentionLayout::kBatchSeqHeads;
    p.o_a = p.o_b = attention_input(kLayout, data.data(), DType::kF32, 3, 4, 8);
    p.o = attention_output(kLayout, data.data(), DType::kF32, 3, 4, 8);
    p.lse_a = p.lse_b = lse_output(lse.data(), 4, 3);
    p.lse = p.lse_a;
  }
};

struct MergeMistake {
  std::string name;
  std::function<void(MergeStatesProblem&)> make;
  std::vector<std::string> message;
};

class MergeStatesMistake : public testing::TestWithParam<MergeMistake> {};

TEST_P(MergeStatesMistake, IsNamedWithItsValueAndWhatWasExpected) {
  ValidMerge valid;
  ASSERT_NO_THROW(validate(valid.p));
  GetParam().make(valid.p);
  try {
    merge_states(valid.p, "reference");
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    for (const std::string& part : GetParam().message) {
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message() << "\nlacks: " << part;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MergeStatesMistake,
    testing::Values(
        MergeMistake{"Batch", [](auto& p) { p.batch = -1; }, {"batch is -1", "expected"}},
        MergeMistake{"SeqLenQ", [](auto& p) { p.seq_len_q = -2; }, {"seq_len_q is -2"}},
        MergeMistake{"NumHeads", [](auto& p) { p.num_heads = 0; }, {"num_heads is 0"}},
        MergeMistake{"HeadDim", [](auto& p) { p.head_dim = 600; }, {"head_dim is 600", "1 to 576"}},
        MergeMistake{
            "Dtype", [](auto& p) { p.o_a.dtype = DType::kU8; }, {"o_a.dtype is u8", "f32, f16, bf16"}},
        MergeMistake{"DtypeOfB", [](auto& p) { p.o_b.dtype = DType::kF16; }, {"o_b.dtype is f16", "f32"}},
        MergeMistake{"DtypeOfO", [](auto& p) { p.o.dtype = DType::kF16; }, {"o.dtype is f16", "f32"}},
        MergeMistake{"NullA", [](auto& p) { p.o_a.data = nullptr; }, {"o_a.data is null"}},
        MergeMistake{"NullB", [](auto& p) { p.o_b.data = nullptr; }, {"o_b.data is null"}},
        MergeMistake{"NullO", [](auto& p) { p.o.data = nullptr; }, {"o.data is null"}},
        MergeMistake{"NullLseA", [](auto& p) { p.lse_a.data = nullptr; }, {"lse_a.data is null"}},
        MergeMistake{"NullLseB", [](auto& p) { p.lse_b.data = nullptr; }, {"lse_b.data is null"}},
        MergeMistake{"NullLse", [](auto& p) { p.lse->data = nullptr; }, {"lse.data is null"}},
        MergeMistake{"Stride", [](auto& p) { p.o_a.seq_stride = -1; }, {"o_a.seq_stride is -1"}},
        MergeMistake{"Overlap", [](auto& p) { p.o.seq_stride = 1; }, {"o.seq_stride is 1", "at least"}},
        MergeMistake{"BesideA",
                     [](auto& p) { p.o.data = static_cast<float*>(p.o.data) + 8; },
                     {"o.data is", "expected memory that o_a", "or o_a's with its strides"}},
        MergeMistake{"OtherStrides",
                     [](auto& p) {
                       p.o.seq_stride = 8;
                       p.o.head_stride = 3 * 8;
                     },
                     {"o.data is", "expected memory that o_a"}},
        MergeMistake{"LseBesideA",
                     [](auto& p) { ++p.lse->data; },
                     {"lse.data is", "expected memory that lse_a", "or lse_a's with its strides"}}),
    [](const auto& info) { return info.param.name; });

TEST(MergeStates, TakesTheMemoryOfEitherPartOrItsOwn) {
  const ValidMerge in_place;
  ValidMerge apart, between;
  std::vector<float> other(in_place.data.size()), other_lse(in_place.lse.size());
  apart.p.o_b.data = other.data();
  apart.p.lse_b.data = other_lse.data();
  EXPECT_NO_THROW(validate(apart.p));  // where part a is
  apart.p.o.data = other.data();
  apart.p.lse->data = other_lse.data();
  EXPECT_NO_THROW(validate(apart.p));  // where part b is
  // Rows of one buffer in turn.
  std::vector<float> rows(2 * in_place.data.size()), numbers(2 * in_place.lse.size());
  for (AttentionInput* part : {&between.p.o_a, &between.p.o_b}) {
    *part = {rows.data(), DType::kF32, 2 * 96, 2 * 32, 2 * 8};
  }
  between.p.o = {rows.data() + 8, DType::kF32, 2 * 96, 2 * 32, 2 * 8};
  between.p.lse_a = between.p.lse_b = {numbers.data(), 2 * 12, 2 * 3, 2};
  between.p.lse = LseOutput{numbers.data() + 1, 2 * 12, 2 * 3, 2};
  EXPECT_NO_THROW(validate(between.p));
}

// ---- Layouts

TEST(AttentionLayouts, HaveTheStridesOfTheirNames) {
  float x = 0;
  const AttentionInput seq_first = attention_input(AttentionLayout::kBatchSeqHeads, &x, DType::kF16, 7, 3, 5);
  EXPECT_EQ(seq_first.data, &x);
  EXPECT_EQ(seq_first.dtype, DType::kF16);
  EXPECT_EQ(seq_first.batch_stride, 7 * 3 * 5);
  EXPECT_EQ(seq_first.seq_stride, 3 * 5);
  EXPECT_EQ(seq_first.head_stride, 5);
  const AttentionInput heads_first =
      attention_input(AttentionLayout::kBatchHeadsSeq, &x, DType::kF32, 7, 3, 5);
  EXPECT_EQ(heads_first.batch_stride, 7 * 3 * 5);
  EXPECT_EQ(heads_first.seq_stride, 5);
  EXPECT_EQ(heads_first.head_stride, 7 * 5);
  const AttentionOutput packed =
      attention_output(AttentionLayout::kBatchSeqPacked, &x, DType::kF32, 7, 3, 5, 45);
  EXPECT_EQ(packed.batch_stride, 7 * 45);
  EXPECT_EQ(packed.seq_stride, 45);
  EXPECT_EQ(packed.head_stride, 5);
  const LseOutput lse = lse_output(&x, 3, 7);
  EXPECT_EQ(lse.batch_stride, 21);
  EXPECT_EQ(lse.head_stride, 7);
  EXPECT_EQ(lse.seq_stride, 1);
}

TEST(AttentionLayouts, RefuseRowsThatCannotHoldTheHeads) {
  float x = 0;
  for (const auto& [layout, row] :
       {std::pair{AttentionLayout::kBatchSeqPacked, 14}, {AttentionLayout::kBatchHeadsSeq, 45}}) {
    try {
      attention_input(layout, &x, DType::kF32, 7, 3, 5, row);
      FAIL() << "expected an Error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(error.message().find("row_stride is " + std::to_string(row)), std::string::npos)
          << error.message();
    }
  }
}

}  // namespace
}  // namespace tessera
