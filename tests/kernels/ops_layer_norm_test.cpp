// layer_norm against its formula in fp64.
#include <cmath>
#include <optional>

#include "backends/factories.h"
#include "kernels/ops_testing.h"

namespace tessera::testing {
namespace {

class OpsLayerNorm : public ::testing::TestWithParam<DType> {
 protected:
  const DType dtype = GetParam();
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
};

INSTANTIATE_TEST_SUITE_P(DTypes, OpsLayerNorm, ::testing::ValuesIn(kActivationDTypes),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

std::size_t count(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows * columns);
}

/// In two passes of fp32.
Values naive_layer_norm(const Values& x, const Values& weight, const Values& bias, std::int64_t columns,
                        float eps) {
  Values out(x.size());
  const std::size_t n = static_cast<std::size_t>(columns);
  for (std::size_t row = 0; row < x.size(); row += n) {
    float sum = 0, squares = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<float>(x[row + i]);
    const float mean = sum / static_cast<float>(n);
    for (std::size_t i = 0; i < n; ++i) {
      const float centered = static_cast<float>(x[row + i]) - mean;
      squares += centered * centered;
    }
    const float norm = 1 / std::sqrt(squares / static_cast<float>(n) + eps);
    for (std::size_t i = 0; i < n; ++i) {
      const float y = (static_cast<float>(x[row + i]) - mean) * norm * static_cast<float>(weight[i]);
      out[row + i] = bias.empty() ? y : y + static_cast<float>(bias[i]);
    }
  }
  return out;
}

// Rows of whole groups of 8 columns at multiples of 16 bytes, and others.
const std::vector<std::int64_t> kColumns = {1, 3, 8, 31, 33, 264, 1000, 4099, 4104, 20000};

TEST_P(OpsLayerNorm, IsAsExactAsTheNaiveOne) {
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t columns : some_if_sanitized(kColumns, 3)) {
    for (const DType weight_dtype : {dtype, DType::kF32}) {
      for (const bool has_bias : {false, true}) {
        SCOPED_TRACE(::testing::Message() << columns << " columns, weight " << dtype_name(weight_dtype));
        const TestWeight weight(weight_dtype, 1, columns, random_values(count(1, columns), 2));
        const TestWeight bias(weight_dtype, 1, columns, random_values(count(1, columns), 3));
        const std::optional<Weight> given = has_bias ? std::optional(bias.weight()) : std::nullopt;
        // Numbers whose mean is far from zero.
        Values values = random_values(count(kRows, columns), 1, 3);
        for (double& value : values) value += 5;
        FencedMatrix x(dtype, kRows, columns, values, columns + 8);
        FencedMatrix exact(DType::kF64, kRows, columns);
        reference->layer_norm({x.view(), exact.view(), weight.weight(), given, 1e-5f, std::nullopt}, {});
        const Values naive = naive_layer_norm(x.values(), weight.values(),
                                              has_bias ? bias.values() : Values(), columns, 1e-5f);
        for_each_simd_target([&] {
          FencedMatrix out(dtype, kRows, columns, columns + 16);
          tested->layer_norm({x.view(), out.view(), weight.weight(), given, 1e-5f, std::nullopt}, {});
          expect_at_most_twice_naive(out.values(), naive, exact.values(), dtype);
          out.expect_fences_intact();
        });
      }
    }
  }
}

TEST_P(OpsLayerNorm, AddsTheResidualFirst) {
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t columns : some_if_sanitized(kColumns, 3)) {
    const TestWeight weight(DType::kF32, 1, columns, random_values(count(1, columns), 2));
    for (const DType residual_dtype : {dtype, DType::kF32}) {
      SCOPED_TRACE(::testing::Message() << columns << " columns, residual " << dtype_name(residual_dtype));
      const Values before = random_values(count(kRows, columns), 3, 4);
      for_each_simd_target([&] {
        FencedMatrix x(dtype, kRows, columns, random_values(count(kRows, columns), 1, 3), columns + 8);
        FencedMatrix residual(residual_dtype, kRows, columns, before, columns + 16);
        Values sum = x.values();
        const Values old = residual.values();
        for (std::size_t i = 0; i < sum.size(); ++i)
          sum[i] = static_cast<double>(static_cast<float>(sum[i]) + static_cast<float>(old[i]));
        sum = rounded(sum, residual_dtype);
        FencedMatrix summed(DType::kF64, kRows, columns, sum), exact(DType::kF64, kRows, columns);
        reference->layer_norm(
            {summed.view(), exact.view(), weight.weight(), std::nullopt, 1e-5f, std::nullopt}, {});
        // In place.
        tested->layer_norm({x.view(), x.view(), weight.weight(), std::nullopt, 1e-5f, residual.view()}, {});
        expect_at_most_twice_naive(x.values(), naive_layer_norm(sum, weight.values(), {}, columns, 1e-5f),
                                   exact.values(), dtype);
        EXPECT_EQ(residual.values(), sum);
        x.expect_fences_intact();
        residual.expect_fences_intact();
      });
    }
  }
}

TEST_P(OpsLayerNorm, HeadsHaveWeightsOfTheirOwn) {
  constexpr std::int64_t kRows = 3;
  constexpr int kHeads = 5;
  for (const std::int64_t columns :
       {std::int64_t{1}, std::int64_t{24}, std::int64_t{33}, std::int64_t{128}}) {
    for (const bool has_bias : {false, true}) {
      SCOPED_TRACE(columns);
      const std::int64_t head_stride = columns + 8, row = (kHeads - 1) * head_stride + columns;
      const TestWeight weight(dtype, kHeads, columns, random_values(count(kHeads, columns), 2));
      const TestWeight bias(dtype, kHeads, columns, random_values(count(kHeads, columns), 3));
      FencedMatrix x(dtype, kRows, row, random_values(count(kRows, row), 1, 3), row + 8);
      const Values values = x.values();
      // Each head as rows of its own.
      Values expected = values, naive = values;
      for (int head = 0; head < kHeads; ++head) {
        Values rows;
        for (std::int64_t t = 0; t < kRows; ++t) {
          const auto begin = values.begin() + t * row + head * head_stride;
          rows.insert(rows.end(), begin, begin + columns);
        }
        const auto of_head = [&](const TestWeight& all) {
          const Values numbers = all.values();
          return Values(numbers.begin() + head * columns, numbers.begin() + (head + 1) * columns);
        };
        const TestWeight own(DType::kF32, 1, columns, of_head(weight)),
            own_bias(DType::kF32, 1, columns, of_head(bias));
        FencedMatrix one(DType::kF64, kRows, columns, rows), exact(DType::kF64, kRows, columns);
        reference->layer_norm(
            {one.view(), exact.view(), own.weight(),
             has_bias ? std::optional(own_bias.weight()) : std::nullopt, 1e-5f, std::nullopt},
            {});
        const Values of_naive =
            naive_layer_norm(rows, own.values(), has_bias ? own_bias.values() : Values(), columns, 1e-5f);
        for (std::int64_t t = 0; t < kRows; ++t) {
          for (std::int64_t c = 0; c < columns; ++c) {
            const auto at = static_cast<std::size_t>(t * row + head * head_stride + c);
            expected[at] = exact.values()[static_cast<std::size_t>(t * columns + c)];
            naive[at] = of_naive[static_cast<std::size_t>(t * columns + c)];
          }
        }
      }
      for_each_simd_target([&] {
        FencedMatrix out(dtype, kRows, row, values, row + 16);
        LayerNormArguments a;
        a.x = x.view();
        a.out = out.view();
        a.x.columns = a.out.columns = columns;
        a.weight = weight.weight();
        if (has_bias) a.bias = bias.weight();
        a.heads = kHeads;
        a.head_stride = head_stride;
        tested->layer_norm(a, {});
        expect_at_most_twice_naive(out.values(), naive, expected, dtype);
        out.expect_fences_intact();
      });
    }
  }
}

TEST(OpsLayerNormExtremes, SquaresThatOverflowAndRowsThatAreAllAlike) {
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const TestWeight weight(DType::kF32, 1, 8, Values(8, 1));
  const TestWeight bias(DType::kF32, 1, 8, Values(8, 0.25));
  for_each_simd_target([&] {
    FencedMatrix x(DType::kF32, 2, 8,
                   {1e30, -1e30, 1e30, -1e30, 1e30, -1e30, 1e30, -1e30, 7, 7, 7, 7, 7, 7, 7, 7});
    FencedMatrix out(DType::kF32, 2, 8);
    tested->layer_norm({x.view(), out.view(), weight.weight(), bias.weight(), 1e-5f, std::nullopt}, {});
    const Values got = out.values();
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(got[i], (i % 2 == 0 ? 1 : -1) + 0.25, 1e-6);
      EXPECT_EQ(got[8 + i], 0.25);
    }
  });
}

TEST_P(OpsLayerNorm, ManyRowsGiveTheBitsOfOneRow) {
  constexpr std::int64_t kRows = 700, kColumnsHere = 1000;
  const TestWeight weight(dtype, 1, kColumnsHere, random_values(count(1, kColumnsHere), 2));
  FencedMatrix x(dtype, kRows, kColumnsHere, random_values(count(kRows, kColumnsHere), 1, 3));
  FencedMatrix all(dtype, kRows, kColumnsHere), one(dtype, 1, kColumnsHere);
  tested->layer_norm({x.view(), all.view(), weight.weight(), std::nullopt, 1e-5f, std::nullopt}, {});
  const Values together = all.values();
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{333}, kRows - 1}) {
    tested->layer_norm(
        {rows_of(x.view(), row, 1), one.view(), weight.weight(), std::nullopt, 1e-5f, std::nullopt}, {});
    const auto begin = together.begin() + static_cast<std::ptrdiff_t>(row * kColumnsHere);
    EXPECT_EQ(one.values(), Values(begin, begin + kColumnsHere)) << row;
  }
}

}  // namespace
}  // namespace tessera::testing
