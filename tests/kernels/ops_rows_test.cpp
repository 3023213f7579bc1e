// Row kernels of the CPU against the fp64 reference and against formulas written out here.
#include <bit>
#include <fstream>
#include <iomanip>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <optional>
#include <sstream>

#include "backends/factories.h"
#include "kernels/ops_testing.h"

namespace tessera::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<std::int64_t> kColumns = {1, 3, 7, 31, 32, 33, 100, 513, 1000, 4099};

class OpsRows : public ::testing::TestWithParam<DType> {
 protected:
  const DType dtype = GetParam();
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
};

INSTANTIATE_TEST_SUITE_P(DTypes, OpsRows, ::testing::ValuesIn(kActivationDTypes),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

std::size_t count(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows * columns);
}

Values naive_rms_norm(const Values& x, const Values& weight, std::int64_t columns, float eps) {
  Values out(x.size());
  const std::size_t n = static_cast<std::size_t>(columns);
  for (std::size_t row = 0; row < x.size(); row += n) {
    float sum = 0;
    for (std::size_t i = 0; i < n; ++i)
      sum += static_cast<float>(x[row + i]) * static_cast<float>(x[row + i]);
    const float norm = 1 / std::sqrt(sum / static_cast<float>(n) + eps);
    for (std::size_t i = 0; i < n; ++i) {
      out[row + i] = static_cast<float>(x[row + i]) * norm * static_cast<float>(weight[i]);
    }
  }
  return out;
}

TEST_P(OpsRows, RmsNormIsAsExactAsTheNaiveOne) {
  constexpr std::int64_t kRows = 5;
  for (const std::int64_t columns : some_if_sanitized(kColumns, 3)) {
    for (const DType weight_dtype : kActivationDTypes) {
      SCOPED_TRACE(columns);
      const TestWeight weight(weight_dtype, 1, columns, random_values(count(1, columns), 2));
      FencedMatrix x(dtype, kRows, columns, random_values(count(kRows, columns), 1, 3), columns + 5);
      FencedMatrix exact(DType::kF64, kRows, columns);
      reference->rms_norm({x.view(), exact.view(), weight.weight(), 1e-6f, std::nullopt, 1, 0}, {});
      const Values naive = naive_rms_norm(x.values(), weight.values(), columns, 1e-6f);
      for_each_simd_target([&] {
        FencedMatrix out(dtype, kRows, columns, columns + 3);
        cpu->rms_norm({x.view(), out.view(), weight.weight(), 1e-6f, std::nullopt, 1, 0}, {});
        expect_at_most_twice_naive(out.values(), naive, exact.values(), dtype);
        out.expect_fences_intact();
      });
    }
  }
}

TEST_P(OpsRows, RmsNormAddsTheResidualFirst) {
  constexpr std::int64_t kRows = 4;
  for (const std::int64_t columns : some_if_sanitized(kColumns, 3)) {
    for (const DType residual_dtype : kActivationDTypes) {
      const TestWeight weight(DType::kF32, 1, columns, random_values(count(1, columns), 2));
      const Values x_values = random_values(count(kRows, columns), 1);
      const Values residual_values = random_values(count(kRows, columns), 3, 4);
      FencedMatrix x(dtype, kRows, columns, x_values);
      FencedMatrix residual(residual_dtype, kRows, columns, residual_values, columns + 1);
      // The sum of the stored operands, rounded once as the reference rounds.
      Values sum = x.values();
      const Values before = residual.values();
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] = static_cast<double>(static_cast<float>(sum[i]) + static_cast<float>(before[i]));
      }
      sum = rounded(sum, residual_dtype);
      FencedMatrix sum_matrix(DType::kF64, kRows, columns, sum);
      FencedMatrix exact(DType::kF64, kRows, columns);
      reference->rms_norm({sum_matrix.view(), exact.view(), weight.weight(), 1e-5f, std::nullopt, 1, 0}, {});
      const Values naive = naive_rms_norm(sum, weight.values(), columns, 1e-5f);
      for_each_simd_target([&] {
        FencedMatrix updated(residual_dtype, kRows, columns, residual_values, columns + 1);
        FencedMatrix in_place(dtype, kRows, columns, x_values);
        cpu->rms_norm({in_place.view(), in_place.view(), weight.weight(), 1e-5f, updated.view(), 1, 0}, {});
        EXPECT_EQ(updated.values(), sum);
        expect_at_most_twice_naive(in_place.values(), naive, exact.values(), dtype);
        updated.expect_fences_intact();
        in_place.expect_fences_intact();
      });
      // The reference does the same with the residual itself.
      FencedMatrix out(DType::kF64, kRows, columns);
      reference->rms_norm({x.view(), out.view(), weight.weight(), 1e-5f, residual.view(), 1, 0}, {});
      const double floor = unit_roundoff(residual_dtype) * max_abs(sum);
      EXPECT_LE(max_error(residual.values(), sum), floor);
    }
  }
}

// What an execution plan adds and copies with, where a model has no norm.
TEST_P(OpsRows, RmsNormOfAnEpsThatDrownsTheMeanCopies) {
  constexpr std::int64_t kRows = 4;
  for (const std::int64_t columns : {std::int64_t{7}, std::int64_t{64}, std::int64_t{520}}) {
    const TestWeight weight(DType::kF32, 1, columns, Values(count(1, columns), 0x1p30));
    const Values x_values = random_values(count(kRows, columns), 1, 50);
    const Values residual_values = random_values(count(kRows, columns), 3, 3000);
    for_each_simd_target([&] {
      FencedMatrix x(dtype, kRows, columns, x_values), out(dtype, kRows, columns);
      FencedMatrix residual(DType::kF32, kRows, columns, residual_values);
      cpu->rms_norm({x.view(), out.view(), weight.weight(), 0x1p60f, residual.view(), 1, 0}, {});
      const Values sum = residual.values(), copy = out.values();
      for (std::size_t i = 0; i < sum.size(); ++i) {
        EXPECT_NEAR(copy[i], sum[i], (unit_roundoff(dtype) + 0x1p-21) * std::abs(sum[i])) << i;
      }
      out.expect_fences_intact();
    });
  }
}

TEST_P(OpsRows, RmsNormOfHeadsIsThatOfEachHead) {
  constexpr std::int64_t kTokens = 3;
  constexpr int kHeads = 4;
  constexpr std::int64_t kHeadDim = 80;
  constexpr std::int64_t kHeadStride = 96;
  const std::int64_t width = (kHeads - 1) * kHeadStride + kHeadDim;
  const TestWeight weight(DType::kBF16, 1, kHeadDim, random_values(kHeadDim, 2));
  const Values values = random_values(count(kTokens, width), 1);
  for_each_simd_target([&] {
    FencedMatrix all(dtype, kTokens, width, values, width + 7);
    Matrix heads = all.view();
    heads.columns = kHeadDim;
    cpu->rms_norm({heads, heads, weight.weight(), 1e-6f, std::nullopt, kHeads, kHeadStride}, {});
    FencedMatrix expected(dtype, kTokens, width, values, width + 7);
    for (int h = 0; h < kHeads; ++h) {
      Matrix head = expected.view();
      head.columns = kHeadDim;
      head.data = expected.data() + dtype_bytes(dtype, static_cast<std::size_t>(h * kHeadStride));
      cpu->rms_norm({head, head, weight.weight(), 1e-6f, std::nullopt, 1, 0}, {});
    }
    EXPECT_EQ(all.values(), expected.values());
    all.expect_fences_intact();
  });
}

TEST_P(OpsRows, RmsNormTakesNumbersWhoseSquaresOverflow) {
  const double large = dtype == DType::kF16 ? 6e4 : 1e30;
  FencedMatrix x(dtype, 1, 100, Values(100, large));
  const TestWeight one(DType::kF32, 1, 100, Values(100, 1));
  for_each_simd_target([&] {
    FencedMatrix out(dtype, 1, 100);
    cpu->rms_norm({x.view(), out.view(), one.weight(), 1e-6f, std::nullopt, 1, 0}, {});
    for (const double v : out.values()) EXPECT_NEAR(v, 1, 2 * unit_roundoff(dtype) + 1e-6);
  });
}

Values naive_softmax(const Values& x, std::int64_t columns) {
  Values out(x.size());
  const std::size_t n = static_cast<std::size_t>(columns);
  for (std::size_t row = 0; row < x.size(); row += n) {
    float maximum = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < n; ++i) maximum = std::max(maximum, static_cast<float>(x[row + i]));
    float sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += std::exp(static_cast<float>(x[row + i]) - maximum);
    for (std::size_t i = 0; i < n; ++i) {
      out[row + i] = std::exp(static_cast<float>(x[row + i]) - maximum) / sum;
    }
  }
  return out;
}

TEST_P(OpsRows, SoftmaxIsAsExactAsTheNaiveOne) {
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t columns : some_if_sanitized(kColumns, 3)) {
    for (const double scale : {1.0, 30.0, 1000.0}) {
      SCOPED_TRACE(columns);
      const Values values = random_values(count(kRows, columns), 7, scale);
      FencedMatrix x(dtype, kRows, columns, values, columns + 9);
      FencedMatrix exact(DType::kF64, kRows, columns);
      reference->softmax({x.view(), exact.view()}, {});
      const Values naive = naive_softmax(x.values(), columns);
      for_each_simd_target([&] {
        FencedMatrix out(dtype, kRows, columns, columns + 2);
        cpu->softmax({x.view(), out.view()}, {});
        expect_at_most_twice_naive(out.values(), naive, exact.values(), dtype);
        out.expect_fences_intact();
        FencedMatrix in_place(dtype, kRows, columns, values, columns + 9);
        cpu->softmax({in_place.view(), in_place.view()}, {});
        EXPECT_EQ(in_place.values(), out.values());
        in_place.expect_fences_intact();
      });
    }
  }
}

TEST_P(OpsRows, SoftmaxOfHiddenColumnsAndRows) {
  constexpr std::int64_t kColumnsHere = 37;
  Values values = random_values(2 * kColumnsHere, 5);
  for (std::size_t i = 10; i < kColumnsHere; ++i) values[i] = -kInfinity;
  for (std::size_t i = kColumnsHere; i < 2 * kColumnsHere; ++i) values[i] = -kInfinity;
  for (OpsBackend* backend : {cpu.get(), reference.get()}) {
    for_each_simd_target([&] {
      FencedMatrix x(dtype, 2, kColumnsHere, values);
      backend->softmax({x.view(), x.view()}, {});
      const Values out = x.values();
      double sum = 0;
      for (std::size_t i = 0; i < 10; ++i) sum += out[i];
      EXPECT_NEAR(sum, 1, 10 * unit_roundoff(dtype));
      for (std::size_t i = 10; i < out.size(); ++i) EXPECT_EQ(out[i], 0) << i;
    });
  }
}

TEST_P(OpsRows, SoftmaxKeepsNaN) {
  for (OpsBackend* backend : {cpu.get(), reference.get()}) {
    for_each_simd_target([&] {
      Values values(40, -kInfinity);
      values[17] = std::nan("");
      FencedMatrix x(dtype, 1, 40, values);
      backend->softmax({x.view(), x.view()}, {});
      for (const double v : x.values()) EXPECT_TRUE(std::isnan(v));
    });
  }
}

double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

float naive_activation(GatedActivation kind, float x) {
  if (kind == GatedActivation::kSwiGlu) return x / (1 + std::exp(-x));
  if (kind == GatedActivation::kGeGlu) return 0.5f * x * (1 + std::erf(x * 0.70710678f));
  if (kind == GatedActivation::kReluSquared) return std::max(x, 0.0f) * std::max(x, 0.0f);
  if (kind == GatedActivation::kSigmoid) return 1 / (1 + std::exp(-x));
  return 0.5f * x * (1 + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
}

float naive_gated(GatedActivation kind, float gate, float up) {
  if (kind != GatedActivation::kClampedSwiGlu) return naive_activation(kind, gate) * up;
  const float g = std::min(gate, 7.0f);
  return (std::clamp(up, -7.0f, 7.0f) + 1) * (g / (1 + std::exp(-1.702f * g)));
}

const std::vector<GatedActivation> kGatedActivations = {
    GatedActivation::kSwiGlu,        GatedActivation::kGeGlu,       GatedActivation::kGeGluTanh,
    GatedActivation::kClampedSwiGlu, GatedActivation::kReluSquared, GatedActivation::kSigmoid};

TEST_P(OpsRows, GatedActivationsAreAsExactAsTheNaiveOnes) {
  constexpr std::int64_t kRows = 3;
  for (const GatedActivation kind : kGatedActivations) {
    for (const std::int64_t columns : some_if_sanitized(kColumns, 3)) {
      SCOPED_TRACE(columns);
      // Gate and up as the two halves of packed rows.
      const Values packed = random_values(count(kRows, 2 * columns), 11, 3);
      FencedMatrix rows(dtype, kRows, 2 * columns, packed, 2 * columns + 3);
      Matrix gate = rows.view();
      gate.columns = columns;
      Matrix up = gate;
      up.data = rows.data() + dtype_bytes(dtype, static_cast<std::size_t>(columns));
      FencedMatrix exact(DType::kF64, kRows, columns);
      reference->gated_activation({kind, gate, up, exact.view()}, {});
      Values naive;
      const Values stored = rows.values();
      for (std::int64_t i = 0; i < kRows * columns; ++i) {
        const std::size_t g = static_cast<std::size_t>(i / columns * 2 * columns + i % columns);
        naive.push_back(naive_gated(kind, static_cast<float>(stored[g]),
                                    static_cast<float>(stored[g + static_cast<std::size_t>(columns)])));
      }
      for_each_simd_target([&] {
        FencedMatrix out(dtype, kRows, columns, columns + 1);
        cpu->gated_activation({kind, gate, up, out.view()}, {});
        expect_at_most_twice_naive(out.values(), naive, exact.values(), dtype);
        out.expect_fences_intact();
        FencedMatrix in_place(dtype, kRows, 2 * columns, packed, 2 * columns + 3);
        Matrix first = in_place.view();
        first.columns = columns;
        Matrix second = first;
        second.data = in_place.data() + dtype_bytes(dtype, static_cast<std::size_t>(columns));
        cpu->gated_activation({kind, first, second, first}, {});
        in_place.expect_fences_intact();
        const Values expected = out.values();
        for (std::int64_t i = 0; i < kRows * columns; ++i) {
          EXPECT_EQ(load_element(first.data, dtype, i / columns * first.row_stride + i % columns),
                    expected[static_cast<std::size_t>(i)]);
        }
      });
    }
  }
}

TEST_P(OpsRows, ActivationsWithoutAGateAreThoseOfOne) {
  constexpr std::int64_t kRows = 3;
  for (const GatedActivation kind : kGatedActivations) {
    if (kind == GatedActivation::kClampedSwiGlu) continue;
    for (const std::int64_t columns : some_if_sanitized(kColumns, 3)) {
      SCOPED_TRACE(columns);
      const Values values = random_values(count(kRows, columns), 11, 3);
      FencedMatrix x(dtype, kRows, columns, values, columns + 3);
      FencedMatrix one(dtype, kRows, columns, Values(values.size(), 1), columns + 3);
      for_each_simd_target([&] {
        FencedMatrix gated(dtype, kRows, columns, columns + 1);
        cpu->gated_activation({kind, x.view(), one.view(), gated.view()}, {});
        FencedMatrix in_place(dtype, kRows, columns, values, columns + 1);
        cpu->gated_activation({kind, in_place.view(), std::nullopt, in_place.view()}, {});
        EXPECT_EQ(in_place.values(), gated.values());
        in_place.expect_fences_intact();
      });
    }
  }
}

TEST_P(OpsRows, GatedActivationsSaturateWithoutNaN) {
  const Values gates = {-6e4, -500, -100, -20, -8, -1e-3, 0, 1e-3, 8, 20, 100, 500, 6e4};
  const std::int64_t n = static_cast<std::int64_t>(gates.size());
  FencedMatrix gate(dtype, 1, n, gates);
  FencedMatrix one(dtype, 1, n, Values(gates.size(), 1));
  for (const GatedActivation kind : kGatedActivations) {
    if (kind == GatedActivation::kReluSquared && dtype == DType::kF16) continue;  // the squares overflow
    FencedMatrix exact(DType::kF64, 1, n);
    reference->gated_activation({kind, gate.view(), one.view(), exact.view()}, {});
    for_each_simd_target([&] {
      FencedMatrix out(dtype, 1, n);
      cpu->gated_activation({kind, gate.view(), one.view(), out.view()}, {});
      const Values expected = exact.values();
      const Values got = out.values();
      for (std::size_t i = 0; i < got.size(); ++i) {
        // exp's argument is rounded, so its relative error grows with it; below 2^-24 of the gate only the
        // absolute error counts.
        EXPECT_NEAR(got[i], expected[i],
                    4 * unit_roundoff(dtype) * std::abs(expected[i]) + 0x1p-24 * std::abs(gates[i]))
            << gates[i];
      }
    });
  }
}

TEST(OpsReference, ActivationsAreTheirFormulas) {
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  const Values gates = random_values(200, 3, 2);
  FencedMatrix gate(DType::kF64, 1, 200, gates);
  FencedMatrix up(DType::kF64, 1, 200, Values(200, 1));
  FencedMatrix out(DType::kF64, 1, 200);
  const std::vector<std::pair<GatedActivation, std::function<double(double)>>> formulas = {
      {GatedActivation::kSwiGlu, [](double x) { return 0.5 * x * (1 + std::tanh(x / 2)); }},
      {GatedActivation::kGeGlu, [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }},
      {GatedActivation::kGeGluTanh, gelu_tanh},
      {GatedActivation::kReluSquared, [](double x) { return x < 0 ? 0 : x * x; }},
      {GatedActivation::kSigmoid, [](double x) { return 0.5 * (1 + std::tanh(x / 2)); }},
  };
  for (const auto& [kind, formula] : formulas) {
    reference->gated_activation({kind, gate.view(), up.view(), out.view()}, {});
    const Values values = out.values();
    for (std::size_t i = 0; i < 200; ++i) EXPECT_NEAR(values[i], formula(gates[i]), 1e-14);
  }
  // gpt-oss's, on both sides of what it clamps.
  FencedMatrix gates_beyond(DType::kF64, 1, 4, {-9, 8, 0.5, 7});
  FencedMatrix ups_beyond(DType::kF64, 1, 4, {8, -8, 0.5, 1});
  FencedMatrix clamped(DType::kF64, 1, 4);
  reference->gated_activation(
      {GatedActivation::kClampedSwiGlu, gates_beyond.view(), ups_beyond.view(), clamped.view()}, {});
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-static_cast<double>(1.702f) * x)); };
  const Values expected = {8 * -9 * sigmoid(-9), -6 * 7 * sigmoid(7), 1.5 * 0.5 * sigmoid(0.5),
                           2 * 7 * sigmoid(7)};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(clamped.values()[i], expected[i], 1e-14);
}

TEST_P(OpsRows, ScaleMultipliesInPlace) {
  for (const std::int64_t columns : some_if_sanitized(kColumns, 3)) {
    const Values values = random_values(count(3, columns), 1);
    FencedMatrix original(dtype, 3, columns, values);
    Values expected = original.values();
    for (double& v : expected) v = static_cast<double>(static_cast<float>(v) * 0.3f);
    expected = rounded(expected, dtype);
    for_each_simd_target([&] {
      FencedMatrix x(dtype, 3, columns, values, columns + 8);
      cpu->scale({x.view(), 0.3f}, {});
      EXPECT_EQ(x.values(), expected);
      x.expect_fences_intact();
    });
    FencedMatrix x(dtype, 3, columns, values, columns + 4);
    reference->scale({x.view(), 0.3f}, {});
    EXPECT_LE(max_error(x.values(), expected), 2 * unit_roundoff(dtype) * max_abs(expected));
  }
}

TEST_P(OpsRows, CausalMaskHidesWhatIsPastTheDiagonal) {
  constexpr std::int64_t kRows = 5;
  constexpr std::int64_t kColumnsHere = 8;
  const Values values = random_values(kRows * kColumnsHere, 1);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t shift : {std::int64_t{3}, std::int64_t{0}, std::int64_t{-2}, std::int64_t{-5},
                                   std::int64_t{7}, std::int64_t{8}, most, -most}) {
    for (OpsBackend* backend : {cpu.get(), reference.get()}) {
      FencedMatrix x(dtype, kRows, kColumnsHere, values, 11);
      const Values before = x.values();
      backend->causal_mask({x.view(), shift}, {});
      const Values after = x.values();
      for (std::int64_t i = 0; i < kRows; ++i) {
        for (std::int64_t j = 0; j < kColumnsHere; ++j) {
          const std::size_t at = static_cast<std::size_t>(i * kColumnsHere + j);
          EXPECT_EQ(after[at], j - i > shift ? -kInfinity : before[at]) << i << ' ' << j << ' ' << shift;
        }
      }
      x.expect_fences_intact();
    }
  }
}

TEST_P(OpsRows, EmbeddingCopiesRows) {
  constexpr std::int64_t kVocab = 20;
  const std::vector<std::int32_t> tokens = {3, 19, 0, 3, 7};
  const std::vector<std::int64_t> row_lengths = {32, 96, 1056, 768, 33};
  for (const DType table_dtype : kWeightDTypes) {
    for (const std::int64_t columns : some_if_sanitized(row_lengths, 2)) {
      if (whole_blocks(table_dtype, columns) != columns) continue;
      const TestWeight table(table_dtype, kVocab, columns, random_values(count(kVocab, columns), 4));
      Values expected;
      for (const std::int32_t token : tokens) {
        const auto row = table.values().begin() + token * columns;
        expected.insert(expected.end(), row, row + columns);
      }
      expected = rounded(expected, dtype);
      for (OpsBackend* backend : {cpu.get(), reference.get()}) {
        for_each_simd_target([&] {
          FencedMatrix out(dtype, 5, columns, columns + 6);
          backend->embedding({tokens.data(), table.weight(), out.view()}, {});
          EXPECT_EQ(out.values(), expected);
          out.expect_fences_intact();
        });
      }
    }
  }
}

std::vector<std::uint8_t> bytes_of_hex(const std::string& text) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST(OpsEmbedding, ReadsBlocksAsTheGgufPackageDoes) {
  std::ifstream file(std::string(TESSERA_FIXTURES) + "/ops/blocks.json");
  const nlohmann::json fixture = nlohmann::json::parse(file);
  for (const DType dtype : weight_dtypes()) {
    if (block_format(dtype).elements == 1) continue;
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    const nlohmann::json& format = fixture.at(std::string(dtype_name(dtype)));
    const std::vector<std::uint8_t> bytes = bytes_of_hex(format.at("bytes"));
    const std::vector<std::uint8_t> value_bytes = bytes_of_hex(format.at("values"));
    const std::int64_t columns = block_format(dtype).elements;
    const auto rows = static_cast<std::int64_t>(bytes.size() / block_format(dtype).bytes);
    ASSERT_EQ(value_bytes.size(), 4 * count(rows, columns));
    Values values;
    for (std::size_t i = 0; i < value_bytes.size(); i += 4) {
      float value;
      std::memcpy(&value, value_bytes.data() + i, sizeof value);
      values.push_back(static_cast<double>(value));
    }
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < rows; ++i) tokens.push_back(i);
    for (const std::string name : {"cpu", "reference"}) {
      const std::unique_ptr<OpsBackend> backend = make_tested_ops_backend(name);
      for_each_simd_target([&] {
        FencedMatrix out(DType::kF32, rows, columns);
        const Weight table{bytes.data(), dtype, rows, columns, nullptr};
        backend->embedding({tokens.data(), table, out.view()}, {});
        // Exact: fp32 holds step times integer, so that a sum with an offset rounds once.
        EXPECT_EQ(out.values(), values);
      });
    }
  }
}

/// What tools/fixtures/make_block_fixtures.py says: any bytes, and a hash of numbers.
std::vector<std::uint8_t> any_bytes(std::size_t count) {
  std::vector<std::uint8_t> bytes;
  std::uint64_t x = 1;
  while (bytes.size() < count) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    bytes.push_back(static_cast<std::uint8_t>(x >> 56));
  }
  return bytes;
}
std::string hash_of(const Values& values) {
  std::uint64_t state = 0xcbf29ce484222325u;
  for (const double value : values) {
    const std::uint32_t word =
        std::isnan(value) ? 0x7fc00000u : std::bit_cast<std::uint32_t>(static_cast<float>(value));
    state = (state ^ word) * 0x100000001b3u;
  }
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << state;
  return text.str();
}

TEST(OpsEmbedding, ReadsAnyBytesAsTheGgufPackageDoes) {
  constexpr std::int64_t kBlocks = 2048;
  std::ifstream file(std::string(TESSERA_FIXTURES) + "/ops/blocks.json");
  const nlohmann::json fixture = nlohmann::json::parse(file);
  std::vector<std::int32_t> tokens(kBlocks);
  std::iota(tokens.begin(), tokens.end(), 0);
  for (const DType dtype : weight_dtypes()) {
    const BlockFormat& format = block_format(dtype);
    if (format.elements == 1) continue;
    const std::vector<std::uint8_t> bytes = any_bytes(kBlocks * format.bytes);
    const Weight table{bytes.data(), dtype, kBlocks, format.elements, nullptr};
    const std::string hash = fixture.at(std::string(format.name)).at("hash");
    const auto hash_by = [&](OpsBackend& backend) {
      FencedMatrix out(DType::kF32, kBlocks, format.elements);
      backend.embedding({tokens.data(), table, out.view()}, {});
      return hash_of(out.values());
    };
    EXPECT_EQ(hash_by(*make_reference_ops()), hash) << format.name;
    const std::unique_ptr<OpsBackend> backend = make_tested_ops();
    for_each_simd_target([&] { EXPECT_EQ(hash_by(*backend), hash) << format.name; });
  }
}

TEST_P(OpsRows, OutputsMayBeOfAnotherDType) {
  constexpr std::int64_t kRows = 3;
  constexpr GatedActivation kKind = GatedActivation::kSwiGlu;
  for (const std::int64_t columns : {std::int64_t{96}, std::int64_t{101}}) {
    FencedMatrix x(dtype, kRows, columns, random_values(count(kRows, columns), 1, 2));
    FencedMatrix up(dtype, kRows, columns, random_values(count(kRows, columns), 2));
    const TestWeight weight(DType::kF32, 1, columns, random_values(count(1, columns), 3));
    FencedMatrix exact_norm(DType::kF64, kRows, columns);
    FencedMatrix exact_softmax(DType::kF64, kRows, columns);
    FencedMatrix exact_gated(DType::kF64, kRows, columns);
    reference->rms_norm({x.view(), exact_norm.view(), weight.weight(), 1e-6f, std::nullopt, 1, 0}, {});
    reference->softmax({x.view(), exact_softmax.view()}, {});
    reference->gated_activation({kKind, x.view(), up.view(), exact_gated.view()}, {});
    const Values naive_norm = naive_rms_norm(x.values(), weight.values(), columns, 1e-6f);
    const Values naive_weights = naive_softmax(x.values(), columns);
    Values naive_gated = x.values();
    for (std::size_t i = 0; i < naive_gated.size(); ++i) {
      naive_gated[i] =
          naive_activation(kKind, static_cast<float>(naive_gated[i])) * static_cast<float>(up.values()[i]);
    }
    for (const DType out_dtype : kActivationDTypes) {
      if (out_dtype == dtype) continue;
      SCOPED_TRACE(dtype_name(out_dtype));
      for_each_simd_target([&] {
        FencedMatrix out(out_dtype, kRows, columns, columns + 3);
        cpu->rms_norm({x.view(), out.view(), weight.weight(), 1e-6f, std::nullopt, 1, 0}, {});
        expect_at_most_twice_naive(out.values(), naive_norm, exact_norm.values(), out_dtype);
        cpu->softmax({x.view(), out.view()}, {});
        expect_at_most_twice_naive(out.values(), naive_weights, exact_softmax.values(), out_dtype);
        cpu->gated_activation({kKind, x.view(), up.view(), out.view()}, {});
        expect_at_most_twice_naive(out.values(), naive_gated, exact_gated.values(), out_dtype);
        out.expect_fences_intact();
      });
    }
  }
}

/// Rows at multiples of 16 bytes in whole groups of 8 columns: GPUs have kernels of their own for them.
constexpr std::int64_t kAlignedColumns[] = {8, 264, 4104};

TEST_P(OpsRows, RmsNormOfAlignedRowsIsAsExactAsTheNaiveOne) {
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t columns : kAlignedColumns) {
    const Values x_values = random_values(count(kRows, columns), 1, 3);
    const Values residual_values = random_values(count(kRows, columns), 3, 4);
    for (const DType weight_dtype : {dtype, DType::kF32}) {
      const TestWeight weight(weight_dtype, 1, columns, random_values(count(1, columns), 2));
      for (const DType x_dtype : {dtype, DType::kF32}) {
        FencedMatrix x(x_dtype, kRows, columns, x_values, columns + 8);
        for (const std::optional<DType> residual_dtype :
             {std::optional<DType>(), std::optional(dtype), std::optional(DType::kF32)}) {
          SCOPED_TRACE(::testing::Message() << columns << " columns, weight " << dtype_name(weight_dtype)
                                            << ", x " << dtype_name(x_dtype) << ", residual "
                                            << (residual_dtype ? dtype_name(*residual_dtype) : "none"));
          FencedMatrix residual(residual_dtype.value_or(DType::kF32), kRows, columns, residual_values,
                                columns + 16);
          Values normed = x.values();
          std::optional<Matrix> residual_view;
          if (residual_dtype) {
            const Values before = residual.values();
            for (std::size_t i = 0; i < normed.size(); ++i)
              normed[i] = static_cast<double>(static_cast<float>(normed[i]) + static_cast<float>(before[i]));
            normed = rounded(normed, *residual_dtype);
            residual_view = residual.view();
          }
          FencedMatrix normed_matrix(DType::kF64, kRows, columns, normed);
          FencedMatrix exact(DType::kF64, kRows, columns);
          reference->rms_norm(
              {normed_matrix.view(), exact.view(), weight.weight(), 1e-5f, std::nullopt, 1, 0}, {});
          FencedMatrix out(dtype, kRows, columns, columns + 8);
          cpu->rms_norm({x.view(), out.view(), weight.weight(), 1e-5f, residual_view, 1, 0}, {});
          expect_at_most_twice_naive(out.values(), naive_rms_norm(normed, weight.values(), columns, 1e-5f),
                                     exact.values(), dtype);
          if (residual_dtype) {
            EXPECT_EQ(residual.values(), normed);
          }
          out.expect_fences_intact();
          residual.expect_fences_intact();
        }
      }
    }
  }
}

TEST_P(OpsRows, SoftmaxAndActivationsOfAlignedRowsAreAsExactAsTheNaiveOnes) {
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t columns : kAlignedColumns) {
    SCOPED_TRACE(columns);
    FencedMatrix x(dtype, kRows, columns, random_values(count(kRows, columns), 1, 5), columns + 8);
    FencedMatrix up(dtype, kRows, columns, random_values(count(kRows, columns), 2), columns + 16);
    FencedMatrix exact(DType::kF64, kRows, columns);
    reference->softmax({x.view(), exact.view()}, {});
    FencedMatrix out(dtype, kRows, columns, columns + 8);
    cpu->softmax({x.view(), out.view()}, {});
    expect_at_most_twice_naive(out.values(), naive_softmax(x.values(), columns), exact.values(), dtype);
    out.expect_fences_intact();
    for (const GatedActivation kind : kGatedActivations) {
      reference->gated_activation({kind, x.view(), up.view(), exact.view()}, {});
      Values naive = x.values();
      const Values up_values = up.values();
      for (std::size_t i = 0; i < naive.size(); ++i)
        naive[i] = naive_gated(kind, static_cast<float>(naive[i]), static_cast<float>(up_values[i]));
      cpu->gated_activation({kind, x.view(), up.view(), out.view()}, {});
      expect_at_most_twice_naive(out.values(), naive, exact.values(), dtype);
      out.expect_fences_intact();
    }
    // Hidden columns and rows, and a row with a NaN.
    Values special(count(kRows, columns), -std::numeric_limits<double>::infinity());
    special[0] = 1;
    special[static_cast<std::size_t>(2 * columns)] = std::numeric_limits<double>::quiet_NaN();
    x.fill(special);
    cpu->softmax({x.view(), out.view()}, {});
    const Values weights = out.values();
    EXPECT_EQ(weights[0], 1);
    for (std::size_t i = 1; i < count(2, columns); ++i) EXPECT_EQ(weights[i], 0) << i;
    EXPECT_TRUE(std::isnan(weights[static_cast<std::size_t>(2 * columns)]));
  }
}

TEST_P(OpsRows, ManyRowsGiveTheBitsOfOneRow) {
  constexpr std::int64_t kRows = 300;
  constexpr std::int64_t kColumnsHere = 1000;
  FencedMatrix x(dtype, kRows, kColumnsHere, random_values(kRows * kColumnsHere, 9));
  FencedMatrix all(dtype, kRows, kColumnsHere);
  FencedMatrix single(dtype, 1, kColumnsHere);
  const TestWeight weight(DType::kF32, 1, kColumnsHere, random_values(kColumnsHere, 2));
  cpu->rms_norm({x.view(), all.view(), weight.weight(), 1e-6f, std::nullopt, 1, 0}, {});
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{150}, kRows - 1}) {
    Matrix one = x.view();
    one.data = x.data() + dtype_bytes(dtype, static_cast<std::size_t>(row * kColumnsHere));
    one.rows = 1;
    cpu->rms_norm({one, single.view(), weight.weight(), 1e-6f, std::nullopt, 1, 0}, {});
    const Values values = all.values();
    EXPECT_EQ(single.values(),
              Values(values.begin() + row * kColumnsHere, values.begin() + (row + 1) * kColumnsHere));
  }
}

}  // namespace
}  // namespace tessera::testing
