// The CPU's products as sums of products of parts: numbers too small for a part, infinities that parts can't
// hold, more rows than are taken at once.
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "backends/factories.h"
#include "kernels/ops_testing.h"

namespace tessera::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class OpsGemmParts : public ::testing::TestWithParam<DType> {
 protected:
  const DType w_dtype = GetParam();
  const std::unique_ptr<OpsBackend> cpu = make_cpu_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();

  TestWeight random_weight(std::int64_t n, std::int64_t k) const {
    return {w_dtype, n, k, random_values(static_cast<std::size_t>(n * k), 1)};
  }
};
INSTANTIATE_TEST_SUITE_P(Weights, OpsGemmParts, ::testing::ValuesIn(kTunedWeightDTypes),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST_P(OpsGemmParts, RowsOfTinyNumbersKeepTheirAccuracy) {
  constexpr std::int64_t kM = 50, kN = 40;
  const std::int64_t k = whole_blocks(w_dtype, 96);
  const TestWeight w = random_weight(kN, k);
  for (const double scale : {1e-15, 1e-25, 1e-36, 1e-42}) {
    SCOPED_TRACE(scale);
    FencedMatrix x(DType::kF32, kM, k, random_values(static_cast<std::size_t>(kM * k), 2, scale));
    FencedMatrix exact(DType::kF64, kM, kN);
    reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
    const Values naive = naive_sums(x.values(), w.values(), kM, kN, static_cast<std::size_t>(k));
    for_each_simd_target([&] {
      FencedMatrix out(DType::kF32, kM, kN);
      cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
      const double floor =
          2 * 0x1p-24 * max_abs(exact.values()) + 0x1p-149;  // the last: of the smallest numbers
      EXPECT_LE(max_error(out.values(), exact.values()), 2 * max_error(naive, exact.values()) + floor);
    });
  }
}

TEST_P(OpsGemmParts, NumbersThatAreNotFiniteReachTheirRowsOnlyAndInfinitiesStay) {
  constexpr std::int64_t kM = 600, kN = 40;
  const std::int64_t k = whole_blocks(w_dtype, 64);
  const std::size_t columns = static_cast<std::size_t>(k);
  const TestWeight w = random_weight(kN, k);
  for (const DType x_dtype : kActivationDTypes) {
    Values values = random_values(kM * columns, 2);
    for (const std::size_t row : {3u, 550u}) values[row * columns + 5] = kInfinity;
    values[17 * columns] = std::nan("");
    FencedMatrix x(x_dtype, kM, k, values);
    const Values start = rounded(random_values(kM * kN, 3), DType::kF32);
    FencedMatrix exact(DType::kF64, kM, kN, start);
    reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), true, false}, {});
    const Values expected = exact.values();
    FencedMatrix out(DType::kF32, kM, kN, start);
    cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), true, false}, {});
    const Values got = out.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::isfinite(expected[i])) {
        // Products of some numbers around 1: far more than their roundings, far less than what is added
        // twice.
        ASSERT_NEAR(got[i], expected[i], 1e-4) << i;
      } else if (std::isnan(expected[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << i;
      } else {
        ASSERT_EQ(got[i], expected[i]) << i;
      }
    }
  }
}

TEST_P(OpsGemmParts, BatchInvariantRowsOfAThousandAreThoseOfOne) {
  constexpr std::int64_t kM = 1030, kN = 70;
  const std::int64_t k = block_format(w_dtype).elements > 1 ? whole_blocks(w_dtype, 1120) : 1111;
  const TestWeight w = random_weight(kN, k);
  const DType x_dtype = block_format(w_dtype).elements > 1 ? DType::kF32 : w_dtype;
  FencedMatrix x(x_dtype, kM, k, random_values(static_cast<std::size_t>(kM * k), 2), k + 3);
  for_each_simd_target([&] {
    FencedMatrix all(x_dtype, kM, kN);
    cpu->gemm({x.view(), w.weight(), std::nullopt, all.view(), false, true}, {});
    const Values expected = all.values();
    for (const std::int64_t row : {0, 15, 16, 511, 512, 1023, 1024, 1029}) {
      for (const std::int64_t rows : {1, 3, 33}) {
        if (row + rows > kM) continue;
        Matrix part = x.view();
        part.rows = rows;
        part.data = x.data() + dtype_bytes(x_dtype, static_cast<std::size_t>(row * (k + 3)));
        FencedMatrix out(x_dtype, rows, kN);
        cpu->gemm({part, w.weight(), std::nullopt, out.view(), false, true}, {});
        const auto begin = expected.begin() + row * kN;
        ASSERT_EQ(out.values(), Values(begin, begin + rows * kN)) << row << ", " << rows << " rows";
      }
    }
  });
}

// Sums of fp32 show what results rounded to bf16 would hide: nothing of the weights may be rounded.
TEST(OpsGemmBlocks, ProductsWithBf16ErrAtMostTwiceAsMuchAsANaiveSumInFp32) {
  const std::unique_ptr<OpsBackend> cpu = make_cpu_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  struct Shape {
    std::int64_t m, n, k;
  };
  // Rows that fill some tiles and parts of others, columns likewise, one block of k, pieces of k and some
  // over.
  const std::vector<Shape> shapes = {{1, 70, 768},   {2, 40, 256},  {3, 47, 1280}, {4, 33, 4384},
                                     {5, 18, 512},   {7, 35, 288},  {9, 66, 800},  {16, 131, 256},
                                     {23, 40, 1056}, {65, 530, 544}};
  for (const DType w_dtype : kWeightDTypes) {
    if (block_format(w_dtype).elements == 1) continue;
    for (const Shape& s : some_if_sanitized(shapes, 3)) {
      const std::int64_t k = whole_blocks(w_dtype, s.k);
      SCOPED_TRACE(::testing::Message() << dtype_name(w_dtype) << ", " << s.m << " x " << s.n << " x " << k);
      const TestWeight w(w_dtype, s.n, k, random_values(static_cast<std::size_t>(s.n * k), 1));
      const TestWeight bias(DType::kF32, 1, s.n, random_values(static_cast<std::size_t>(s.n), 2));
      FencedMatrix x(DType::kBF16, s.m, k, random_values(static_cast<std::size_t>(s.m * k), 3), k + 7);
      FencedMatrix exact(DType::kF64, s.m, s.n);
      reference->gemm({x.view(), w.weight(), bias.weight(), exact.view(), false, false}, {});
      Values naive = naive_sums(x.values(), w.values(), static_cast<std::size_t>(s.m),
                                static_cast<std::size_t>(s.n), static_cast<std::size_t>(k));
      for (std::size_t i = 0; i < naive.size(); ++i) {
        const double b = bias.values()[i % static_cast<std::size_t>(s.n)];
        naive[i] = static_cast<double>(static_cast<float>(naive[i]) + static_cast<float>(b));
      }
      for_each_simd_target([&] {
        FencedMatrix out(DType::kF32, s.m, s.n, s.n + 3);
        cpu->gemm({x.view(), w.weight(), bias.weight(), out.view(), false, false}, {});
        expect_at_most_twice_naive(out.values(), naive, exact.values(), DType::kF32);
        out.expect_fences_intact();
      });
    }
  }
}

// Kernels that make whole numbers of x's groups have to find a step for each: of groups of zeros, of numbers
// far apart, of such as other groups' are nothing to; and leave rows to others that have none.
TEST(OpsGemmBlocks, OneRowOfNumbersOfAllSizesErrsAtMostTwiceAsMuchAsANaiveSumInFp32) {
  const std::unique_ptr<OpsBackend> cpu = make_cpu_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  constexpr std::int64_t kN = 37;
  struct Sizes {
    const char* name;
    std::function<double(std::int64_t element)> of;
  };
  const std::vector<Sizes> cases = {
      {"an outlier", [](std::int64_t i) { return i == 45 ? 3e5 : 1.0; }},
      {"groups of zeros", [](std::int64_t i) { return i / 16 % 3 == 0 ? 0.0 : 1.0; }},
      {"all zeros", [](std::int64_t) { return 0.0; }},
      {"one sign", [](std::int64_t) { return -1.0; }},
      {"groups 2^8 apart", [](std::int64_t i) { return std::exp2(static_cast<double>(i / 32 % 5 * 8)); }},
      {"elements 2^20 apart", [](std::int64_t i) { return std::exp2(static_cast<double>(i % 21)); }},
      {"groups of 2^-110 beside 1", [](std::int64_t i) { return i / 32 % 2 == 0 ? 0x1p-110 : 1.0; }},
      {"2^-70", [](std::int64_t) { return 0x1p-70; }},
      {"2^105", [](std::int64_t) { return 0x1p105; }},
  };
  for (const DType w_dtype : kWeightDTypes) {
    if (block_format(w_dtype).elements == 1) continue;
    const std::int64_t k = whole_blocks(w_dtype, 864);
    const TestWeight w(w_dtype, kN, k, random_values(static_cast<std::size_t>(kN * k), 1));
    for (const DType x_dtype : {DType::kF32, DType::kBF16}) {
      for (const Sizes& sizes : cases) {
        SCOPED_TRACE(::testing::Message()
                     << dtype_name(w_dtype) << ", " << dtype_name(x_dtype) << " x: " << sizes.name);
        Values values = random_values(static_cast<std::size_t>(k), 3);
        for (std::int64_t i = 0; i < k; ++i) {
          double& value = values[static_cast<std::size_t>(i)];
          const double size = sizes.of(i);
          value = size < 0 ? -size * std::abs(value) : size * value;
        }
        FencedMatrix x(x_dtype, 1, k, values);
        FencedMatrix exact(DType::kF64, 1, kN);
        reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
        const Values naive =
            naive_sums(x.values(), w.values(), 1, static_cast<std::size_t>(kN), static_cast<std::size_t>(k));
        for_each_simd_target([&] {
          FencedMatrix out(DType::kF32, 1, kN);
          cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
          expect_at_most_twice_naive(out.values(), naive, exact.values(), DType::kF32);
        });
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
