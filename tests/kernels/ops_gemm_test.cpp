// gemm of the CPU against the fp64 reference, and the reference against a plain sum.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <thread>
#include <tuple>

#include "backends/factories.h"
#include "core/parallel.h"
#include "kernels/ops_testing.h"
#include "kernels/products_testing.h"

namespace tessera::testing {
namespace {

using DTypes = std::tuple<DType, DType>;  // activations, weights

class OpsGemm : public ::testing::TestWithParam<DTypes> {
 protected:
  const DType x_dtype = std::get<0>(GetParam());
  const DType w_dtype = std::get<1>(GetParam());
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();

  void SetUp() override { skip_some_pairs_if_sanitized(); }

  /// So that a kernel for normed rows does not go untested where there must be one.
  void expect_done_where_there_is_a_kernel(int num_done) const {
    const bool has_kernel = cpu->name() == "cuda" && x_dtype != DType::kF32 &&
                            (x_dtype == w_dtype || block_format(w_dtype).elements > 1);
    EXPECT_EQ(num_done > 0, has_kernel);
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, OpsGemm,
                         ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                                            ::testing::ValuesIn(kTunedWeightDTypes)),
                         [](const auto& info) {
                           return std::string(dtype_name(std::get<0>(info.param))) + "_" +
                                  std::string(dtype_name(std::get<1>(info.param)));
                         });

TEST_P(OpsGemm, ErrorIsAtMostTwiceThatOfANaiveSum) {
  const std::vector<Shape> shapes = {{1, 1, 1},    {1, 7, 3},     {2, 33, 31},   {3, 5, 7},    {1, 100, 1000},
                                     {4, 64, 64},  {5, 31, 33},   {7, 3, 1000},  {8, 129, 96}, {9, 40, 128},
                                     {13, 17, 65}, {33, 50, 256}, {64, 96, 160}, {70, 1, 32},  {1, 33, 4096}};
  for (const Shape& given : some_if_sanitized(shapes)) {
    Shape s = given;
    s.k = whole_blocks(w_dtype, s.k);
    SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k);
    const std::size_t mn = static_cast<std::size_t>(s.m * s.n);
    const TestWeight w(w_dtype, s.n, s.k, random_values(static_cast<std::size_t>(s.n * s.k), 1));
    const TestWeight bias(DType::kBF16, 1, s.n, random_values(static_cast<std::size_t>(s.n), 2));
    FencedMatrix x(x_dtype, s.m, s.k, random_values(static_cast<std::size_t>(s.m * s.k), 3), s.k + 5);
    for (const bool accumulate : {false, true}) {
      for (const bool use_bias : {false, true}) {
        if (backend_is_slow() && use_bias != accumulate) continue;
        const Values start = rounded(random_values(mn, 4), x_dtype);
        const std::optional<Weight> b = use_bias ? std::optional(bias.weight()) : std::nullopt;
        FencedMatrix exact(DType::kF64, s.m, s.n, start);
        reference->gemm({x.view(), w.weight(), b, exact.view(), accumulate, false}, {});
        const Values naive = naive_gemm(x.values(), w.values(), s, use_bias ? bias.values() : Values(),
                                        accumulate ? start : Values());
        for (const bool batch_invariant : {false, true}) {
          for_each_simd_target([&] {
            FencedMatrix out(x_dtype, s.m, s.n, start, s.n + 3);
            cpu->gemm({x.view(), w.weight(), b, out.view(), accumulate, batch_invariant}, {});
            expect_at_most_twice_naive(out.values(), naive, exact.values(), x_dtype);
            out.expect_fences_intact();
          });
        }
      }
    }
  }
}

/// Sizes at which rows stand at multiples of 16 bytes: GPUs have kernels of their own for them.
const std::vector<Shape> kAlignedShapes = {{1, 5, 64},    {1, 1100, 256}, {2, 1059, 768}, {1, 30, 14336},
                                           {2, 6, 11264}, {2, 33, 256},   {3, 16, 128},   {4, 7, 2304},
                                           {5, 50, 512},  {8, 31, 4096},  {9, 20, 2048},  {16, 40, 768},
                                           {17, 24, 256}, {40, 150, 256}, {130, 24, 256}};

/// Sizes at which GPUs multiply Q8_0 weights in different ways, with last tiles that are not full.
const std::vector<Shape> kQ8Shapes = {{1, 16, 256},    {2, 1000, 512},  {7, 17, 4352},    {10, 300, 256},
                                      {16, 47, 512},   {23, 129, 1024}, {32, 4100, 256},  {33, 65, 768},
                                      {65, 300, 512},  {100, 16, 256},  {150, 700, 1024}, {330, 1530, 768},
                                      {600, 1001, 512}};

/// Sizes at which a GPU cuts 16-bit weights into tiles of 64 rows and these into steps: tiles that blocks
/// share, as pairs (of 132 blocks) and otherwise, and whole ones, last tiles and steps that are not full.
const std::vector<Shape> kTileShapes = {{5, 8500, 64},    {16, 300, 4096},  {33, 1000, 1544},
                                        {64, 130, 2056},  {20, 17000, 264}, {3, 64, 14336},
                                        {16, 4096, 1024}, {50, 4000, 1032}};

/// Likewise of weights of blocks, cut into tiles of 128 to 256 rows and steps of 256 columns.
const std::vector<Shape> kBlockTileShapes = {{12, 300, 4096}, {16, 4100, 512},  {33, 1000, 1536},
                                             {64, 130, 2048}, {20, 17000, 256}, {9, 64, 14336}};

TEST_P(OpsGemm, ErrorOfAlignedRowsIsAtMostTwiceThatOfANaiveSum) {
  std::vector<Shape> shapes = kAlignedShapes;
  if (w_dtype == x_dtype && w_dtype != DType::kF32 && !backend_is_slow())
    shapes.insert(shapes.end(), kTileShapes.begin(), kTileShapes.end());
  if (block_format(w_dtype).elements > 1 && x_dtype != DType::kF32 && !backend_is_slow())
    shapes.insert(shapes.end(), kBlockTileShapes.begin(), kBlockTileShapes.end());
  if (w_dtype == DType::kQ8_0 && !backend_is_slow())
    shapes.insert(shapes.end(), kQ8Shapes.begin(), kQ8Shapes.end());
  for (Shape s : some_if_sanitized(shapes)) {
    s.k = whole_blocks(w_dtype, s.k);
    SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k);
    const std::size_t mn = static_cast<std::size_t>(s.m * s.n);
    const TestWeight w(w_dtype, s.n, s.k, random_values(static_cast<std::size_t>(s.n * s.k), 1));
    const TestWeight bias(DType::kF32, 1, s.n, random_values(static_cast<std::size_t>(s.n), 2));
    FencedMatrix x(x_dtype, s.m, s.k, random_values(static_cast<std::size_t>(s.m * s.k), 3), s.k + 16);
    const Values start = rounded(random_values(mn, 4), x_dtype);
    FencedMatrix exact(DType::kF64, s.m, s.n, start);
    reference->gemm({x.view(), w.weight(), bias.weight(), exact.view(), true, false}, {});
    const Values naive = naive_gemm(x.values(), w.values(), s, bias.values(), start);
    for (const bool batch_invariant : {false, true}) {
      FencedMatrix out(x_dtype, s.m, s.n, start, s.n + 3);
      cpu->gemm({x.view(), w.weight(), bias.weight(), out.view(), true, batch_invariant}, {});
      expect_at_most_twice_naive(out.values(), naive, exact.values(), x_dtype);
      out.expect_fences_intact();
    }
  }
}

/// Few rows of x with weights of blocks, aligned, of each block format: pieces of 256 columns that GPUs'
/// warps share evenly and unevenly, in one round and in several; rows of w that fill no tile.
class OpsGemmOfFewRows : public ::testing::TestWithParam<DType> {};

TEST_P(OpsGemmOfFewRows, ErrAtMostTwiceAsMuchAsANaiveSum) {
  const DType w_dtype = GetParam();
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  const std::vector<Shape> shapes = {{1, 16, 256},   {1, 37, 1024}, {2, 50, 2048}, {1, 40, 2304},
                                     {2, 33, 4352},  {4, 20, 4096}, {3, 32, 6144}, {5, 24, 6400},
                                     {1, 19, 14336}, {8, 17, 4096}, {8, 48, 512},  {9, 23, 2048}};
  for (const Shape& s : backend_is_slow() ? std::vector(shapes.begin(), shapes.begin() + 4) : shapes) {
    SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k);
    const TestWeight w(w_dtype, s.n, s.k, random_values(static_cast<std::size_t>(s.n * s.k), 1));
    for (const DType x_dtype : {DType::kF16, DType::kBF16}) {
      FencedMatrix x(x_dtype, s.m, s.k, random_values(static_cast<std::size_t>(s.m * s.k), 3), s.k + 8);
      FencedMatrix exact(DType::kF64, s.m, s.n);
      reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
      const Values naive = naive_gemm(x.values(), w.values(), s, {}, {});
      FencedMatrix out(x_dtype, s.m, s.n, s.n + 3);
      tested->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
      expect_at_most_twice_naive(out.values(), naive, exact.values(), x_dtype);
      out.expect_fences_intact();
    }
  }
}

std::vector<DType> block_dtypes() {
  std::vector<DType> dtypes;
  for (const DType dtype : kWeightDTypes)
    if (block_format(dtype).elements > 1) dtypes.push_back(dtype);
  return dtypes;
}
INSTANTIATE_TEST_SUITE_P(DTypes, OpsGemmOfFewRows, ::testing::ValuesIn(block_dtypes()),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST(OpsGemm, OfMoreRowsOfWThanABlockOfAGridTakesAtOnce) {
  if (tested_ops_are_the_cpus() || backend_is_slow()) GTEST_SKIP() << "for GPUs' grids";
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  // Nine groups of 16 rows for each of an H200's multiprocessors: an odd number of them at once.
  const Shape s{8, 16 * 9 * 132, 2048};
  const TestWeight w(DType::kQ4_K, s.n, s.k, random_values(static_cast<std::size_t>(s.n * s.k), 1));
  FencedMatrix x(DType::kBF16, s.m, s.k, random_values(static_cast<std::size_t>(s.m * s.k), 3));
  FencedMatrix exact(DType::kF64, s.m, s.n);
  reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
  const Values naive = naive_gemm(x.values(), w.values(), s, {}, {});
  FencedMatrix out(DType::kBF16, s.m, s.n);
  tested->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
  expect_at_most_twice_naive(out.values(), naive, exact.values(), DType::kBF16);
  out.expect_fences_intact();
}

/// Sizes at which a GPU takes all rows of x at once: tiles of w that are cut along k and whole ones, last
/// tiles and steps that are not full.
const std::vector<Shape> kManyRowsShapes = {{300, 520, 264}, {70, 17000, 72}, {513, 300, 1032}};

TEST_P(OpsGemm, ErrorOfManyRowsIsAtMostTwiceThatOfANaiveSum) {
  if (w_dtype != x_dtype || w_dtype == DType::kF32 || backend_is_slow())
    GTEST_SKIP() << "these types have no such kernel";
  for (const Shape& s : some_if_sanitized(kManyRowsShapes)) {
    SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k);
    const std::size_t mn = static_cast<std::size_t>(s.m * s.n);
    const TestWeight w(w_dtype, s.n, s.k, random_values(static_cast<std::size_t>(s.n * s.k), 1));
    const TestWeight bias(DType::kF32, 1, s.n, random_values(static_cast<std::size_t>(s.n), 2));
    FencedMatrix x(x_dtype, s.m, s.k, random_values(static_cast<std::size_t>(s.m * s.k), 3), s.k + 16);
    for (const bool accumulate : {false, true}) {
      const Values start = rounded(random_values(mn, 4), x_dtype);
      FencedMatrix exact(DType::kF64, s.m, s.n, start);
      reference->gemm({x.view(), w.weight(), bias.weight(), exact.view(), accumulate, false}, {});
      const Values naive =
          naive_gemm(x.values(), w.values(), s, bias.values(), accumulate ? start : Values());
      for (const DType out_dtype : {x_dtype, DType::kF32}) {
        // Rows that boxes of results can be copied to, and rows that they can't.
        for (const std::int64_t gap : {8 + (8 - s.n % 8) % 8, std::int64_t{3}}) {
          for (const bool batch_invariant : {false, true}) {
            FencedMatrix out(out_dtype, s.m, s.n, start, s.n + gap);
            cpu->gemm({x.view(), w.weight(), bias.weight(), out.view(), accumulate, batch_invariant}, {});
            expect_at_most_twice_naive(out.values(), naive, exact.values(), out_dtype);
            out.expect_fences_intact();
          }
        }
      }
    }
  }
}

constexpr std::array kGatedActivations = {GatedActivation::kSwiGlu, GatedActivation::kGeGlu,
                                          GatedActivation::kGeGluTanh};

TEST_P(OpsGemm, GatedErrsAtMostTwiceAsMuchAsANaiveProductAndActivation) {
  int num_done = 0;
  std::vector<Shape> shapes = some_if_sanitized(kAlignedShapes);
  if (w_dtype == x_dtype && w_dtype != DType::kF32 && !backend_is_slow()) {
    shapes.push_back({16, 4300, 520});
    shapes.push_back({50, 200, 2056});
    shapes.push_back({1030, 152, 264});
  }
  if (w_dtype != x_dtype && x_dtype == DType::kBF16 && !backend_is_slow()) {
    shapes.push_back({1030, 152, 256});
    shapes.push_back({16, 4300, 512});
    shapes.push_back({50, 200, 2048});
  }
  for (const Shape& given : shapes) {
    const auto number = static_cast<std::size_t>(&given - shapes.data());
    // Each dtype of rows half of the shapes: over them all, every format has every shape.
    if (backend_is_slow() && number % 2 != static_cast<std::size_t>(x_dtype) % 2) continue;
    Shape s = given;
    s.k = whole_blocks(w_dtype, s.k);
    s.n = (s.n + 15) / 16 * 16;  // the rows of gate, then as many of up
    SCOPED_TRACE(::testing::Message() << s.m << " x 2 * " << s.n << " x " << s.k);
    const std::size_t mn = static_cast<std::size_t>(s.m * s.n);
    Shape both = s;
    both.n = 2 * s.n;
    const TestWeight bias(DType::kF32, 1, both.n, random_values(static_cast<std::size_t>(both.n), 2));
    FencedMatrix x(x_dtype, s.m, s.k, random_values(static_cast<std::size_t>(s.m * s.k), 3), s.k + 16);
    // Of some, rows that boxes of results can be copied to.
    FencedMatrix out(x_dtype, s.m, s.n, Values(mn), s.m > 64 ? s.n + 8 : s.n + 3);
    const auto is_taken = [&](GatedActivation kind) {
      GemmArguments a{x.view(), without_data(w_dtype, both.n, s.k), bias.weight(), out.view(), false, false};
      if (cpu->takes_gated_gemm(a, kind)) return true;
      a.batch_invariant = true;
      return cpu->takes_gated_gemm(a, kind);
    };
    if (std::none_of(kGatedActivations.begin(), kGatedActivations.end(), is_taken)) continue;
    const double scale = 1 / std::sqrt(static_cast<double>(s.k));
    const TestWeight w(w_dtype, both.n, s.k, random_values(static_cast<std::size_t>(both.n * s.k), 1, scale));
    const auto arguments = [&](bool batch_invariant) {
      return GemmArguments{x.view(), w.weight(), bias.weight(), out.view(), false, batch_invariant};
    };
    FencedMatrix exact_both(DType::kF64, s.m, both.n);
    reference->gemm({x.view(), w.weight(), bias.weight(), exact_both.view(), false, false}, {});
    FencedMatrix naive_both(DType::kF32, s.m, both.n,
                            rounded(naive_gemm(x.values(), w.values(), both, bias.values(), {}), x_dtype));
    for (std::size_t n = 0; n < kGatedActivations.size(); ++n) {
      if (backend_is_slow() && n != number % kGatedActivations.size()) continue;
      const GatedActivation kind = kGatedActivations[n];
      const auto activated = [&](FencedMatrix& rows) {
        Matrix gate = rows.view(), up = rows.view();
        gate.columns = up.columns = s.n;
        up.data = rows.data() + dtype_bytes(gate.dtype, static_cast<std::size_t>(s.n));
        FencedMatrix product(gate.dtype, s.m, s.n, Values(mn));
        reference->gated_activation({kind, gate, up, product.view()}, {});
        return product.values();
      };
      const Values exact = activated(exact_both), naive = activated(naive_both);
      for (const bool batch_invariant : {false, true}) {
        if (!cpu->takes_gated_gemm(arguments(batch_invariant), kind)) continue;
        out.fill(Values(mn));
        cpu->gated_gemm(arguments(batch_invariant), kind, {});
        ++num_done;
        expect_at_most_twice_naive(out.values(), naive, exact, x_dtype);
        out.expect_fences_intact();
      }
    }
  }
  if (num_done == 0) GTEST_SKIP() << "these types have no such kernel";
}

TEST_P(OpsGemm, GatedWeightsThatAreWidenedInPiecesAreThoseOfAProductAndAnActivation) {
  if (x_dtype != DType::kBF16 || w_dtype != DType::kQ8_0 || backend_is_slow())
    GTEST_SKIP() << "one format is enough for pieces of some thousand rows";
  constexpr std::int64_t kM = 1030, kN = 4104, kK = 4096;
  const TestWeight w(w_dtype, 2 * kN, kK, random_values(static_cast<std::size_t>(2 * kN * kK), 1, 1.0 / 64));
  FencedMatrix x(x_dtype, kM, kK, random_values(static_cast<std::size_t>(kM * kK), 2));
  FencedMatrix out(x_dtype, kM, kN, kN + 8), both(x_dtype, kM, 2 * kN);
  const GemmArguments a{x.view(), w.weight(), std::nullopt, out.view(), false, false};
  if (!cpu->takes_gated_gemm(a, GatedActivation::kSwiGlu)) GTEST_SKIP() << "no such kernel";
  cpu->gated_gemm(a, GatedActivation::kSwiGlu, {});
  out.expect_fences_intact();
  cpu->gemm({x.view(), w.weight(), std::nullopt, both.view(), false, false}, {});
  const Values got = out.values(), of_both = both.values();
  for (std::size_t m = 0; m < kM; ++m) {
    for (std::size_t n = 0; n < kN; ++n) {
      const double gate = of_both[m * 2 * kN + n], up = of_both[m * 2 * kN + kN + n];
      const double activated = gate / (1 + std::exp(-gate));
      // gate, up and the result are rounded to 8 bits; SwiGLU's slope is at most 1.1.
      const double bound = (1.1 * std::abs(gate) + 2 * std::abs(activated)) * std::abs(up) / 256 + 1e-4;
      ASSERT_NEAR(got[m * kN + n], activated * up, bound) << m << ", " << n;
    }
  }
}

TEST_P(OpsGemm, OfNormedRowsErrsAtMostTwiceAsMuchAsNormThenProduct) {
  int num_done = 0;
  // Columns: one step, ragged, not a whole number of steps, as many as rows have; rows: fewer than blocks,
  // ragged.
  const std::vector<Shape> shapes = {{1, 4, 8},      {1, 36, 264},  {2, 20, 896},  {1, 1032, 1024},
                                     {2, 300, 4096}, {1, 4400, 72}, {1, 64, 8192}, {1, 40, 2056},
                                     {4, 96, 2056},  {33, 160, 264}};
  for (const Shape& given : some_if_sanitized(shapes)) {
    Shape s = given;
    s.k = whole_blocks(w_dtype, s.k);
    SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k);
    const std::size_t mn = static_cast<std::size_t>(s.m * s.n);
    const std::array norm_dtypes{block_format(w_dtype).elements > 1 ? DType::kF32 : w_dtype, DType::kF32};
    const TestWeight bias(DType::kF32, 1, s.n, random_values(static_cast<std::size_t>(s.n), 2));
    const auto is_taken = [&](DType norm_dtype) {
      FencedMatrix residual(DType::kF32, s.m, s.k, s.k + 4), out(x_dtype, s.m, s.n, s.n + 3);
      NormedGemmArguments a;
      a.gemm = {residual.view(), without_data(w_dtype, s.n, s.k), bias.weight(), out.view(), false, false};
      a.norm_weight = without_data(norm_dtype, 1, s.k);
      a.eps = NormedRows::kEps;
      return cpu->takes_normed_gemm(a);
    };
    if (std::none_of(norm_dtypes.begin(), norm_dtypes.end(), is_taken)) continue;
    const TestWeight w(w_dtype, s.n, s.k, random_values(static_cast<std::size_t>(s.n * s.k), 1));
    for (const DType norm_dtype : norm_dtypes) {
      // Squares of the second overflow.
      for (const double scale : {1.0, 1e30}) {
        NormedRows rows(*reference, s, norm_dtype, x_dtype, scale);
        FencedMatrix out(x_dtype, s.m, s.n, s.n + 3);
        NormedGemmArguments a;
        a.gemm = {rows.residual.view(), w.weight(), bias.weight(), out.view(), false, false};
        a.norm_weight = rows.norm.weight();
        a.eps = NormedRows::kEps;
        if (!cpu->takes_normed_gemm(a)) continue;
        ++num_done;
        FencedMatrix x(DType::kF64, s.m, s.k, rows.exact), exact(DType::kF64, s.m, s.n);
        reference->gemm({x.view(), w.weight(), bias.weight(), exact.view(), false, false}, {});
        const Values naive = naive_gemm(rows.naive, w.values(), s, bias.values(), {});
        cpu->normed_gemm(a, {});
        expect_at_most_twice_naive(out.values(), naive, exact.values(), x_dtype);
        out.expect_fences_intact();
        if (s.n % 4 != 0) continue;
        FencedMatrix gated(x_dtype, s.m, s.n / 2, s.n / 2 + 5), exact_gated(DType::kF64, s.m, s.n / 2),
            naive_gated(DType::kF32, s.m, s.n / 2);
        a.gemm.out = gated.view();
        a.activation = GatedActivation::kGeGlu;
        ASSERT_TRUE(cpu->takes_normed_gemm(a));
        cpu->normed_gemm(a, {});
        FencedMatrix naive_both(DType::kF32, s.m, s.n, rounded(naive, x_dtype));
        for (const auto& [both, to] :
             {std::pair{&exact, &exact_gated}, std::pair{&naive_both, &naive_gated}}) {
          Matrix gate = both->view(), up = both->view();
          gate.columns = up.columns = s.n / 2;
          up.data = both->data() + dtype_bytes(gate.dtype, static_cast<std::size_t>(s.n / 2));
          FencedMatrix activated(gate.dtype, s.m, s.n / 2, Values(mn / 2));
          reference->gated_activation({GatedActivation::kGeGlu, gate, up, activated.view()}, {});
          to->fill(activated.values());
        }
        expect_at_most_twice_naive(gated.values(), naive_gated.values(), exact_gated.values(), x_dtype);
        gated.expect_fences_intact();
      }
    }
  }
  expect_done_where_there_is_a_kernel(num_done);
  if (num_done == 0) GTEST_SKIP() << "these types have no such kernel";
}

TEST_P(OpsGemm, BatchInvariantRowsDoNotDependOnTheBatchOrTheThreads) {
  constexpr std::int64_t kMost = 64;
  constexpr std::int64_t kN = 50;
  const std::int64_t k = whole_blocks(w_dtype, 416);
  const TestWeight w(w_dtype, kN, k, random_values(static_cast<std::size_t>(kN * k), 1));
  FencedMatrix x(x_dtype, kMost, k, random_values(static_cast<std::size_t>(kMost * k), 2));
  for_each_simd_target([&] {
    FencedMatrix all(x_dtype, kMost, kN);
    cpu->gemm({x.view(), w.weight(), std::nullopt, all.view(), false, true}, {});
    const Values expected = all.values();
    for (const int threads : {1, 2}) {
      if (threads > 1 && backend_is_slow()) continue;
      set_num_threads(threads);
      for (std::int64_t m = 1; m <= kMost; m += backend_is_slow() ? 9 : 1) {
        // The last m rows, so that a row's place changes too.
        Matrix part = x.view();
        part.rows = m;
        part.data = x.data() + dtype_bytes(x_dtype, static_cast<std::size_t>((kMost - m) * k));
        FencedMatrix out(x_dtype, m, kN);
        cpu->gemm({part, w.weight(), std::nullopt, out.view(), false, true}, {});
        ASSERT_EQ(out.values(), Values(expected.end() - m * kN, expected.end())) << m << " rows";
      }
    }
    set_num_threads(0);
  });
}

TEST_P(OpsGemm, BatchInvariantRowsOfManyColumnsDoNotDependOnTheBatch) {
  if (tested_ops_are_slow() && w_dtype != x_dtype && w_dtype != DType::kQ4_K)
    GTEST_SKIP() << "the same sums of other weights, which take minutes here";
  struct Case {
    Shape all;
    std::vector<std::int64_t> rows;
  };
  // Sums that blocks of a GPU share, more rows than one kernel takes at once, as many as another takes, and
  // results that are gated.
  std::vector<Case> cases = {{{130, 208, backend_is_slow() ? 520 : 4104}, {1, 2, 3, 17, 64, 65}}};
  if (w_dtype == x_dtype && !backend_is_slow()) {
    cases.push_back({{1000, 208, 4104}, {1, 17, 65, 256, 700}});
    cases.push_back({{300, 8720, 264}, {3, 64, 130, 257}});
  }
  for (const Case& c : cases) {
    const auto [most, n, columns_of_x] = c.all;
    const std::int64_t k = whole_blocks(w_dtype, columns_of_x);
    const TestWeight w(w_dtype, n, k, random_values(static_cast<std::size_t>(n * k), 1, 0.05));
    FencedMatrix x(x_dtype, most, k, random_values(static_cast<std::size_t>(most * k), 2));
    for (const bool is_gated : {false, true}) {
      const std::int64_t columns = is_gated ? n / 2 : n;
      const auto product = [&, most = most](std::int64_t rows) {
        FencedMatrix out(x_dtype, rows, columns);
        const GemmArguments a{
            rows_of(x.view(), most - rows, rows), w.weight(), std::nullopt, out.view(), false, true};
        if (is_gated && !cpu->takes_gated_gemm(a, GatedActivation::kSwiGlu)) return Values();
        if (is_gated) {
          cpu->gated_gemm(a, GatedActivation::kSwiGlu, {});
        } else {
          cpu->gemm(a, {});
        }
        return out.values();
      };
      const Values all = product(most);
      for (const std::int64_t rows : c.rows) {
        if (backend_is_slow() && rows > 3) continue;
        const Values last = product(rows);
        ASSERT_EQ(last.empty(), all.empty()) << rows << " rows";
        if (!all.empty()) {
          ASSERT_EQ(last, Values(all.end() - rows * columns, all.end())) << rows << " of " << most << " rows";
        }
      }
    }
  }
}

TEST_P(OpsGemm, TakesLargeValues) {
  // Products near the largest fp32 number that the sum of 8 leaves finite.
  const double large = x_dtype == DType::kF16 ? 100 : 1e18;
  const double other = w_dtype == DType::kF32 || w_dtype == DType::kBF16 ? 1e18 : 80;
  const std::int64_t k = whole_blocks(w_dtype, 64);
  for (const std::int64_t m : {1, 40}) {
    const TestWeight w(w_dtype, 20, k, Values(static_cast<std::size_t>(20 * k), other));
    FencedMatrix x(x_dtype, m, k, Values(static_cast<std::size_t>(m * k), large));
    FencedMatrix exact(DType::kF64, m, 20);
    reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
    for_each_simd_target([&] {
      FencedMatrix out(DType::kF32, m, 20);
      cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
      // k equal terms: their sums' relative errors add up to at most k roundings.
      EXPECT_LE(max_error(out.values(), exact.values()),
                static_cast<double>(k) * 0x1p-24 * max_abs(exact.values()));
    });
  }
}

TEST(OpsGemm, OfEveryFormatErrsAtMostTwiceAsMuchAsANaiveSum) {
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  // The last: more blocks than the CPU takes apart at once, and some over.
  const std::vector<Shape> shapes = {{1, 37, 512},   {3, 5, 96},    {6, 18, 768},
                                     {21, 70, 1024}, {50, 35, 288}, {2, 3, 4384}};
  for (const DType w_dtype : kWeightDTypes) {
    for (Shape s : some_if_sanitized(shapes, 2)) {
      s.k = whole_blocks(w_dtype, s.k);
      SCOPED_TRACE(::testing::Message()
                   << dtype_name(w_dtype) << ", " << s.m << " x " << s.n << " x " << s.k);
      const TestWeight w(w_dtype, s.n, s.k, random_values(static_cast<std::size_t>(s.n * s.k), 1));
      for (const DType x_dtype : some_if_sanitized(kActivationDTypes, 3)) {
        if (tested_ops_are_slow() && x_dtype == DType::kF16) continue;
        FencedMatrix x(x_dtype, s.m, s.k, random_values(static_cast<std::size_t>(s.m * s.k), 3), s.k + 8);
        FencedMatrix exact(DType::kF64, s.m, s.n);
        reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
        const Values naive = naive_gemm(x.values(), w.values(), s, {}, {});
        for (const bool batch_invariant : {false, true}) {
          for_each_simd_target([&] {
            FencedMatrix out(x_dtype, s.m, s.n, s.n + 3);
            cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, batch_invariant}, {});
            expect_at_most_twice_naive(out.values(), naive, exact.values(), x_dtype);
            out.expect_fences_intact();
          });
        }
      }
    }
  }
}

/// Rows of x that AMD's matrix units take with weights of blocks: whole tiles of them and parts, of each
/// size. Sums of fp32 show what results rounded to 16 bits would hide: nothing of the weights may be rounded.
TEST(OpsGemm, OfEveryBlockFormatErrsAtMostTwiceAsMuchAsANaiveSumInFp32) {
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  // Columns of out around those of tiles, one block of k, blocks that fill steps and some over.
  const std::vector<Shape> shapes = {{9, 33, 32},   {16, 64, 256}, {17, 31, 288}, {32, 1, 512},
                                     {33, 65, 160}, {64, 40, 768}, {65, 130, 96}};
  for (const DType w_dtype : kWeightDTypes) {
    if (block_format(w_dtype).elements == 1) continue;
    for (Shape s : some_if_sanitized(shapes, 3)) {
      s.k = whole_blocks(w_dtype, s.k);
      SCOPED_TRACE(::testing::Message()
                   << dtype_name(w_dtype) << ", " << s.m << " x " << s.n << " x " << s.k);
      const std::size_t mn = static_cast<std::size_t>(s.m * s.n);
      const TestWeight w(w_dtype, s.n, s.k, random_values(static_cast<std::size_t>(s.n * s.k), 1));
      const TestWeight bias(DType::kF32, 1, s.n, random_values(static_cast<std::size_t>(s.n), 2));
      for (const DType x_dtype : kActivationDTypes) {
        const bool accumulate = x_dtype != DType::kF16;
        const Values start = random_values(mn, 4);
        FencedMatrix x(x_dtype, s.m, s.k, random_values(static_cast<std::size_t>(s.m * s.k), 3), s.k + 8);
        FencedMatrix exact(DType::kF64, s.m, s.n, rounded(start, DType::kF32));
        FencedMatrix out(DType::kF32, s.m, s.n, start, s.n + 3);
        reference->gemm({x.view(), w.weight(), bias.weight(), exact.view(), accumulate, false}, {});
        const Values naive = naive_gemm(x.values(), w.values(), s, bias.values(),
                                        accumulate ? rounded(start, DType::kF32) : Values());
        cpu->gemm({x.view(), w.weight(), bias.weight(), out.view(), accumulate, false}, {});
        expect_at_most_twice_naive(out.values(), naive, exact.values(), DType::kF32);
        out.expect_fences_intact();
      }
    }
  }
}

TEST(OpsGemm, NumbersThatAreNotFiniteReachTheirRowsOnlyWhateverTheFormat) {
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  constexpr std::int64_t kN = 19;
  for (const DType w_dtype : kWeightDTypes) {
    const std::int64_t k = whole_blocks(w_dtype, 800);
    SCOPED_TRACE(::testing::Message() << dtype_name(w_dtype) << ", k = " << k);
    const TestWeight w(w_dtype, kN, k, random_values(static_cast<std::size_t>(kN * k), 1));
    for (const std::int64_t m : {1, 2, 6, 25}) {
      const Values finite = random_values(static_cast<std::size_t>(m * k), 3);
      Values spoilt = finite;
      // In the last row, at the end of the first block's first half.
      spoilt[static_cast<std::size_t>((m - 1) * k + 15)] = std::numeric_limits<double>::quiet_NaN();
      FencedMatrix x(DType::kF32, m, k, spoilt), other(DType::kF32, m, k, finite);
      for (const bool batch_invariant : {false, true}) {
        for_each_simd_target([&] {
          FencedMatrix out(DType::kF32, m, kN, kN + 3), expected(DType::kF32, m, kN, kN + 3);
          cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, batch_invariant}, {});
          cpu->gemm({other.view(), w.weight(), std::nullopt, expected.view(), false, batch_invariant}, {});
          const Values got = out.values(), others = expected.values();
          for (std::size_t i = 0; i < got.size(); ++i) {
            if (static_cast<std::int64_t>(i) / kN == m - 1) {
              EXPECT_TRUE(std::isnan(got[i])) << i;
            } else if (m <= 6 || batch_invariant) {
              EXPECT_EQ(got[i], others[i]) << i;
            } else {  // of many rows another method may take those that are not finite
              EXPECT_NEAR(got[i], others[i], 1e-3) << i;
            }
          }
          out.expect_fences_intact();
        });
      }
    }
  }
}

class OpsGemmQ8 : public ::testing::TestWithParam<DType> {
 protected:
  const DType x_dtype = GetParam();
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
};

INSTANTIATE_TEST_SUITE_P(DTypes, OpsGemmQ8, ::testing::ValuesIn(kActivationDTypes),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

/// Q8_0 blocks as given: a scale and 32 values for each block of columns.
struct RawQ8 {
  std::vector<std::byte> bytes;
  Values values;
  Shape shape;

  RawQ8(const Shape& s, const std::function<float(std::int64_t)>& scale_of,
        const std::function<int(std::int64_t)>& value_of)
      : shape(s) {
    const std::int64_t blocks = s.n * s.k / formats::Q8_0::kElements;
    bytes.resize(static_cast<std::size_t>(blocks * formats::Q8_0::kBytes));
    for (std::int64_t block = 0; block < blocks; ++block) {
      std::byte* out = bytes.data() + block * formats::Q8_0::kBytes;
      const Half scale(scale_of(block));
      std::memcpy(out, &scale, sizeof scale);
      for (int i = 0; i < formats::Q8_0::kElements; ++i) {
        const auto value = static_cast<std::int8_t>(value_of(block * formats::Q8_0::kElements + i));
        std::memcpy(out + sizeof scale + i, &value, 1);
        values.push_back(static_cast<double>(static_cast<float>(scale)) * value);
      }
    }
  }
  Weight weight() const { return {bytes.data(), DType::kQ8_0, shape.n, shape.k, nullptr}; }
};

/// All int8 values in turn.
int any_int8(std::int64_t i) { return static_cast<int>(i * 37 % 256) - 128; }

TEST_P(OpsGemmQ8, Q8BlocksOfAnyScaleAndValue) {
  const std::int64_t k = 512, n = 40;
  for (const std::int64_t m : {1, 9, 20, 70}) {
    SCOPED_TRACE(m);
    const Shape s{m, n, k};
    // Scales of zero, of both signs, and of the smallest numbers.
    const RawQ8 w(
        s,
        [](std::int64_t block) {
          constexpr float kScales[] = {0.0f, 1.0f, -0.37f, 6e-8f, 3e-5f, -0.0f, 2.5f};
          return kScales[block % 7];
        },
        any_int8);
    FencedMatrix x(x_dtype, m, k, random_values(static_cast<std::size_t>(m * k), 3), k + 8);
    FencedMatrix exact(DType::kF64, m, n);
    reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
    for_each_simd_target([&] {
      FencedMatrix out(x_dtype, m, n, Values(static_cast<std::size_t>(m * n)), n + 3);
      cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
      expect_at_most_twice_naive(out.values(), naive_gemm(x.values(), w.values, s, {}, {}), exact.values(),
                                 x_dtype);
      out.expect_fences_intact();
    });
  }
}

/// Numbers that are subnormal in f16.
TEST_P(OpsGemmQ8, RowsOfSmallNumbersKeepTheirBits) {
  const std::int64_t k = 512, n = 40;
  for (const std::int64_t m : {1, 9, 20, 70}) {
    SCOPED_TRACE(m);
    const Shape s{m, n, k};
    const RawQ8 w(
        s, [](std::int64_t block) { return 0.01f * static_cast<float>(block % 7 + 1); }, any_int8);
    FencedMatrix x(x_dtype, m, k, random_values(static_cast<std::size_t>(m * k), 3, 1e-5));
    FencedMatrix exact(DType::kF64, m, n), out(DType::kF32, m, n);
    reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
    cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
    expect_at_most_twice_naive(out.values(), naive_gemm(x.values(), w.values, s, {}, {}), exact.values(),
                               DType::kF32);
  }
}

TEST_P(OpsGemmQ8, Q8BlocksThatAreNotFiniteReachTheirColumnsOnly) {
  const std::int64_t k = 512, n = 40;
  for (const std::int64_t m : {1, 9, 20, 70}) {
    SCOPED_TRACE(m);
    const Shape s{m, n, k};
    const auto make = [&](bool finite) {
      return RawQ8(
          s,
          [&](std::int64_t block) {
            const std::int64_t row = block * formats::Q8_0::kElements / k;
            if (finite || row % 5 != 2 || block % 3 != 0) return 0.01f;
            return row % 2 == 0 ? std::numeric_limits<float>::infinity()
                                : std::numeric_limits<float>::quiet_NaN();
          },
          any_int8);
    };
    const RawQ8 w = make(false), finite = make(true);
    FencedMatrix x(x_dtype, m, k, random_values(static_cast<std::size_t>(m * k), 3));
    FencedMatrix out(x_dtype, m, n), expected(x_dtype, m, n);
    cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
    cpu->gemm({x.view(), finite.weight(), std::nullopt, expected.view(), false, false}, {});
    const Values got = out.values(), other = expected.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (static_cast<std::int64_t>(i) % n % 5 == 2) {
        EXPECT_FALSE(std::isfinite(got[i])) << i;
      } else {
        EXPECT_EQ(got[i], other[i]) << i;
      }
    }
  }
}

TEST(OpsGemm, RowsOfAnyLengthInBf16) {
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  // Sizes for which libraries are known to generate code of their own, at some k.
  const std::vector<Shape> sizes = {{79, 28, 0}, {43, 148, 0}, {8, 144, 0}, {144, 40, 0}, {3, 20, 0}};
  for (Shape s : some_if_sanitized(sizes, 3)) {
    for (s.k = 1; s.k <= 130; s.k += backend_is_slow() ? 31 : 1) {
      SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k);
      const TestWeight w(DType::kBF16, s.n, s.k, random_values(static_cast<std::size_t>(s.n * s.k), 1));
      FencedMatrix x(DType::kBF16, s.m, s.k, random_values(static_cast<std::size_t>(s.m * s.k), 2));
      FencedMatrix exact(DType::kF64, s.m, s.n);
      reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
      const Values naive = naive_gemm(x.values(), w.values(), s, {}, {});
      for (const bool batch_invariant : {false, true}) {
        FencedMatrix out(DType::kBF16, s.m, s.n);
        cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, batch_invariant}, {});
        expect_at_most_twice_naive(out.values(), naive, exact.values(), DType::kBF16);
      }
    }
  }
}

TEST(OpsGemm, MixesDTypesOfInputAndOutput) {
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  const Shape s{20, 70, 100};
  const TestWeight w(DType::kBF16, s.n, s.k, random_values(static_cast<std::size_t>(s.n * s.k), 1));
  for (const std::int64_t m : {std::int64_t{1}, s.m}) {
    for (const DType x_dtype : kActivationDTypes) {
      FencedMatrix x(x_dtype, m, s.k, random_values(static_cast<std::size_t>(m * s.k), 3));
      FencedMatrix exact(DType::kF64, m, s.n);
      reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
      const Values naive = naive_gemm(x.values(), w.values(), {m, s.n, s.k}, {}, {});
      for (const DType out_dtype : kActivationDTypes) {
        for_each_simd_target([&] {
          FencedMatrix out(out_dtype, m, s.n);
          cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
          expect_at_most_twice_naive(out.values(), naive, exact.values(), out_dtype);
        });
      }
    }
  }
}

TEST(OpsGemm, MixesDTypesOfInputAndOutputWithQ8Weights) {
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  const std::int64_t n = 70, k = 512;
  const TestWeight w(DType::kQ8_0, n, k, random_values(static_cast<std::size_t>(n * k), 1));
  for (const std::int64_t m : {1, 20, 50}) {
    for (const DType x_dtype : kActivationDTypes) {
      FencedMatrix x(x_dtype, m, k, random_values(static_cast<std::size_t>(m * k), 3));
      FencedMatrix exact(DType::kF64, m, n);
      reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
      const Values naive = naive_gemm(x.values(), w.values(), {m, n, k}, {}, {});
      for (const DType out_dtype : kActivationDTypes) {
        SCOPED_TRACE(::testing::Message()
                     << m << " rows, " << dtype_name(x_dtype) << " to " << dtype_name(out_dtype));
        for_each_simd_target([&] {
          FencedMatrix out(out_dtype, m, n);
          cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
          expect_at_most_twice_naive(out.values(), naive, exact.values(), out_dtype);
        });
      }
    }
  }
}

TEST(OpsGemm, CallsFromSeveralThreadsDoNotDisturbEachOther) {
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  constexpr std::int64_t kN = 300;
  constexpr std::int64_t kK = 256;
  std::vector<std::thread> threads;
  std::vector<int> equal(4);
  const int repeats = backend_is_slow() ? 2 : 10;
  for (std::size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      // One row by streams, twenty by oneDNN or tiles, sixty with converted weights.
      const DType w_dtype = kWeightDTypes[t];
      const TestWeight w(w_dtype, kN, kK, random_values(kN * kK, 1));
      for (const std::int64_t m : {1, 20, 60}) {
        FencedMatrix x(DType::kF32, m, kK, random_values(static_cast<std::size_t>(m * kK), 2));
        FencedMatrix first(DType::kF32, m, kN);
        cpu->gemm({x.view(), w.weight(), std::nullopt, first.view(), false, false}, {});
        const Values expected = first.values();
        for (int i = 0; i < repeats; ++i) {
          FencedMatrix out(DType::kF32, m, kN);
          cpu->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
          equal[t] += out.values() == expected;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 3 * repeats));
}

TEST(OpsGemm, ReferenceIsTheSumOfProducts) {
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  // Small whole numbers: every sum is exact in any order.
  Values x_values, w_values;
  for (int i = 0; i < 3 * 32; ++i) x_values.push_back(i % 13 - 6);
  for (int i = 0; i < 4 * 32; ++i) w_values.push_back(i % 7 - 3);
  for (const DType w_dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    FencedMatrix x(DType::kF64, 3, 32, x_values);
    const TestWeight w(w_dtype, 4, 32, w_values);
    FencedMatrix out(DType::kF64, 3, 4);
    reference->gemm({x.view(), w.weight(), std::nullopt, out.view(), false, false}, {});
    const Values got = out.values();
    for (std::size_t m = 0; m < 3; ++m) {
      for (std::size_t n = 0; n < 4; ++n) {
        double sum = 0;
        for (std::size_t k = 0; k < 32; ++k) sum += x_values[m * 32 + k] * w_values[n * 32 + k];
        EXPECT_EQ(got[m * 4 + n], sum);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
