// RoPE: frequencies and rotations as transformers computes them, identities of rotations, and the CPU against
// the fp64 reference.
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "backends/factories.h"
#include "kernels/ops_testing.h"

namespace tessera::testing {
namespace {

RopeConfig config_of(const nlohmann::json& p) {
  RopeConfig config;
  config.theta = p.at("rope_theta").get<float>();
  const std::string type = p.at("rope_type").get<std::string>();
  if (type == "linear") config.linear = RopeLinearScaling{p.at("factor").get<float>()};
  if (type == "llama3") {
    config.llama3 = RopeLlama3Scaling{p.at("factor").get<float>(), p.at("low_freq_factor").get<float>(),
                                      p.at("high_freq_factor").get<float>(),
                                      p.at("original_max_position_embeddings").get<std::int64_t>()};
  }
  if (type == "yarn") {
    RopeYarnScaling yarn;
    yarn.factor = p.at("factor").get<float>();
    yarn.beta_fast = p.value("beta_fast", 32.0f);
    yarn.beta_slow = p.value("beta_slow", 1.0f);
    yarn.original_max_seq_len = p.at("original_max_position_embeddings").get<std::int64_t>();
    if (p.contains("attention_factor")) yarn.attention_factor = p.at("attention_factor").get<float>();
    yarn.truncate = p.value("truncate", true);
    config.yarn = yarn;
  }
  if (type == "longrope") {
    RopeLongScaling longrope;
    longrope.short_divisors = p.at("short_factor").get<std::vector<float>>();
    longrope.long_divisors = p.at("long_factor").get<std::vector<float>>();
    longrope.original_max_seq_len = p.at("original_max_position_embeddings").get<std::int64_t>();
    // By the paper's equation 6, unless given; the fixture's contexts are of 131,072 tokens.
    const double original = static_cast<double>(longrope.original_max_seq_len);
    const double factor = p.value("factor", 131072 / original);
    longrope.attention_factor =
        p.value("attention_factor", static_cast<float>(std::sqrt(1 + std::log(factor) / std::log(original))));
    config.longrope = longrope;
  }
  return config;
}

TEST(RopeFrequencies, AreThoseOfTransformers) {
  std::ifstream file(std::string(TESSERA_FIXTURES) + "/ops/rope.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 15u);
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  for (const nlohmann::json& c : cases) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    const std::vector<double> expected = c.at("inverse_frequencies").get<std::vector<double>>();
    RopeConfig config = config_of(c.at("parameters"));
    const int head_dim = c.at("head_dim").get<int>();
    const int rotary_dim = static_cast<int>(2 * expected.size());
    config.rotary_dim = rotary_dim == head_dim ? 0 : rotary_dim;
    const RopeFrequencies got = rope_frequencies(config, head_dim, c.at("parameters").value("seq_len", 1));
    ASSERT_EQ(got.inverse_frequencies.size(), expected.size());
    EXPECT_NEAR(got.attention_factor, c.at("attention_factor").get<double>(), 0x1p-23);
    // The fixture's fp32: the rounded exponent counts ln(theta) times, then about 20 roundings.
    const double tolerance = (std::log(config.theta) + 20) * 0x1p-24;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(got.inverse_frequencies[i], expected[i], tolerance * expected[i]) << i;
    }

    const std::vector<std::int32_t> positions = c.at("positions").get<std::vector<std::int32_t>>();
    const Values x_values = c.at("x").get<Values>();
    const Values rotated = c.at("rotated").get<Values>();
    FencedMatrix x(DType::kF64, static_cast<std::int64_t>(positions.size()), rotary_dim, x_values);
    reference->rope({x.view(), 1, rotary_dim, positions.data(), got.inverse_frequencies.data(),
                     rotary_dim / 2, got.attention_factor, RopePairing::kHalves},
                    {});
    const Values values = x.values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      // The fixture's angles are fp32 products of frequencies that differ by `tolerance`.
      const double position = positions[i / static_cast<std::size_t>(rotary_dim)];
      const double angle_error = position * (tolerance + 0x1p-24) + 4 * 0x1p-24;
      EXPECT_NEAR(values[i], rotated[i], 2 * max_abs(x_values) * got.attention_factor * angle_error) << i;
    }
  }
}

TEST(RopeFrequencies, AreDividedByTheDivisors) {
  RopeConfig config;
  const std::vector<float> plain = rope_frequencies(config, 8).inverse_frequencies;
  config.frequency_divisors = {1, 2, 4, 8};
  const std::vector<float> divided = rope_frequencies(config, 8).inverse_frequencies;
  for (std::size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(divided[i] * config.frequency_divisors[i], plain[i]);
}

TEST(RopeFrequencies, OfPairsThatArentTurnedAreZero) {
  RopeConfig config;
  const std::vector<float> all = rope_frequencies(config, 16).inverse_frequencies;
  config.num_turned_pairs = 3;
  const std::vector<float> some = rope_frequencies(config, 16).inverse_frequencies;
  ASSERT_EQ(some.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(some[i], i < 3 ? all[i] : 0) << i;
}

TEST(RopeFrequencies, RejectWhatMakesNoSense) {
  const auto expect_rejected = [](const RopeConfig& config, int head_dim, const std::string& part) {
    expect_error([&] { rope_frequencies(config, head_dim); }, ErrorCode::kInvalidArgument, part);
  };
  RopeConfig c;
  expect_rejected(c, 0, "head_dim is 0");
  expect_rejected(c, 7, "rotary_dim is 0 with head_dim 7");
  c.rotary_dim = 5;
  expect_rejected(c, 8, "rotary_dim is 5");
  c.rotary_dim = -2;
  expect_rejected(c, 8, "rotary_dim is -2");
  c.rotary_dim = 10;
  expect_rejected(c, 8, "rotary_dim is 10");
  c = {};
  c.num_turned_pairs = 5;
  expect_rejected(c, 8, "num_turned_pairs is 5; expected 0 to 4");
  c = {};
  c.theta = 0;
  expect_rejected(c, 8, "theta is 0");
  c.theta = std::nanf("");
  expect_rejected(c, 8, "theta is nan");
  c = {};
  c.linear = RopeLinearScaling{0};
  expect_rejected(c, 8, "linear.factor is 0");
  c.linear->factor = 2;
  c.yarn = RopeYarnScaling{};
  expect_rejected(c, 8, "more than one");
  c.linear.reset();
  expect_rejected(c, 8, "yarn.original_max_seq_len is 0");
  c = {};
  c.llama3 = RopeLlama3Scaling{8, 4, 4, 8192};
  expect_rejected(c, 8, "high_freq_factor is 4");
  c = {};
  c.frequency_divisors = {1, 2};
  expect_rejected(c, 8, "frequency_divisors has 2 elements");
  c.frequency_divisors = {1, 2, 0, 1};
  expect_rejected(c, 8, "frequency_divisors[2] is 0");
  c = {};
  c.longrope = RopeLongScaling{{1, 1, 1}, {1, 1, 1, 1}, 0, 1};
  expect_rejected(c, 8, "longrope.original_max_seq_len is 0");
  c.longrope->original_max_seq_len = 8;
  expect_rejected(c, 8, "longrope.short_divisors has 3 elements");
  c.longrope->attention_factor = std::nanf("");
  expect_rejected(c, 8, "longrope.attention_factor is nan");
}

using Case = std::tuple<DType, RopePairing>;

class OpsRope : public ::testing::TestWithParam<Case> {
 protected:
  const DType dtype = std::get<0>(GetParam());
  const RopePairing pairing = std::get<1>(GetParam());
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
};

INSTANTIATE_TEST_SUITE_P(Cases, OpsRope,
                         ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                                            ::testing::Values(RopePairing::kHalves,
                                                              RopePairing::kInterleaved)),
                         [](const auto& info) {
                           return std::string(dtype_name(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) == RopePairing::kHalves ? "_halves"
                                                                                   : "_interleaved");
                         });

/// cos and sin off by 2^-23 and three roundings, on both elements of a pair; then the rounding to dtype.
double rotation_bound(double largest, double attention_factor, DType dtype) {
  return attention_factor * largest * (2 * 5 * 0x1p-24 + 2 * unit_roundoff(dtype));
}

TEST_P(OpsRope, RotatesLikeTheReference) {
  const std::vector<std::int32_t> positions = {0, 1, 5, 1000, 131071, 3000000};
  const std::int64_t tokens = static_cast<std::int64_t>(positions.size());
  for (const std::pair<int, int>& shape : std::vector<std::pair<int, int>>{
           {2, 1}, {6, 3}, {7, 3}, {64, 32}, {80, 40}, {80, 20}, {128, 64}, {96, 0}, {66, 33}, {512, 256}}) {
    const int head_dim = shape.first;
    const int num_pairs = shape.second;
    SCOPED_TRACE(head_dim);
    constexpr int kHeads = 3;
    const float attention_factor = head_dim == 64 ? 1.25f : 1.0f;
    std::vector<float> frequencies;
    for (int i = 0; i < num_pairs; ++i) {
      frequencies.push_back(static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / num_pairs)));
    }
    const std::int64_t width = kHeads * head_dim;
    const Values values = random_values(static_cast<std::size_t>(tokens * width), 1);
    FencedMatrix stored(dtype, tokens, width, values);
    FencedMatrix exact(DType::kF64, tokens, width, stored.values());
    reference->rope({exact.view(), kHeads, head_dim, positions.data(), frequencies.data(), num_pairs,
                     attention_factor, pairing},
                    {});
    for_each_simd_target([&] {
      FencedMatrix x(dtype, tokens, width, values, width + 3);
      cpu->rope({x.view(), kHeads, head_dim, positions.data(), frequencies.data(), num_pairs,
                 attention_factor, pairing},
                {});
      EXPECT_LE(max_error(x.values(), exact.values()),
                rotation_bound(max_abs(values), attention_factor, dtype));
      x.expect_fences_intact();
      // What is not rotated stays as it was.
      const Values got = x.values();
      const Values before = stored.values();
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (static_cast<int>(i % static_cast<std::size_t>(head_dim)) >= 2 * num_pairs) {
          EXPECT_EQ(got[i], before[i]);
        }
      }
    });
  }
}

TEST_P(OpsRope, TurnsByTheSumOfTwoPositions) {
  // R(a) R(b) = R(a + b), and the product of a rotated q and k depends on the distance only.
  constexpr int kHeadDim = 16;
  const std::vector<float> frequencies = {1, 0.5f, 0.25f, 0.125f, 0.1f, 0.01f, 0.003f, 0.0001f};
  const auto rotate = [&](const Values& x, std::int32_t position) {
    FencedMatrix m(DType::kF64, 1, kHeadDim, x);
    reference->rope({m.view(), 1, kHeadDim, &position, frequencies.data(), 8, 1, pairing}, {});
    return m.values();
  };
  const Values q = random_values(kHeadDim, 1);
  const Values k = random_values(kHeadDim, 2);
  const auto dot = [](const Values& a, const Values& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  EXPECT_LE(max_error(rotate(rotate(q, 13), 29), rotate(q, 42)), 1e-14);
  EXPECT_NEAR(dot(rotate(q, 100), rotate(k, 90)), dot(rotate(q, 17), rotate(k, 7)), 1e-13);
  EXPECT_GT(std::abs(dot(rotate(q, 100), rotate(k, 90)) - dot(q, k)), 1e-3);
}

TEST(OpsRope, PairingsAreTheSameUpToAPermutation) {
  constexpr int kHeadDim = 20;
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::vector<float> frequencies = {1, 0.5f, 0.25f, 0.125f, 0.1f, 0.01f, 0.003f, 0.0001f, 0.7f, 0.6f};
  const std::int32_t position = 11;
  const Values halves_values = random_values(kHeadDim, 1);
  Values interleaved_values(kHeadDim);
  const auto place = [](std::size_t i) { return i < 10 ? 2 * i : 2 * (i - 10) + 1; };
  for (std::size_t i = 0; i < kHeadDim; ++i) interleaved_values[place(i)] = halves_values[i];
  FencedMatrix halves(DType::kF32, 1, kHeadDim, halves_values);
  FencedMatrix interleaved(DType::kF32, 1, kHeadDim, interleaved_values);
  for (const auto& [matrix, pairing] :
       {std::pair{&halves, RopePairing::kHalves}, std::pair{&interleaved, RopePairing::kInterleaved}}) {
    cpu->rope({matrix->view(), 1, kHeadDim, &position, frequencies.data(), 10, 1, pairing}, {});
  }
  const Values a = halves.values();
  const Values b = interleaved.values();
  for (std::size_t i = 0; i < kHeadDim; ++i) EXPECT_EQ(a[i], b[place(i)]);
}

/// A cache of pages whose every byte is 0xff, with room between tokens, heads and pages.
struct TestCache {
  static constexpr int kPageSize = 4;
  static constexpr int kKvHeads = 2;
  std::int64_t head_stride, token_stride, page_stride, num_pages;
  std::vector<std::byte> k, v;
  DType dtype;

  TestCache(DType cache_dtype, int head_dim, std::int64_t pages)
      : head_stride(head_dim + 1),
        token_stride(kKvHeads * head_stride + 3),
        page_stride(kPageSize * token_stride + 5),
        num_pages(pages),
        dtype(cache_dtype) {
    k.assign(dtype_bytes(dtype, static_cast<std::size_t>(num_pages * page_stride)), std::byte{0xff});
    v = k;
  }

  KvCacheView view(const std::int32_t* block_table, std::int64_t block_table_stride) {
    return {k.data(),    v.data(),  dtype,     page_stride, token_stride,
            head_stride, kPageSize, num_pages, block_table, block_table_stride};
  }
};

TEST_P(OpsRope, AppendWritesRotatedKeysAndValuesWhereTheTokensAre) {
  constexpr int kHeads = 4;
  constexpr int kKvHeads = TestCache::kKvHeads;
  constexpr int kHeadDim = 38;
  constexpr int kPairs = 17;
  std::vector<float> frequencies;
  for (int i = 0; i < kPairs; ++i) frequencies.push_back(static_cast<float>(std::pow(500.0, -i / 17.0)));
  // Two sequences, one of them with a hole in its pages' order; or one page of 4 tokens for each.
  const std::vector<std::int32_t> table = {5, 2, 7, 0, 3, 6};
  const std::vector<std::int32_t> paged_positions = {0, 1, 2, 3, 4, 11, 6, 7, 8};
  const std::vector<std::int32_t> paged_sequences = {0, 0, 0, 0, 0, 0, 1, 1, 1};
  const std::vector<std::int32_t> contiguous_positions = {3, 1, 0, 2, 2, 0, 1, 3, 1};
  const std::vector<std::int32_t> contiguous_sequences = {0, 0, 0, 0, 7, 7, 7, 7, 2};
  constexpr std::int64_t kTokens = 9;
  constexpr std::int64_t kWidth = (kHeads + 2 * kKvHeads) * kHeadDim;
  const Values values = random_values(kTokens * kWidth, 1);
  for (const bool paged : {true, false}) {
    const std::vector<std::int32_t>& positions = paged ? paged_positions : contiguous_positions;
    const std::vector<std::int32_t>& sequences = paged ? paged_sequences : contiguous_sequences;
    for (const DType cache_dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
      SCOPED_TRACE(::testing::Message() << "paged " << paged << ", cache " << dtype_name(cache_dtype));
      const auto run = [&](OpsBackend& backend, FencedMatrix& rows, TestCache& cache) {
        Matrix q = rows.view();
        Matrix k = q;
        Matrix v = q;
        const DType row_dtype = q.dtype;
        q.columns = kHeads * kHeadDim;
        k.columns = v.columns = kKvHeads * kHeadDim;
        k.data = rows.data() + dtype_bytes(row_dtype, kHeads * kHeadDim);
        v.data = rows.data() + dtype_bytes(row_dtype, (kHeads + kKvHeads) * kHeadDim);
        backend.rope_append(
            {q, k, v, kHeads, kKvHeads, kHeadDim, positions.data(), sequences.data(), frequencies.data(),
             kPairs, 1.5f, pairing, cache.view(paged ? table.data() : nullptr, paged ? 3 : 0)},
            {});
      };
      FencedMatrix stored(dtype, kTokens, kWidth, values);
      FencedMatrix exact_rows(DType::kF64, kTokens, kWidth, stored.values());
      TestCache exact(DType::kF64, kHeadDim, 8);
      run(*reference, exact_rows, exact);
      for_each_simd_target([&] {
        FencedMatrix rows(dtype, kTokens, kWidth, values, kWidth + 2);
        TestCache cache(cache_dtype, kHeadDim, 8);
        run(*cpu, rows, cache);
        rows.expect_fences_intact();
        EXPECT_LE(max_error(rows.values(), exact_rows.values()), rotation_bound(max_abs(values), 1.5, dtype));
        // Where the reference wrote nothing there is still NaN.
        for (std::int64_t i = 0; i < cache.num_pages * cache.page_stride; ++i) {
          for (const auto& [got_bytes, exact_bytes] :
               {std::pair{&cache.k, &exact.k}, std::pair{&cache.v, &exact.v}}) {
            const double got = load_element(got_bytes->data(), cache_dtype, i);
            const double expected = load_element(exact_bytes->data(), DType::kF64, i);
            if (std::isnan(expected)) {
              ASSERT_TRUE(std::isnan(got)) << "element " << i << " was written";
            } else {
              ASSERT_NEAR(got, expected, rotation_bound(max_abs(values), 1.5, cache_dtype)) << i;
            }
          }
        }
      });
    }
  }
}

TEST_P(OpsRope, AppendRotatesLikeRope) {
  // Bit for bit, so that prefill and decode put the same keys into the cache. Few tokens, and many of more
  // heads than a GPU's block takes at once.
  constexpr int kHeadDim = 64;
  std::vector<float> frequencies;
  for (int i = 0; i < 32; ++i) frequencies.push_back(static_cast<float>(std::pow(10000.0, -i / 32.0)));
  for (const auto& [tokens, heads] : {std::pair{200, 1}, std::pair{515, 44}}) {
    SCOPED_TRACE(::testing::Message() << tokens << " tokens, " << heads << " heads");
    std::vector<std::int32_t> positions, sequences;
    for (std::int32_t t = 0; t < tokens; ++t) {
      positions.push_back(t);
      sequences.push_back(0);
    }
    const int width = heads * kHeadDim;
    const Values q_values = random_values(std::int64_t{tokens} * width, 1);
    const Values values = random_values(std::int64_t{tokens} * kHeadDim, 2);
    FencedMatrix rotated_q(dtype, tokens, width, q_values);
    FencedMatrix rotated_k(dtype, tokens, kHeadDim, values);
    for (const auto& [matrix, num_heads] : {std::pair{&rotated_q, heads}, std::pair{&rotated_k, 1}}) {
      cpu->rope({matrix->view(), num_heads, kHeadDim, positions.data(), frequencies.data(), 32, 1, pairing},
                {});
    }
    FencedMatrix q(dtype, tokens, width, q_values);
    FencedMatrix k(dtype, tokens, kHeadDim, values);
    FencedMatrix v(dtype, tokens, kHeadDim, values);
    FencedMatrix k_cache(dtype, tokens, kHeadDim);
    FencedMatrix v_cache(dtype, tokens, kHeadDim);
    const KvCacheView cache{k_cache.data(), v_cache.data(),
                            dtype,          std::int64_t{tokens} * kHeadDim,
                            kHeadDim,       kHeadDim,
                            tokens,         1,
                            nullptr,        0};
    cpu->rope_append({q.view(), k.view(), v.view(), heads, 1, kHeadDim, positions.data(), sequences.data(),
                      frequencies.data(), 32, 1, pairing, cache},
                     {});
    EXPECT_EQ(q.values(), rotated_q.values());
    EXPECT_EQ(k_cache.values(), rotated_k.values());
    EXPECT_EQ(v_cache.values(), v.values());
    EXPECT_EQ(k.values(), v.values());
  }
}

}  // namespace
}  // namespace tessera::testing
