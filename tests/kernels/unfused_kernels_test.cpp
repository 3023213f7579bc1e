// Each kernel of the classic pipeline by itself, against its equation in fp64.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "backends/unfused/attention.h"
#include "backends/unfused/kernels.h"
#include "core/element.h"

namespace tessera::unfused {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kFence = 1234.5f;
constexpr double kU = 0x1p-24;  // unit round-off of fp32

std::vector<float> random_floats(std::int64_t n, unsigned seed, float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& e : x) e = normal(random);
  return x;
}

/// A score tile with rows wider than it is; what lies beyond its columns must stay as it is.
struct Tile {
  std::int64_t rows, cols, stride;
  std::vector<float> data;

  Tile(std::int64_t rows, std::int64_t cols, float spread = 3)
      : rows(rows), cols(cols), stride(cols + 5), data(static_cast<std::size_t>(rows * stride), kFence) {
    const std::vector<float> x = random_floats(rows * cols, 11, spread);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) at(i, j) = x[static_cast<std::size_t>(i * cols + j)];
    }
  }
  float& at(std::int64_t i, std::int64_t j) { return data[static_cast<std::size_t>(i * stride + j)]; }
  ScoreTile view(std::int64_t first_query = 0) { return {data.data(), rows, cols, stride, first_query}; }

  /// Compares each score with f(old score, i, j) to `relative` of its size and looks at the fences.
  template <class F>
  void expect(const Tile& before, double relative, F&& f) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < stride; ++j) {
        const float old = const_cast<Tile&>(before).at(i, j);
        if (j >= cols) {
          EXPECT_EQ(at(i, j), kFence) << i << ", " << j;
          continue;
        }
        const double expected = f(static_cast<double>(old), i, j);
        if (std::isinf(expected)) {
          EXPECT_EQ(at(i, j), expected) << i << ", " << j;
        } else {
          EXPECT_NEAR(at(i, j), expected, relative * (std::abs(expected) + std::abs(old))) << i << ", " << j;
        }
      }
    }
  }
};

class UnfusedProducts : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(UnfusedProducts, MatchSums) {
  const auto [rows, cols, head_dim] = GetParam();
  const std::vector<float> q = random_floats(rows * head_dim, 1), k = random_floats(cols * head_dim, 2);
  Tile scores(rows, cols);
  std::fill(scores.data.begin(), scores.data.end(), kNan);  // old content must not leak in
  multiply_q_k(q.data(), k.data(), head_dim, scores.view());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t d = 0; d < head_dim; ++d) {
        const double term = static_cast<double>(q[static_cast<std::size_t>(i * head_dim + d)]) *
                            k[static_cast<std::size_t>(j * head_dim + d)];
        sum += term;
        magnitude += std::abs(term);
      }
      EXPECT_NEAR(scores.at(i, j), sum, head_dim * kU * magnitude);
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) EXPECT_TRUE(std::isnan(scores.at(i, cols)));

  Tile weights(rows, cols);
  const std::vector<float> v = random_floats(cols * head_dim, 3);
  for (const auto multiply : {multiply_p_v, multiply_p_v_of_visible}) {
    std::vector<float> o(static_cast<std::size_t>(rows * head_dim), kNan);
    multiply(weights.view(), v.data(), head_dim, o.data());
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t d = 0; d < head_dim; ++d) {
        double sum = 0, magnitude = 0;
        for (std::int64_t j = 0; j < cols; ++j) {
          const double term =
              static_cast<double>(weights.at(i, j)) * v[static_cast<std::size_t>(j * head_dim + d)];
          sum += term;
          magnitude += std::abs(term);
        }
        EXPECT_NEAR(o[static_cast<std::size_t>(i * head_dim + d)], sum, cols * kU * magnitude);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, UnfusedProducts,
                         testing::Values(std::tuple{1, 1, 1}, std::tuple{1, 300, 64}, std::tuple{7, 5, 3},
                                         std::tuple{128, 65, 80}, std::tuple{33, 257, 512}));

TEST(UnfusedKernels, AProductWithoutKeysIsZero) {
  Tile weights(3, 0);
  std::vector<float> o(6, kNan);
  multiply_p_v(weights.view(), nullptr, 2, o.data());
  EXPECT_EQ(o, std::vector<float>(6, 0.0f));
}

TEST(UnfusedKernels, AZeroWeightKeepsNanOut) {
  Tile weights(2, 2);
  weights.at(0, 0) = 0.5f, weights.at(0, 1) = 0;
  weights.at(1, 0) = 0, weights.at(1, 1) = 1;
  const std::vector<float> v = {4, kNan};
  std::vector<float> o(2);
  multiply_p_v_of_visible(weights.view(), v.data(), 1, o.data());
  EXPECT_EQ(o[0], 2);
  EXPECT_TRUE(std::isnan(o[1]));
}

TEST(UnfusedKernels, ScaleMultiplies) {
  Tile scores(4, 19);
  const Tile before = scores;
  scale(scores.view(), 0.3f);
  scores.expect(before, kU, [](double s, std::int64_t, std::int64_t) { return s * double{0.3f}; });
}

TEST(UnfusedKernels, SoftcapBendsTowardsTheCap) {
  Tile scores(4, 19, 50);
  const Tile before = scores;
  apply_softcap(scores.view(), 20.0f);
  scores.expect(before, 4 * kU, [](double s, std::int64_t, std::int64_t) { return 20 * std::tanh(s / 20); });
}

TEST(UnfusedKernels, AlibiGrowsWithTheDistance) {
  Tile scores(4, 19);
  const Tile before = scores;
  add_alibi(scores.view(2), 0.125f, 7);
  scores.expect(before, kU, [](double s, std::int64_t i, std::int64_t j) {
    return s - 0.125 * std::abs(static_cast<double>(2 + i + 7 - j));
  });
}

template <class T>
void expect_added_mask(DType dtype) {
  std::vector<T> mask(40);
  const std::vector<float> values = random_floats(40, 5);
  for (std::size_t n = 0; n < mask.size(); ++n) mask[n] = T(n % 7 == 3 ? -kInfinity : values[n]);
  Tile scores(4, 9);
  for (std::int64_t i = 0; i < 4; ++i)
    scores.at(i, 3) = kNan;  // column 3 of row 0 is hidden, whatever it held
  for (std::int64_t i = 1; i < 4; ++i) scores.at(i, 3) = 1;
  const Tile before = scores;
  add_mask(scores.view(), {mask.data(), dtype, 10, 1});
  scores.expect(before, kU, [&](double s, std::int64_t i, std::int64_t j) {
    const double bias = static_cast<double>(mask[static_cast<std::size_t>(i * 10 + j)]);
    return std::isinf(bias) ? bias : s + bias;
  });
}

TEST(UnfusedKernels, AdditiveMasksOfEveryType) {
  expect_added_mask<float>(DType::kF32);
  expect_added_mask<Half>(DType::kF16);
  expect_added_mask<BFloat16>(DType::kBF16);
}

TEST(UnfusedKernels, AMaskMayBroadcastQueriesAndStepOverKeys) {
  const std::vector<std::uint8_t> visible = {1, 9, 0, 9, 2, 9};
  Tile scores(3, 3);
  const Tile before = scores;
  hide_masked(scores.view(), {visible.data(), DType::kBool, 0, 2});
  scores.expect(before, 0, [](double s, std::int64_t, std::int64_t j) {
    return j == 1 ? -std::numeric_limits<double>::infinity() : s;
  });
}

TEST(UnfusedKernels, OnlyTheBandAroundTheDiagonalStays) {
  for (const std::int64_t left : {0, 2, 100}) {
    for (const std::int64_t right : {0, 3, 100}) {
      for (const std::int64_t shift : {-20, -2, 0, 4, 30}) {
        Tile scores(5, 11);
        const Tile before = scores;
        hide_off_diagonal(scores.view(3), {.shift = shift, .left = left, .right = right, .len_kv = 11});
        scores.expect(before, 0, [&](double s, std::int64_t i, std::int64_t j) {
          const std::int64_t middle = 3 + i + shift;
          return j >= middle - left && j <= middle + right ? s : -std::numeric_limits<double>::infinity();
        });
      }
    }
  }
}

TEST(UnfusedKernels, SoftmaxRowsSumToOneAndGiveTheLogSumExp) {
  for (const std::int64_t cols : {1, 15, 16, 17, 63, 130, 1000}) {
    for (const std::optional<float> sink : {std::optional<float>{}, std::optional<float>{1.5f}}) {
      Tile scores(3, cols, 5);
      if (cols > 1) scores.at(1, cols / 2) = -kInfinity;
      const Tile before = scores;
      std::vector<float> lse(6, kFence);
      softmax_rows(scores.view(), sink, lse.data(), 2);
      for (std::int64_t i = 0; i < 3; ++i) {
        double sum = sink ? std::exp(static_cast<double>(*sink)) : 0;
        for (std::int64_t j = 0; j < cols; ++j) {
          sum += std::exp(static_cast<double>(const_cast<Tile&>(before).at(i, j)));
        }
        // The difference from the largest score (at most 2 * 25 here) is rounded once, then exp, sum,
        // division.
        const double relative = (50 + 8 + std::sqrt(static_cast<double>(cols))) * kU;
        for (std::int64_t j = 0; j < cols; ++j) {
          const double expected = std::exp(static_cast<double>(const_cast<Tile&>(before).at(i, j))) / sum;
          EXPECT_NEAR(scores.at(i, j), expected, relative * expected);
        }
        EXPECT_EQ(scores.at(i, cols), kFence);
        EXPECT_NEAR(lse[static_cast<std::size_t>(2 * i)], std::log(sum),
                    8 * kU * (1 + std::abs(std::log(sum))));
        EXPECT_EQ(lse[static_cast<std::size_t>(2 * i + 1)], kFence);
      }
    }
  }
}

TEST(UnfusedKernels, SoftmaxOfHiddenRowsIsZeroAndOfNanIsNan) {
  Tile scores(3, 40);
  for (std::int64_t j = 0; j < 40; ++j) scores.at(0, j) = -kInfinity;
  scores.at(1, 2) = kNan;
  scores.at(2, 39) = kNan;
  std::vector<float> lse(3);
  softmax_rows(scores.view(), 2.0f, lse.data(), 1);
  for (std::int64_t j = 0; j < 40; ++j) {
    EXPECT_EQ(scores.at(0, j), 0);
    EXPECT_TRUE(std::isnan(scores.at(1, j)));
    EXPECT_TRUE(std::isnan(scores.at(2, j)));
  }
  EXPECT_EQ(lse[0], -kInfinity);
  EXPECT_TRUE(std::isnan(lse[1]) && std::isnan(lse[2]));
}

TEST(UnfusedKernels, RowsConvertBothWays) {
  const std::vector<float> source = random_floats(37, 9);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<std::byte> stored(37 * 4);
    std::vector<float> back(37);
    convert_row_from_f32(source.data(), 37, dtype, stored.data());
    EXPECT_TRUE(convert_row_to_f32(stored.data(), dtype, 37, back.data()));
    for (std::size_t n = 0; n < 37; ++n) {
      EXPECT_LE(std::abs(back[n] - source[n]), unit_roundoff(dtype) * std::abs(source[n]));
    }
  }
  const std::vector<float> bad = {1, kNan, 2}, infinite = {1, -kInfinity, 2};
  std::vector<float> copy(3);
  EXPECT_FALSE(convert_row_to_f32(bad.data(), DType::kF32, 3, copy.data()));
  EXPECT_FALSE(convert_row_to_f32(infinite.data(), DType::kF32, 3, copy.data()));
}

AttentionProblem broadcast_problem(std::int64_t seq_len_kv, float* data) {
  AttentionProblem p;
  p.batch = p.num_heads = p.num_kv_heads = p.head_dim_qk = p.head_dim_v = 1;
  p.seq_len_q = 1;
  p.seq_len_kv = seq_len_kv;
  p.q = p.k = p.v = {data, DType::kF32, 0, 0, 0};
  p.o = {data + 1, DType::kF32, 0, 0, 0};
  return p;
}

TEST(UnfusedBackend, SaysHowMuchItMaterialises) {
  float data[2] = {1, 0};
  const AttentionPlan plan =
      plan_attention(broadcast_problem(1000000, data), {.backend = "unfused", .config = {}});
  ASSERT_FALSE(plan.notes.empty());
  EXPECT_EQ(plan.notes[0], "materialises 4.0 MB of scores");
  EXPECT_GE(plan.workspace_bytes, std::size_t{3 * 4000000});
}

TEST(UnfusedBackend, AnImpossibleWorkspaceIsAnErrorThatSaysHowMuch) {
  float data[2] = {1, 0};
  for (const std::int64_t seq_len_kv : {std::int64_t{1} << 36, std::int64_t{1} << 40}) {
    try {
      attention_forward(broadcast_problem(seq_len_kv, data), {.backend = "unfused", .config = {}});
      FAIL() << "expected an Error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_NE(error.message().find("MB"), std::string::npos) << error.message();
    }
  }
  AttentionProblem p = broadcast_problem(std::int64_t{1} << 40, data);
  p.num_kv_heads = p.num_heads = 1 << 20;
  p.seq_len_q = 1 << 10;
  p.o.seq_stride = 1 << 20;
  p.o.head_stride = 1;
  try {
    plan_attention(p, {.backend = "unfused", .config = {}});
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(error.message().find("bytes"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace tessera::unfused
