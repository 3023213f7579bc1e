// normed_gemm as attention layers have it: q, k and v at once, v's rows of a type of their own or not,
// rotated and appended to the cache or not.
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/factories.h"
#include "kernels/ops_testing.h"
#include "kernels/products_testing.h"

namespace tessera::testing {
namespace {

/// Of w's rows, and of those below them.
struct WeightTypes {
  DType upper;
  std::optional<DType> lower;
};

std::vector<WeightTypes> weight_types() {
  std::vector<WeightTypes> types;
  for (const DType dtype : kTunedWeightDTypes) types.push_back({dtype, std::nullopt});
  using enum DType;
  for (const auto& [upper, lower] : {std::pair(kQ4_K, kQ6_K),
                                     {kQ5_K, kQ6_K},
                                     {kQ3_K, kQ5_K},
                                     {kQ8_0, kQ6_K},
                                     {kQ5_0, kQ8_0},
                                     {kQ6_K, kQ4_K},
                                     {kBF16, kQ8_0},
                                     {kQ4_K, kIQ3_S}})
    types.push_back({upper, lower});
  return types;
}

using Types = std::tuple<DType, WeightTypes>;

std::string name_of(const Types& all) {
  const auto& [x, types] = all;
  std::string name = std::string(dtype_name(x)) + "_" + std::string(dtype_name(types.upper));
  if (types.lower) name += "_" + std::string(dtype_name(*types.lower));
  return name;
}

class OpsProjection : public ::testing::TestWithParam<Types> {
 protected:
  const DType x_dtype = std::get<0>(GetParam());
  const WeightTypes types = std::get<1>(GetParam());
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();

  /// So that a kernel does not go untested where there must be one.
  void expect_done_where_there_is_a_kernel(int num_done) const {
    const auto is_taken = [&](DType dtype) {
      const BlockFormat blocks = block_format(dtype);
      return x_dtype == dtype || (blocks.elements > 1 && dtype != DType::kIQ3_S);
    };
    const bool has_kernel = cpu->name() == "cuda" && x_dtype != DType::kF32 && is_taken(types.upper) &&
                            (!types.lower || is_taken(*types.lower));
    EXPECT_EQ(num_done > 0, has_kernel);
    if (num_done == 0) GTEST_SKIP() << "these types have no such kernel";
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, OpsProjection,
                         ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                                            ::testing::ValuesIn(weight_types())),
                         [](const auto& info) { return name_of(info.param); });

/// To ask a backend whether it takes such a product.
NormedGemmArguments without_numbers(const WeightTypes& types, std::int64_t upper, std::int64_t lower,
                                    const Matrix& x, const Matrix& out) {
  NormedGemmArguments a;
  a.gemm = {x,
            without_data(types.upper, types.lower ? upper : upper + lower, x.columns),
            std::nullopt,
            out,
            false,
            false};
  if (types.lower) a.lower = {without_data(*types.lower, lower, x.columns), std::nullopt};
  a.norm_weight = without_data(DType::kF32, 1, x.columns);
  return a;
}

/// w with its bias, in one part or in two.
class Weights {
 public:
  Weights(const WeightTypes& types, std::int64_t upper_rows, std::int64_t lower_rows, std::int64_t k)
      : upper_(part(types.upper, types.lower ? upper_rows : upper_rows + lower_rows, k, 1)),
        bias_(part(DType::kF32, 1, upper_rows + lower_rows, 2)) {
    if (types.lower) lower_.emplace(part(*types.lower, lower_rows, k, 3));
  }

  NormedGemmArguments product(const Matrix& x, const Matrix& out) const {
    NormedGemmArguments a;
    a.gemm = {x, upper_.weight(), bias_.weight(), out, false, false};
    if (lower_) {
      a.lower = {lower_->weight(), bias_.weight()};
      a.gemm.bias->columns = a.gemm.weight.rows;
      a.lower->bias->columns = a.lower->weight.rows;
      a.lower->bias->data = static_cast<const float*>(bias_.weight().data) + a.gemm.weight.rows;
    }
    return a;
  }
  /// Of rows that are normed already.
  Values exact(OpsBackend& reference, const Shape& s, const Values& normed) const {
    FencedMatrix x(DType::kF64, s.m, s.k, normed), out(DType::kF64, s.m, s.n);
    const NormedGemmArguments a = product(x.view(), out.view());
    if (a.lower) reference.gemm(only_lower_rows(a).gemm, {});
    reference.gemm(without_lower_rows(a).gemm, {});
    return out.values();
  }
  Values naive(const Shape& s, const Values& normed) const {
    Values w = upper_.values();
    if (lower_) w.insert(w.end(), lower_->values().begin(), lower_->values().end());
    return naive_gemm(normed, w, s, bias_.values(), {});
  }

 private:
  static TestWeight part(DType dtype, std::int64_t rows, std::int64_t columns, std::uint32_t seed) {
    return {dtype, rows, columns, random_values(static_cast<std::size_t>(rows * columns), seed)};
  }

  TestWeight upper_;
  std::optional<TestWeight> lower_;
  TestWeight bias_;
};

TEST_P(OpsProjection, ErrsAtMostTwiceAsMuchAsNormThenProducts) {
  struct Case {
    std::int64_t m, upper, lower, k;
  };
  // Rows of w: fewer than blocks have, ragged, more; of x: a kernel's least and most, and some between.
  const std::vector<Case> cases = {{1, 36, 21, 256},  {1, 5120, 1024, 512}, {2, 300, 40, 4096},
                                   {2, 50, 900, 768}, {3, 96, 33, 2048},    {4, 640, 128, 512},
                                   {5, 17, 47, 1280}, {6, 1000, 200, 256},  {7, 40, 16, 4352},
                                   {8, 300, 70, 512}, {9, 96, 32, 512},     {33, 160, 48, 256}};
  int num_done = 0;
  for (const auto& [m, upper, lower, k] : some_if_sanitized(cases)) {
    SCOPED_TRACE(::testing::Message() << m << " x (" << upper << " + " << lower << ") x " << k);
    const Shape s{m, upper + lower, k};
    FencedMatrix out(x_dtype, s.m, s.n, s.n + 3), none(DType::kF32, s.m, s.k, s.k + 4);
    if (!cpu->takes_normed_gemm(without_numbers(types, upper, lower, none.view(), out.view()))) continue;
    ++num_done;
    const Weights w(types, upper, lower, k);
    NormedRows rows(*reference, s, DType::kF32, x_dtype, 1.0);
    NormedGemmArguments a = w.product(rows.residual.view(), out.view());
    a.norm_weight = rows.norm.weight();
    a.eps = NormedRows::kEps;
    ASSERT_TRUE(cpu->takes_normed_gemm(a));
    cpu->normed_gemm(a, {});
    expect_at_most_twice_naive(out.values(), w.naive(s, rows.naive), w.exact(*reference, s, rows.exact),
                               x_dtype);
    out.expect_fences_intact();
  }
  expect_done_where_there_is_a_kernel(num_done);
}

TEST_P(OpsProjection, RotatesAndAppends) {
  constexpr int kHeads = 3, kKvHeads = 2, kPageSize = 4, kPages = 16;
  constexpr std::size_t kMostRows = 40;
  std::vector<std::int32_t> positions, sequences;  // each in a place of its own
  for (std::size_t i = 0; i < kMostRows; ++i) {
    positions.push_back(static_cast<std::int32_t>((6 + 13 * (i / 2)) % (kPages / 2 * kPageSize)));
    sequences.push_back(static_cast<std::int32_t>((i + 1) % 2));
  }
  const std::vector<std::int32_t> table = {2, 1, 4, 3, 14, 8, 6, 15, 0, 10, 5, 7, 9, 13, 12, 11};
  struct Case {
    std::int64_t rows;
    int head_dim;
  };
  int num_done = 0;
  for (const RopePairing pairing : {RopePairing::kHalves, RopePairing::kInterleaved}) {
    for (const Case& given : {Case{1, 32}, {2, 32}, {5, 32}, {16, 16}, {40, 128}}) {
      const std::int64_t m = given.rows;
      const int head_dim = given.head_dim;
      const std::int64_t q_width = kHeads * head_dim, kv_width = kKvHeads * head_dim;
      const std::int64_t width = q_width + 2 * kv_width;
      const int num_pairs = head_dim / 2;
      std::vector<float> frequencies;
      for (int i = 0; i < num_pairs; ++i)
        frequencies.push_back(static_cast<float>(std::pow(500.0, -static_cast<double>(i) / num_pairs)));
      SCOPED_TRACE(::testing::Message()
                   << m << " rows, head_dim " << head_dim << ", pairing " << static_cast<int>(pairing));
      const Shape s{m, width, block_format(types.upper).elements > 1 || types.lower ? 768 : 520};
      // A cache of pages, all NaN but where something is written.
      struct Cache {
        FencedMatrix k, v;
        Cache(DType dtype, std::int64_t columns) : k(dtype, kPages * kPageSize, columns), v(k) {}
      };
      const auto append = [&](FencedMatrix& to, Cache& of_rows) {
        RopeAppendArguments rope;
        rope.q = rope.k = rope.v = to.view();
        const DType dtype = rope.q.dtype;
        rope.q.columns = q_width;
        rope.k.columns = rope.v.columns = kv_width;
        rope.k.data = to.data() + dtype_bytes(dtype, static_cast<std::size_t>(q_width));
        rope.v.data = to.data() + dtype_bytes(dtype, static_cast<std::size_t>(q_width + kv_width));
        rope.num_heads = kHeads;
        rope.num_kv_heads = kKvHeads;
        rope.head_dim = head_dim;
        rope.positions = positions.data();
        rope.sequences = sequences.data();
        rope.inverse_frequencies = frequencies.data();
        rope.num_pairs = num_pairs;
        rope.attention_factor = 1.25f;
        rope.pairing = pairing;
        rope.cache = {of_rows.k.data(), of_rows.v.data(), dtype,  kPageSize * kv_width, kv_width,
                      head_dim,         kPageSize,        kPages, table.data(),         kPages / 2};
        return rope;
      };
      Cache cache(x_dtype, kv_width);
      FencedMatrix none(DType::kF32, s.m, s.k, s.k + 4), out(x_dtype, s.m, s.n, s.n + 3);
      NormedGemmArguments a = without_numbers(types, q_width + kv_width, kv_width, none.view(), out.view());
      a.rope = append(out, cache);
      if (!cpu->takes_normed_gemm(a)) continue;
      ++num_done;
      const Weights w(types, q_width + kv_width, kv_width, s.k);
      NormedRows rows(*reference, s, DType::kF32, x_dtype, 1.0);
      const auto expected = [&](const Values& normed, DType dtype, Cache& of_rows) {
        FencedMatrix rotated(
            dtype, s.m, s.n,
            dtype == DType::kF64 ? w.exact(*reference, s, normed) : rounded(w.naive(s, normed), x_dtype));
        reference->rope_append(append(rotated, of_rows), {});
        return rotated.values();
      };
      Cache exact_cache(DType::kF64, kv_width), naive_cache(DType::kF32, kv_width);
      const Values exact = expected(rows.exact, DType::kF64, exact_cache);
      const Values naive = expected(rows.naive, DType::kF32, naive_cache);
      a = w.product(rows.residual.view(), out.view());
      a.norm_weight = rows.norm.weight();
      a.eps = NormedRows::kEps;
      a.rope = append(out, cache);
      ASSERT_TRUE(cpu->takes_normed_gemm(a));
      cpu->normed_gemm(a, {});
      out.expect_fences_intact();
      const auto q_of = [&](const Values& all) {
        Values q;
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (static_cast<std::int64_t>(i) % width < q_width) q.push_back(all[i]);
        }
        return q;
      };
      expect_at_most_twice_naive(q_of(out.values()), q_of(naive), q_of(exact), x_dtype);
      for (FencedMatrix Cache::*part : {&Cache::k, &Cache::v}) {
        const Values got = (cache.*part).values();
        const Values exact_part = (exact_cache.*part).values(), naive_part = (naive_cache.*part).values();
        Values written[3];
        for (std::size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(std::isnan(got[i]), std::isnan(exact_part[i])) << "element " << i;
          if (std::isnan(got[i])) continue;
          written[0].push_back(got[i]);
          written[1].push_back(naive_part[i]);
          written[2].push_back(exact_part[i]);
        }
        ASSERT_EQ(written[0].size(), static_cast<std::size_t>(m * kv_width));
        expect_at_most_twice_naive(written[0], written[1], written[2], x_dtype);
        (cache.*part).expect_fences_intact();
      }
    }
  }
  expect_done_where_there_is_a_kernel(num_done);
}

}  // namespace
}  // namespace tessera::testing
