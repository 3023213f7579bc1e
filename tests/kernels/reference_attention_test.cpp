// The judge itself, against identities that can be worked out by hand.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tessera/attention.h"

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A dense fp64 problem whose tensors it owns, filled with random numbers.
struct Dense {
  std::int64_t batch, len_q, len_kv;
  int heads, head_dim;
  std::vector<double> q, k, v, o;
  std::vector<float> lse;
  AttentionProblem problem;

  Dense(std::int64_t batch, std::int64_t len_q, std::int64_t len_kv, int heads, int head_dim)
      : batch(batch), len_q(len_q), len_kv(len_kv), heads(heads), head_dim(head_dim) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    const auto fill = [&](std::vector<double>& x, std::int64_t len) {
      x.resize(static_cast<std::size_t>(batch * len * heads * head_dim));
      for (double& e : x) e = normal(random);
    };
    fill(q, len_q);
    fill(k, len_kv);
    fill(v, len_kv);
    o.assign(q.size(), kNan);
    lse.assign(static_cast<std::size_t>(batch * len_q * heads), static_cast<float>(kNan));
    problem.batch = batch;
    problem.seq_len_q = len_q;
    problem.seq_len_kv = len_kv;
    problem.num_heads = problem.num_kv_heads = heads;
    problem.head_dim_qk = problem.head_dim_v = head_dim;
    constexpr auto kLayout = AttentionLayout::kBatchSeqHeads;
    problem.q = attention_input(kLayout, q.data(), DType::kF64, len_q, heads, head_dim);
    problem.k = attention_input(kLayout, k.data(), DType::kF64, len_kv, heads, head_dim);
    problem.v = attention_input(kLayout, v.data(), DType::kF64, len_kv, heads, head_dim);
    problem.o = attention_output(kLayout, o.data(), DType::kF64, len_q, heads, head_dim);
    problem.lse = lse_output(lse.data(), heads, len_q);
  }

  std::size_t row(std::int64_t b, std::int64_t t, int h, std::int64_t len) const {
    return static_cast<std::size_t>(((b * len + t) * heads + h) * head_dim);
  }
  void run() { attention_forward(problem, {.backend = "reference", .config = {}}); }
};

TEST(ReferenceAttention, OneKeyGivesItsValueAndItsScore) {
  Dense d(2, 3, 1, 2, 5);
  d.run();
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t i = 0; i < 3; ++i) {
      for (int h = 0; h < 2; ++h) {
        double score = 0;
        for (std::size_t x = 0; x < 5; ++x) {
          EXPECT_EQ(d.o[d.row(b, i, h, 3) + x], d.v[d.row(b, 0, h, 1) + x]);
          score += d.q[d.row(b, i, h, 3) + x] * d.k[d.row(b, 0, h, 1) + x];
        }
        EXPECT_EQ(d.lse[static_cast<std::size_t>((b * 2 + h) * 3 + i)],
                  static_cast<float>(score / std::sqrt(5.0)));
      }
    }
  }
}

TEST(ReferenceAttention, TwoKeysAreMixedByTheLogisticFunction) {
  Dense d(1, 4, 2, 1, 3);
  d.run();
  for (std::int64_t i = 0; i < 4; ++i) {
    double difference = 0;
    for (std::size_t x = 0; x < 3; ++x) {
      difference += d.q[d.row(0, i, 0, 4) + x] * (d.k[x] - d.k[3 + x]) / std::sqrt(3.0);
    }
    const double first = 1 / (1 + std::exp(-difference));
    for (std::size_t x = 0; x < 3; ++x) {
      EXPECT_NEAR(d.o[d.row(0, i, 0, 4) + x], first * d.v[x] + (1 - first) * d.v[3 + x], 1e-15);
    }
  }
}

TEST(ReferenceAttention, EqualScoresGiveTheMeanAndTheLogarithmOfTheCount) {
  Dense d(1, 1, 9, 1, 4);
  std::fill(d.q.begin(), d.q.end(), 0.0);
  d.run();
  for (std::size_t x = 0; x < 4; ++x) {
    double mean = 0;
    for (std::size_t j = 0; j < 9; ++j) mean += d.v[j * 4 + x] / 9;
    EXPECT_NEAR(d.o[x], mean, 1e-15);
  }
  EXPECT_FLOAT_EQ(d.lse[0], std::log(9.0f));
}

TEST(ReferenceAttention, AHugeScoreTakesAllWithoutOverflow) {
  Dense d(1, 1, 3, 1, 1);
  d.q = {1};
  d.k = {-1e300, 1e300, 0};
  d.run();
  EXPECT_EQ(d.o[0], d.v[1]);
}

TEST(ReferenceAttention, CausalCornersDiffer) {
  Dense d(1, 2, 3, 1, 1);
  std::fill(d.q.begin(), d.q.end(), 0.0);
  d.v = {3, 6, 9};
  d.problem.scores.diagonal = DiagonalMask::causal();
  d.run();
  EXPECT_DOUBLE_EQ(d.o[0], 4.5);
  EXPECT_DOUBLE_EQ(d.o[1], 6);
  d.problem.scores.diagonal = DiagonalMask::causal(DiagonalAlignment::kTopLeft);
  d.run();
  EXPECT_DOUBLE_EQ(d.o[0], 3);
  EXPECT_DOUBLE_EQ(d.o[1], 4.5);
}

TEST(ReferenceAttention, HiddenKeysContributeNothingEvenIfTheyAreNan) {
  Dense d(1, 2, 4, 1, 2);
  Dense clean = d;
  const std::vector<std::uint8_t> visible = {1, 0, 1, 1};
  const std::vector<float> additive = {0, 0, 0, -std::numeric_limits<float>::infinity()};
  for (Dense* e : {&d, &clean}) {
    e->problem.q.data = e->q.data();
    e->problem.k.data = e->k.data();
    e->problem.v.data = e->v.data();
    e->problem.o.data = e->o.data();
    e->problem.lse->data = e->lse.data();
    e->problem.scores.boolean_mask = ScoreMask{visible.data(), DType::kBool, 0, 0, 0, 1};
    e->problem.scores.additive_mask = ScoreMask{additive.data(), DType::kF32, 0, 0, 0, 1};
  }
  for (const std::size_t key : {1u, 3u}) d.k[key * 2] = d.v[key * 2 + 1] = kNan;
  d.run();
  clean.run();
  EXPECT_EQ(d.o, clean.o);
  EXPECT_EQ(d.lse, clean.lse);
}

TEST(ReferenceAttention, ARowWithoutKeysIsZeroEvenWithSinks) {
  Dense d(1, 3, 1, 1, 2);
  const float sink = 2;
  d.problem.scores.sinks = AttentionSinks{&sink};
  d.problem.scores.diagonal =
      DiagonalMask::causal();  // bottom-right: queries 0 and 1 come before the only key
  d.run();
  for (std::size_t x = 0; x < 4; ++x) EXPECT_EQ(d.o[x], 0.0);
  EXPECT_EQ(d.lse[0], -kInfinity);
  EXPECT_EQ(d.lse[1], -kInfinity);
  EXPECT_GT(d.lse[2], 2);
}

TEST(ReferenceAttention, ASinkOnlyShrinksTheOutput) {
  Dense d(1, 1, 5, 1, 3);
  d.run();
  const std::vector<double> without = d.o;
  const double lse = d.lse[0];
  const float sink = 0.5f;
  d.problem.scores.sinks = AttentionSinks{&sink};
  d.run();
  const double expected_lse = std::log(std::exp(lse) + std::exp(0.5));
  EXPECT_NEAR(d.lse[0], expected_lse, 1e-6);
  for (std::size_t x = 0; x < 3; ++x) {
    EXPECT_NEAR(d.o[x], without[x] * std::exp(lse - expected_lse), 1e-6);
  }
}

TEST(ReferenceAttention, SoftcapAndAlibiOnOneKeyShowInTheLse) {
  Dense d(1, 4, 1, 1, 1);
  d.q = {1, 2, 3, 4};
  d.k = {10};
  const float slope = 0.25f;
  d.problem.scores.softcap = 3.0f;
  d.problem.scores.alibi = AlibiBias{&slope};
  d.run();
  for (std::size_t i = 0; i < 4; ++i) {  // bottom-right: the key is at the last query's position
    const double capped = 3 * std::tanh(10 * d.q[i] / 3);
    EXPECT_FLOAT_EQ(d.lse[i], static_cast<float>(capped - 0.25 * static_cast<double>(3 - i)));
  }
}

TEST(ReferenceAttention, MergingTwoHalvesGivesTheWhole) {
  Dense whole(2, 3, 8, 2, 4);
  whole.run();
  std::vector<double> o[2];
  std::vector<float> lse[2];
  for (std::size_t half = 0; half < 2; ++half) {
    Dense part(2, 3, 8, 2, 4);
    part.problem.seq_len_kv = 4;
    part.problem.k.data = part.k.data() + half * 4 * 8;
    part.problem.v.data = part.v.data() + half * 4 * 8;
    part.run();
    o[half] = part.o;
    lse[half] = part.lse;
  }
  MergeStatesProblem merge;
  merge.batch = 2;
  merge.seq_len_q = 3;
  merge.num_heads = 2;
  merge.head_dim = 4;
  constexpr auto kLayout = AttentionLayout::kBatchSeqHeads;
  merge.o_a = attention_input(kLayout, o[0].data(), DType::kF64, 3, 2, 4);
  merge.o_b = attention_input(kLayout, o[1].data(), DType::kF64, 3, 2, 4);
  merge.o = attention_output(kLayout, o[0].data(), DType::kF64, 3, 2, 4);
  merge.lse_a = lse_output(lse[0].data(), 2, 3);
  merge.lse_b = lse_output(lse[1].data(), 2, 3);
  merge.lse = merge.lse_a;
  merge_states(merge, "reference");
  for (std::size_t n = 0; n < whole.o.size(); ++n) EXPECT_NEAR(o[0][n], whole.o[n], 1e-6);  // lse is fp32
  for (std::size_t n = 0; n < whole.lse.size(); ++n) EXPECT_NEAR(lse[0][n], whole.lse[n], 1e-6);
}

TEST(ReferenceAttention, MergingWithAnEmptySideIgnoresItsOutput) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<double> a = {1, 2}, b = {kNan, kNan}, o = {kNan, kNan};
  float lse_a[] = {0.5f, -inf}, lse_b[] = {-inf, -inf}, lse[] = {0, 0};
  MergeStatesProblem merge;
  merge.batch = 1;
  merge.seq_len_q = 2;
  merge.num_heads = merge.head_dim = 1;
  merge.o_a = {a.data(), DType::kF64, 2, 1, 1};
  merge.o_b = {b.data(), DType::kF64, 2, 1, 1};
  merge.o = {o.data(), DType::kF64, 2, 1, 1};
  merge.lse_a = lse_output(lse_a, 1, 2);
  merge.lse_b = lse_output(lse_b, 1, 2);
  merge.lse = lse_output(lse, 1, 2);
  merge_states(merge, "reference");
  EXPECT_EQ(o, (std::vector<double>{1, 0}));
  EXPECT_EQ(lse[0], 0.5f);
  EXPECT_EQ(lse[1], -inf);
}

}  // namespace
}  // namespace tessera
