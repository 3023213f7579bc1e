// The C interface does what the C++ API does, bit for bit, and refuses what is wrong without an exception.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tessera/attention.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

constexpr int kBatch = 2, kQueries = 5, kKeys = 12, kHeads = 4, kKvHeads = 2, kDim = 8;

std::vector<float> numbers(std::size_t count, unsigned seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1u << 23) - 1.0f;
  }
  return values;
}

/// The same call in both forms, each with outputs of its own.
struct Both {
  std::vector<float> q = numbers(kBatch * kQueries * kHeads * kDim, 1);
  std::vector<float> k = numbers(kBatch * kKeys * kKvHeads * kDim, 2);
  std::vector<float> v = numbers(kBatch * kKeys * kKvHeads * kDim, 3);
  std::vector<float> o = std::vector<float>(q.size(), -7), c_o = o;
  std::vector<float> lse = std::vector<float>(kBatch * kHeads * kQueries, -7), c_lse = lse;
  AttentionProblem problem;
  tessera_attention_problem c_problem{};

  Both() {
    const auto layout = AttentionLayout::kBatchSeqHeads;
    problem.batch = c_problem.batch = kBatch;
    problem.seq_len_q = c_problem.seq_len_q = kQueries;
    problem.seq_len_kv = c_problem.seq_len_kv = kKeys;
    problem.num_heads = c_problem.num_heads = kHeads;
    problem.num_kv_heads = c_problem.num_kv_heads = kKvHeads;
    problem.head_dim_qk = problem.head_dim_v = c_problem.head_dim_qk = c_problem.head_dim_v = kDim;
    problem.q = attention_input(layout, q.data(), DType::kF32, kQueries, kHeads, kDim);
    problem.k = attention_input(layout, k.data(), DType::kF32, kKeys, kKvHeads, kDim);
    problem.v = attention_input(layout, v.data(), DType::kF32, kKeys, kKvHeads, kDim);
    problem.o = attention_output(layout, o.data(), DType::kF32, kQueries, kHeads, kDim);
    problem.lse = lse_output(lse.data(), kHeads, kQueries);
    c_problem.struct_size = sizeof(c_problem);
    c_problem.q = {q.data(), TESSERA_F32, 0, kQueries * kHeads * kDim, kHeads * kDim, kDim};
    c_problem.k = {k.data(), TESSERA_F32, 0, kKeys * kKvHeads * kDim, kKvHeads * kDim, kDim};
    c_problem.v = {v.data(), TESSERA_F32, 0, kKeys * kKvHeads * kDim, kKvHeads * kDim, kDim};
    c_problem.o = {c_o.data(), TESSERA_F32, 0, kQueries * kHeads * kDim, kHeads * kDim, kDim};
    c_problem.lse = {c_lse.data(), kHeads * kQueries, kQueries, 1};
    c_problem.flags = TESSERA_HAS_LSE;
  }
  Both(const Both&) = delete;

  void expect_equal() {
    attention_forward(problem);
    ASSERT_EQ(tessera_attention_forward(&c_problem, nullptr, nullptr), TESSERA_OK) << tessera_last_error();
    EXPECT_EQ(std::memcmp(o.data(), c_o.data(), o.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(lse.data(), c_lse.data(), lse.size() * sizeof(float)), 0);
    EXPECT_NE(c_o.front(), -7);
  }

  void expect_error(tessera_status status, const std::string& part) const {
    EXPECT_EQ(tessera_attention_forward(&c_problem, nullptr, nullptr), status);
    EXPECT_NE(std::string(tessera_last_error()).find(part), std::string::npos) << tessera_last_error();
  }
};

TEST(CAttention, DenseIsThatOfCpp) { Both().expect_equal(); }

TEST(CAttention, EachScoreTermChangesTheResultAsInCpp) {
  const std::vector<float> plain = [] {
    Both both;
    both.expect_equal();
    return both.c_o;
  }();
  const std::vector<float> slopes = numbers(kBatch * kHeads, 5), sinks = numbers(kHeads, 6);
  const std::vector<float> bias = numbers(kHeads * kQueries * kKeys, 7);
  std::vector<unsigned char> visible(kBatch * kQueries * kKeys);
  for (std::size_t i = 0; i < visible.size(); ++i) visible[i] = i % 3 != 0;
  using Change = void (*)(Both&, const float*, const float*, const float*, const unsigned char*);
  const std::vector<Change> changes = {
      [](Both& b, auto...) {
        b.problem.scores.softmax_scale = b.c_problem.softmax_scale = 0.7f;
        b.c_problem.flags |= TESSERA_HAS_SOFTMAX_SCALE;
      },
      [](Both& b, auto...) {
        b.problem.scores.softcap = b.c_problem.softcap = 0.5f;
        b.c_problem.flags |= TESSERA_HAS_SOFTCAP;
      },
      [](Both& b, auto...) {
        b.problem.scores.diagonal = DiagonalMask::causal();
        b.c_problem.flags |= TESSERA_CAUSAL;
      },
      [](Both& b, auto...) {
        b.problem.scores.diagonal = DiagonalMask{3, 1, DiagonalAlignment::kTopLeft};
        b.c_problem.flags |= TESSERA_HAS_WINDOW_LEFT | TESSERA_HAS_WINDOW_RIGHT;
        b.c_problem.window_left = 3;
        b.c_problem.window_right = 1;
        b.c_problem.alignment = TESSERA_TOP_LEFT;
      },
      [](Both& b, const float* slopes, auto...) {
        b.problem.scores.alibi = AlibiBias{slopes, kHeads};
        b.c_problem.alibi_slopes = slopes;
        b.c_problem.alibi_batch_stride = kHeads;
        b.c_problem.flags |= TESSERA_HAS_ALIBI;
      },
      [](Both& b, const float* slopes, auto...) {
        b.problem.scores.alibi = AlibiBias{slopes, 0};
        b.problem.scores.diagonal = DiagonalMask{{}, {}, DiagonalAlignment::kTopLeft};
        b.c_problem.alibi_slopes = slopes;
        b.c_problem.alignment = TESSERA_TOP_LEFT;
        b.c_problem.flags |= TESSERA_HAS_ALIBI;
      },
      [](Both& b, const float*, const float* sinks, auto...) {
        b.problem.scores.sinks = AttentionSinks{sinks};
        b.c_problem.sink_logits = sinks;
        b.c_problem.flags |= TESSERA_HAS_SINKS;
      },
      [](Both& b, const float*, const float*, const float* bias, auto...) {
        b.problem.scores.additive_mask = ScoreMask{bias, DType::kF32, 0, kQueries * kKeys, kKeys, 1};
        b.c_problem.additive_mask = {bias, TESSERA_F32, 0, 0, kQueries * kKeys, kKeys, 1};
        b.c_problem.flags |= TESSERA_HAS_ADDITIVE_MASK;
      },
      [](Both& b, const float*, const float*, const float*, const unsigned char* visible) {
        b.problem.scores.boolean_mask = ScoreMask{visible, DType::kBool, kQueries * kKeys, 0, kKeys, 1};
        b.c_problem.boolean_mask = {visible, TESSERA_BOOL, 0, kQueries * kKeys, 0, kKeys, 1};
        b.c_problem.flags |= TESSERA_HAS_BOOLEAN_MASK;
      }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    Both both;
    changes[i](both, slopes.data(), sinks.data(), bias.data(), visible.data());
    both.expect_equal();
    EXPECT_NE(both.c_o, plain);
  }
}

/// A modifier in both forms.
struct Modified : Both {
  const std::vector<float> slopes = numbers(kHeads, 5);
  const std::vector<std::int32_t> documents = {0, 0, 1, 1, 1, 0, 2, 2, 1, 0, 0, 1};
  tessera_captured_tensor c_tensors[2] = {{"slope", slopes.data(), TESSERA_F32, 1, {kHeads}, {1}},
                                          {"doc", documents.data(), TESSERA_I32, 1, {kKeys}, {1}}};
  tessera_scalar c_scalars[2] = {{"gain", 1.5}, {"first", 2}};

  Modified() {
    ScoreModifier& m = problem.scores.modifier.emplace();
    m.score = "gain * score - slope[h] * float(abs(q_idx + shift - kv_idx))";
    m.visible = "doc[q_idx] == doc[kv_idx] || kv_idx < first";
    m.tensors = {{"slope", slopes.data(), DType::kF32, {kHeads}, {1}},
                 {"doc", documents.data(), DType::kI32, {kKeys}, {1}}};
    m.scalars = {{"gain", 1.5}, {"first", 2}};
    c_problem.flags |= TESSERA_HAS_MODIFIER;
    c_problem.modifier = {m.score.c_str(), m.visible.c_str(), c_tensors, 2, c_scalars, 2};
  }
};

TEST(CAttention, AModifierIsThatOfCpp) {
  Modified whole, top_left, visible_only;
  whole.expect_equal();
  top_left.problem.scores.diagonal = DiagonalMask{{}, {}, DiagonalAlignment::kTopLeft};
  top_left.c_problem.alignment = TESSERA_TOP_LEFT;
  top_left.expect_equal();
  EXPECT_NE(top_left.c_o, whole.c_o);
  visible_only.problem.scores.modifier->score.clear();
  visible_only.problem.scores.modifier->tensors.erase(visible_only.problem.scores.modifier->tensors.begin());
  visible_only.problem.scores.modifier->scalars.erase(visible_only.problem.scores.modifier->scalars.begin());
  visible_only.c_problem.modifier = {nullptr,
                                     "doc[q_idx] == doc[kv_idx] || kv_idx < first",
                                     visible_only.c_tensors + 1,
                                     1,
                                     visible_only.c_scalars + 1,
                                     1};
  visible_only.expect_equal();
  EXPECT_NE(visible_only.c_o, whole.c_o);
}

TEST(CAttention, APlanTakesOtherScalarsOfItsModifier) {
  Modified m;
  tessera_attention_plan* plan = nullptr;
  ASSERT_EQ(tessera_attention_plan_prepare(&m.c_problem, nullptr, &plan), TESSERA_OK) << tessera_last_error();
  tessera_attention_plan_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(tessera_attention_plan_get_info(plan, &info), TESSERA_OK);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> workspace(info.workspace_bytes / 64 + 1);
  const auto run = [&] {
    return tessera_attention_plan_run(plan, &m.c_problem, workspace.data(), info.workspace_bytes, nullptr);
  };
  m.c_scalars[0].value = m.problem.scores.modifier->scalars[0].second = -0.5;
  ASSERT_EQ(run(), TESSERA_OK) << tessera_last_error();
  attention_forward(m.problem);
  EXPECT_EQ(m.o, m.c_o);
  m.c_problem.modifier.visible = "doc[q_idx] == doc[kv_idx]";
  EXPECT_EQ(run(), TESSERA_INVALID_ARGUMENT);
  tessera_attention_plan_free(plan);
}

TEST(CAttention, ErrorsOfAModifierSayWhatAndWhere) {
  Modified m;
  m.c_problem.modifier.visible = "kv_idx <= q_id";
  m.expect_error(TESSERA_INVALID_ARGUMENT, "visible:1:11: unknown name 'q_id'");
  m.c_problem.modifier.visible = nullptr;
  m.c_tensors[0].rank = 5;
  m.expect_error(TESSERA_INVALID_ARGUMENT, "rank is 5; expected 0 to 4");
  m.c_tensors[0].rank = 1;
  m.c_tensors[0].name = nullptr;
  m.expect_error(TESSERA_INVALID_ARGUMENT, "problem.modifier.tensors[].name is null");
  m.c_tensors[0].name = "slope";
  m.c_problem.modifier.scalars = nullptr;
  m.expect_error(TESSERA_INVALID_ARGUMENT, "problem.modifier.scalars is null");
  // Nothing of arrays whose counts can't be right is read.
  m.c_problem.modifier.num_scalars = 17;
  m.expect_error(TESSERA_INVALID_ARGUMENT, "problem.modifier.num_scalars is 17; expected at most 16");
  m.c_problem.modifier.num_tensors = static_cast<std::size_t>(-1);
  m.expect_error(TESSERA_INVALID_ARGUMENT, "problem.modifier.num_tensors is 18446744073709551615");
}

TEST(CAttention, RaggedPagedAndPaddedSequencesAreThoseOfCpp) {
  const std::vector<std::int32_t> cu_q = {0, 3, 5}, cu_kv = {0, 4, 11}, lengths = {9, 6};
  const std::vector<std::int32_t> table = {4, 1, 2, 0, 3, 5};
  {
    Both both;
    both.problem.ragged_q = RaggedTokens{cu_q.data(), 5};
    both.problem.ragged_kv = RaggedTokens{cu_kv.data(), 11};
    both.problem.lse = LseOutput{both.lse.data(), 0, kQueries, 1};
    both.c_problem.ragged_q = {cu_q.data(), 5};
    both.c_problem.ragged_kv = {cu_kv.data(), 11};
    both.c_problem.flags |= TESSERA_HAS_RAGGED_Q | TESSERA_HAS_RAGGED_KV;
    both.expect_equal();
  }
  {
    Both both;  // 24 tokens in pages of 4
    both.problem.k.batch_stride = both.problem.v.batch_stride = 4 * kKvHeads * kDim;
    both.c_problem.k.batch_stride = both.c_problem.v.batch_stride = 4 * kKvHeads * kDim;
    both.problem.paged_kv = PagedKv{table.data(), lengths.data(), 3, 6, 3, 4};
    both.c_problem.paged_kv = {table.data(), lengths.data(), 3, 6, 3, 4};
    both.c_problem.flags |= TESSERA_HAS_PAGED_KV | TESSERA_BATCH_INVARIANT;
    both.problem.batch_invariant = true;
    both.expect_equal();
  }
  {
    Both both;
    both.problem.seq_lens_kv = both.c_problem.seq_lens_kv = lengths.data();
    both.c_problem.flags |= TESSERA_HAS_SEQ_LENS_KV | TESSERA_SETTLED_KV;
    both.problem.settled_kv = true;
    both.expect_equal();
  }
}

TEST(CAttention, ScalesOfKeysAndValuesOf8BitsAreThoseOfCpp) {
  // Bits of e4m3 numbers without NaN (0x7f, 0xff).
  std::vector<std::uint8_t> k(kBatch * kKeys * kKvHeads * kDim), v(k.size());
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = static_cast<std::uint8_t>(i * 37 % 56);
    v[i] = static_cast<std::uint8_t>(128 + i * 53 % 56);
  }
  const std::vector<float> k_scales = {0.5f, 2, 1, 0.25f}, v_scales = {3, 0.5f, 1, 2};
  std::vector<float> unscaled;
  for (const bool scaled : {false, true}) {
    Both both;
    both.problem.k.data = both.c_problem.k.data = k.data();
    both.problem.v.data = both.c_problem.v.data = v.data();
    both.problem.k.dtype = both.problem.v.dtype = DType::kF8E4M3;
    both.c_problem.k.dtype = both.c_problem.v.dtype = TESSERA_F8_E4M3;
    both.c_problem.kv_scales = {k_scales.data(), v_scales.data(), kKvHeads, 1};
    if (scaled) {
      both.problem.kv_scales = KvScales{k_scales.data(), v_scales.data(), kKvHeads, 1};
      both.c_problem.flags |= TESSERA_HAS_KV_SCALES;
    }
    both.expect_equal();
    if (scaled) {
      EXPECT_NE(both.c_o, unscaled);
    }
    unscaled = both.c_o;
  }
}

TEST(CAttention, QueriesOf8BitsAndTheirScalesAreThoseOfCpp) {
  std::vector<std::uint8_t> q(kBatch * kQueries * kHeads * kDim), k(kBatch * kKeys * kKvHeads * kDim),
      v(k.size());
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<std::uint8_t>(i * 29 % 60);
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = static_cast<std::uint8_t>(i * 37 % 56);
    v[i] = static_cast<std::uint8_t>(128 + i * 53 % 56);
  }
  const std::vector<float> scales = {0.5f, 2, 1, 0.25f};
  std::vector<float> unscaled;
  for (const bool scaled : {false, true}) {
    Both both;
    both.problem.q.data = both.c_problem.q.data = q.data();
    both.problem.k.data = both.c_problem.k.data = k.data();
    both.problem.v.data = both.c_problem.v.data = v.data();
    both.problem.q.dtype = both.problem.k.dtype = both.problem.v.dtype = DType::kF8E4M3;
    both.c_problem.q.dtype = both.c_problem.k.dtype = both.c_problem.v.dtype = TESSERA_F8_E4M3;
    both.c_problem.q_scales = {scales.data(), kKvHeads, 1};
    if (scaled) {
      both.problem.q_scales = QScales{scales.data(), kKvHeads, 1};
      both.c_problem.flags |= TESSERA_HAS_Q_SCALES;
    }
    both.expect_equal();
    if (scaled) {
      EXPECT_NE(both.c_o, unscaled);
    }
    unscaled = both.c_o;
  }
}

TEST(CAttention, WhatIsNotFlaggedDoesNotCount) {
  Both both;
  both.c_problem.softcap = -1;
  both.c_problem.window_left = -1;
  both.c_problem.additive_mask.dtype = 77;
  both.c_problem.ragged_q.total_tokens = -5;
  both.expect_equal();
}

TEST(CAttention, ErrorsAreCodesAndTexts) {
  {
    Both both;
    both.c_problem.num_kv_heads = 3;
    both.expect_error(TESSERA_INVALID_ARGUMENT, "num_kv_heads");
  }
  {
    Both both;
    both.c_problem.flags |= UINT64_C(1) << 60;
    both.expect_error(TESSERA_INVALID_ARGUMENT, "problem.flags has 0x1000000000000000");
  }
  {
    Both both;
    both.c_problem.device.kind = 9;
    both.expect_error(TESSERA_INVALID_ARGUMENT, "device.kind is 9");
  }
  {
    Both both;
    both.c_problem.v.reserved = 5;
    both.expect_error(TESSERA_INVALID_ARGUMENT, "problem.v.reserved is 5");
  }
  {
    Both both;
    both.c_problem.alignment = 2;
    both.expect_error(TESSERA_INVALID_ARGUMENT, "alignment is 2");
  }
  {
    Both both;
    both.c_problem.k.dtype = TESSERA_DTYPE_NONE;
    both.expect_error(TESSERA_INVALID_ARGUMENT, "problem.k.dtype is 0");
  }
  {
    Both both;
    both.c_problem.flags |= TESSERA_HAS_SEQ_LENS_KV;
    both.expect_error(TESSERA_INVALID_ARGUMENT, "seq_lens_kv is null");
  }
  const Both both;
  tessera_attention_options options{};
  options.struct_size = sizeof(options);
  options.backend = "no_such";
  EXPECT_EQ(tessera_attention_forward(&both.c_problem, &options, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tessera_last_error()).find("no_such"), std::string::npos);
  EXPECT_EQ(tessera_attention_forward(nullptr, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessera_last_error(), "problem is null; expected a struct");
  EXPECT_EQ(tessera_attention_plan_create(&both.c_problem, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessera_status_name(TESSERA_INVALID_ARGUMENT), "InvalidArgument");
  EXPECT_STREQ(tessera_status_name(99), "Unknown");
  std::thread([] { EXPECT_STREQ(tessera_last_error(), ""); }).join();
}

TEST(CAttention, ALargerStructRunsIfWhatIsUnknownIsZero) {
  const Both both;
  struct {
    tessera_attention_problem known;
    std::uint64_t newer;
  } larger{both.c_problem, 0};
  larger.known.struct_size = sizeof(larger);
  EXPECT_EQ(tessera_attention_forward(&larger.known, nullptr, nullptr), TESSERA_OK) << tessera_last_error();
  larger.newer = 1;
  EXPECT_EQ(tessera_attention_forward(&larger.known, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tessera_last_error()).find("beyond"), std::string::npos) << tessera_last_error();
}

TEST(CAttention, AStructSizeThatCannotBeIsAnError) {
  Both both;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{8}, sizeof(both.c_problem) - 4, ~std::size_t{0}}) {
    both.c_problem.struct_size = size;
    both.expect_error(TESSERA_INVALID_ARGUMENT, "problem.struct_size is " + std::to_string(size));
  }
}

TEST(CPlan, RunsAgainWithOtherPointersAndRefusesAnotherDescription) {
  Both both;
  tessera_attention_plan* plan = nullptr;
  ASSERT_EQ(tessera_attention_plan_prepare(&both.c_problem, nullptr, &plan), TESSERA_OK);
  tessera_attention_plan_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(tessera_attention_plan_get_info(plan, &info), TESSERA_OK);
  EXPECT_STREQ(info.backend, "cpu");
  EXPECT_GT(info.config.block_m, 0);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> workspace(info.workspace_bytes / 64 + 1);
  for (const std::vector<float>& q : {both.q, numbers(both.q.size(), 9)}) {
    both.c_problem.q.data = const_cast<float*>(q.data());
    ASSERT_EQ(
        tessera_attention_plan_run(plan, &both.c_problem, workspace.data(), info.workspace_bytes, nullptr),
        TESSERA_OK)
        << tessera_last_error();
    both.problem.q.data = q.data();
    attention_forward(both.problem);
    EXPECT_EQ(both.o, both.c_o);
  }
  std::ranges::fill(both.c_o, 0.0f);
  EXPECT_EQ(tessera_attention_plan_validate(plan, &both.c_problem), TESSERA_OK);
  EXPECT_EQ(tessera_attention_plan_validate(nullptr, &both.c_problem), TESSERA_INVALID_ARGUMENT);
  both.c_problem.flags |= TESSERA_CAUSAL;
  EXPECT_EQ(tessera_attention_plan_validate(plan, &both.c_problem), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(both.c_o, std::vector<float>(both.c_o.size())) << "nothing ran";
  EXPECT_EQ(
      tessera_attention_plan_run(plan, &both.c_problem, workspace.data(), info.workspace_bytes, nullptr),
      TESSERA_INVALID_ARGUMENT);
  tessera_attention_plan_free(plan);
  tessera_attention_plan_free(nullptr);
}

TEST(CPlan, ForcedValuesAreThoseOfCpp) {
  Both both;
  tessera_attention_options options{};
  options.struct_size = sizeof(options);
  options.config = {2, 32, 0, 0, 3};
  options.num_parts = 7;  // what no kernel here has leaves it alone
  AttentionOptions cpp_options;
  cpp_options.config = {2, 32, 0, 0, 3, 7};
  const AttentionPlan expected = plan_attention(both.problem, cpp_options);
  tessera_attention_plan* plan = nullptr;
  ASSERT_EQ(tessera_attention_plan_create(&both.c_problem, &options, &plan), TESSERA_OK)
      << tessera_last_error();
  tessera_attention_plan_info info{};
  info.struct_size = sizeof(info);
  info.num_parts = info.narrow_weights = -1;
  ASSERT_EQ(tessera_attention_plan_get_info(plan, &info), TESSERA_OK);
  const tessera_attention_config& c = info.config;
  const AttentionConfig got = {c.block_m, c.block_n, c.num_warps, c.num_stages, c.num_splits, info.num_parts};
  EXPECT_EQ(got, expected.config);
  EXPECT_EQ(info.config.block_m, 2);
  EXPECT_EQ(info.config.block_n, 32);
  EXPECT_EQ(info.config.num_splits, 3);
  EXPECT_EQ(info.num_parts, 0);
  EXPECT_EQ(info.narrow_weights, 0);
  tessera_attention_plan_free(plan);
}

TEST(CPlan, EachForcedValueIsCheckedByItsName) {
  const Both both;
  using Options = tessera_attention_options;
  const auto expect_error = [&both](void (*change)(Options&), const std::string& part) {
    Options options{};
    options.struct_size = sizeof(options);
    change(options);
    EXPECT_EQ(tessera_attention_forward(&both.c_problem, &options, nullptr), TESSERA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(tessera_last_error()).find(part), std::string::npos) << tessera_last_error();
  };
  expect_error([](Options& o) { o.config.block_m = -1; },
               "config.block_m is -1; expected 0, which is chosen");
  expect_error([](Options& o) { o.config.block_n = -2; }, "config.block_n is -2");
  expect_error([](Options& o) { o.config.num_warps = -3; }, "config.num_warps is -3");
  expect_error([](Options& o) { o.config.num_stages = -4; }, "config.num_stages is -4");
  expect_error([](Options& o) { o.config.num_splits = -5; }, "config.num_splits is -5");
  expect_error([](Options& o) { o.num_parts = -6; }, "config.num_parts is -6");
  expect_error([](Options& o) { o.reserved = 1; }, "options.reserved is 1; expected 0");
}

TEST(CExplain, SaysWhatCppSays) {
  Both both;
  tessera_attention_explanation* explanation = nullptr;
  ASSERT_EQ(tessera_attention_explain(&both.c_problem, nullptr, &explanation), TESSERA_OK);
  tessera_attention_explanation_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(tessera_attention_explanation_get_info(explanation, &info), TESSERA_OK);
  EXPECT_EQ(info.problem, to_string(both.problem));
  EXPECT_EQ(info.flops, attention_flops(both.problem));
  EXPECT_EQ(info.bytes, attention_bytes(both.problem));
  EXPECT_NE(std::string(info.text).find(info.problem), std::string::npos);
  EXPECT_GT(info.predicted_ms, 0);
  ASSERT_GT(info.num_rejected, 0u);
  EXPECT_NE(info.rejected[0].reason[0], '\0');
  tessera_attention_plan_info plan{};
  plan.struct_size = sizeof(plan);
  EXPECT_EQ(tessera_attention_plan_get_info(info.plan, &plan), TESSERA_OK);
  EXPECT_STREQ(plan.backend, "cpu");
  tessera_attention_explanation_free(explanation);
}

TEST(CExplain, SaysWhatTheModifierDoes) {
  Modified m;
  tessera_attention_explanation* explanation = nullptr;
  ASSERT_EQ(tessera_attention_explain(&m.c_problem, nullptr, &explanation), TESSERA_OK)
      << tessera_last_error();
  tessera_attention_explanation_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(tessera_attention_explanation_get_info(explanation, &info), TESSERA_OK);
  const std::vector<std::string> lines(info.modifier_lines, info.modifier_lines + info.num_modifier_lines);
  EXPECT_EQ(lines, explain(m.problem).modifier);
  EXPECT_GT(lines.size(), 2u);
  tessera_attention_explanation_free(explanation);
}

TEST(CProblem, TextAndCostAreThoseOfCpp) {
  Modified m;
  tessera_text text{};
  double flops = 0, bytes = 0;
  ASSERT_EQ(tessera_attention_describe(&m.c_problem, &text), TESSERA_OK) << tessera_last_error();
  ASSERT_EQ(tessera_attention_flops(&m.c_problem, &flops), TESSERA_OK);
  ASSERT_EQ(tessera_attention_bytes(&m.c_problem, &bytes), TESSERA_OK);
  EXPECT_EQ(text.data, to_string(m.problem));
  EXPECT_EQ(text.size_bytes, std::strlen(text.data));
  EXPECT_EQ(flops, attention_flops(m.problem));
  EXPECT_EQ(bytes, attention_bytes(m.problem));
  tessera_text_free(&text);
  EXPECT_EQ(text.data, nullptr);
  EXPECT_EQ(tessera_attention_describe(&m.c_problem, nullptr), TESSERA_INVALID_ARGUMENT);
  m.c_problem.num_heads = 0;
  EXPECT_EQ(tessera_attention_describe(&m.c_problem, &text), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_attention_flops(&m.c_problem, &flops), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_attention_bytes(&m.c_problem, &bytes), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tessera_last_error()).find("num_heads is 0"), std::string::npos);
}

TEST(CBackends, SayWhyTheyCannotRunAProblem) {
  Both both;
  tessera_text reason{};
  const auto ask = [&](const char* backend) {
    tessera_text_free(&reason);
    return tessera_attention_unsupported_reason(backend, &both.c_problem, &reason);
  };
  for (const char* backend : {"cpu", "unfused", "reference"}) {
    ASSERT_EQ(ask(backend), TESSERA_OK) << tessera_last_error();
    EXPECT_STREQ(reason.data, "") << backend;
  }
  both.problem.q.dtype = both.problem.k.dtype = both.problem.v.dtype = both.problem.o.dtype = DType::kF64;
  std::vector<double> q(both.q.size()), k(both.k.size()), v(k.size()), o(q.size());
  both.c_problem.q.data = q.data();
  both.c_problem.k.data = k.data();
  both.c_problem.v.data = v.data();
  both.c_problem.o.data = o.data();
  for (tessera_tensor* t : {&both.c_problem.q, &both.c_problem.k, &both.c_problem.v, &both.c_problem.o})
    t->dtype = TESSERA_F64;
  ASSERT_EQ(ask("cpu"), TESSERA_OK) << tessera_last_error();
  both.problem.q.data = q.data();
  both.problem.k.data = k.data();
  both.problem.v.data = v.data();
  both.problem.o.data = o.data();
  EXPECT_EQ(reason.data, unsupported_reason("cpu", both.problem));
  EXPECT_GT(reason.size_bytes, 0u);
  EXPECT_EQ(ask("no_such"), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tessera_last_error()).find("no_such"), std::string::npos);
  EXPECT_EQ(ask(nullptr), TESSERA_INVALID_ARGUMENT);
  both.c_problem.batch = -1;
  EXPECT_EQ(ask("cpu"), TESSERA_INVALID_ARGUMENT);
}

TEST(CBackends, AreThoseOfCpp) {
  const std::vector<BackendInfo> expected = attention_backends();
  std::size_t count = 0;
  ASSERT_EQ(tessera_num_backends(&count), TESSERA_OK);
  ASSERT_EQ(count, expected.size());
  for (std::size_t i = 0; i < count; ++i) {
    tessera_backend_info info{};
    info.struct_size = sizeof(info);
    ASSERT_EQ(tessera_get_backend_info(i, &info), TESSERA_OK);
    EXPECT_EQ(info.name, expected[i].name);
    EXPECT_EQ(info.unavailable_reason, expected[i].unavailable_reason);
    const bool is_cuda = std::string(info.name).starts_with("cuda");
    EXPECT_EQ(info.device_kind == TESSERA_CUDA, is_cuda);
  }
  tessera_backend_info info{};
  info.struct_size = sizeof(info);
  EXPECT_EQ(tessera_get_backend_info(count, &info), TESSERA_INVALID_ARGUMENT);
}

TEST(CMergeStates, HalvesOfTheKeysMakeTheWhole) {
  Both whole, first, second;
  whole.expect_equal();
  first.c_problem.seq_len_kv = second.c_problem.seq_len_kv = kKeys / 2;
  second.c_problem.k.data = second.k.data() + kKeys / 2 * kKvHeads * kDim;
  second.c_problem.v.data = second.v.data() + kKeys / 2 * kKvHeads * kDim;
  for (Both* half : {&first, &second}) {
    ASSERT_EQ(tessera_attention_forward(&half->c_problem, nullptr, nullptr), TESSERA_OK);
  }
  tessera_merge_states_problem merge{};
  merge.struct_size = sizeof(merge);
  merge.flags = TESSERA_HAS_LSE;
  merge.batch = kBatch;
  merge.seq_len_q = kQueries;
  merge.num_heads = kHeads;
  merge.head_dim = kDim;
  merge.o_a = first.c_problem.o;
  merge.o_b = merge.o = second.c_problem.o;
  merge.lse_a = first.c_problem.lse;
  merge.lse_b = merge.lse = second.c_problem.lse;
  ASSERT_EQ(tessera_merge_states(&merge, nullptr, nullptr), TESSERA_OK) << tessera_last_error();
  // Means of values below 1, and sums of 12 exponentials, in fp32.
  for (std::size_t i = 0; i < whole.o.size(); ++i) EXPECT_NEAR(second.c_o[i], whole.o[i], 2e-6);
  for (std::size_t i = 0; i < whole.lse.size(); ++i) EXPECT_NEAR(second.c_lse[i], whole.lse[i], 2e-6);
}

TEST(CVerify, CountsCasesAndEndsWhenAsked) {
  tessera_verify_options options{};
  options.struct_size = sizeof(options);
  options.backend = "cpu";
  options.filter = "softcap";
  options.quick = 1;
  std::vector<std::string> names;
  options.user_data = &names;
  options.on_result = [](void* user_data, const tessera_verify_result* result) -> std::int32_t {
    static_cast<std::vector<std::string>*>(user_data)->emplace_back(result->name);
    return 0;
  };
  tessera_verify_counts counts{};
  counts.struct_size = sizeof(counts);
  ASSERT_EQ(tessera_verify(&options, &counts), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(static_cast<std::size_t>(counts.passed + counts.unsupported), names.size());
  EXPECT_EQ(counts.failed, 0);
  EXPECT_GT(counts.passed, 0);
  options.on_result = [](void*, const tessera_verify_result*) -> std::int32_t { return 1; };
  EXPECT_EQ(tessera_verify(&options, &counts), TESSERA_CANCELLED);
  EXPECT_EQ(counts.passed + counts.unsupported, 1);
  options.filter = "no such case";
  EXPECT_EQ(tessera_verify(&options, &counts), TESSERA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tessera
