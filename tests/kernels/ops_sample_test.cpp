// Sampling: the random numbers, the distribution that transformers leaves, the CPU against the reference.
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "backends/factories.h"
#include "kernels/ops_testing.h"
#include "ops/philox.h"

namespace tessera::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Philox, GivesThePublishedNumbers) {
  // The known answers that come with the paper's own implementation.
  const auto expect = [](std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key,
                         std::array<std::uint32_t, 4> answer) {
    EXPECT_EQ(philox_4x32_10(counter, key), answer);
  };
  constexpr std::uint32_t kOnes = 0xffffffffu;
  expect({0, 0, 0, 0}, {0, 0}, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  expect({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  expect({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u},
         {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST(Philox, UniformFillsItsRangeEvenly) {
  constexpr int kBins = 64;
  constexpr int kDraws = 64000;
  std::vector<int> counts(kBins);
  for (std::uint64_t step = 0; step < kDraws; ++step) {
    const double u = sampling_uniform(12345, step);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++counts[static_cast<std::size_t>(u * kBins)];
  }
  double chi_square = 0;
  for (const int n : counts) chi_square += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 128);  // 63 degrees of freedom: a fair source is above this once in 300000 seeds
}

/// The reference once, beside the CPU.
std::vector<std::string> sampling_backends() {
  return tested_ops_are_the_cpus() ? std::vector<std::string>{"cpu", "reference"}
                                   : std::vector<std::string>{"cpu"};
}

/// One sequence's draw.
std::int32_t draw(OpsBackend& backend, FencedMatrix& logits, const SamplingParameters& parameters,
                  std::int64_t step, const std::vector<std::int32_t>& history = {}) {
  std::int32_t token = -1;
  const std::int32_t length = static_cast<std::int32_t>(history.size());
  backend.sample({logits.view(), &parameters, &step, history.empty() ? nullptr : history.data(), &length,
                  static_cast<std::int64_t>(history.size()), &token},
                 {});
  return token;
}

/// How often each token comes out of `draws` draws, many at a time.
std::vector<int> count_draws(OpsBackend& backend, const Values& logits, const SamplingParameters& parameters,
                             int draws, const std::vector<std::int32_t>& history) {
  constexpr int kBatch = 100;
  const std::size_t vocab_size = logits.size();
  Values rows;
  std::vector<std::int32_t> histories;
  for (int row = 0; row < kBatch; ++row) {
    rows.insert(rows.end(), logits.begin(), logits.end());
    histories.insert(histories.end(), history.begin(), history.end());
  }
  FencedMatrix matrix(DType::kF32, kBatch, static_cast<std::int64_t>(vocab_size), rows);
  const std::vector<SamplingParameters> all_parameters(kBatch, parameters);
  const std::vector<std::int32_t> lengths(kBatch, static_cast<std::int32_t>(history.size()));
  std::vector<int> counts(vocab_size);
  for (int first = 0; first < draws; first += kBatch) {
    std::vector<std::int64_t> steps(kBatch);
    std::iota(steps.begin(), steps.end(), first);
    std::vector<std::int32_t> tokens(kBatch, -1);
    backend.sample(
        {matrix.view(), all_parameters.data(), steps.data(), history.empty() ? nullptr : histories.data(),
         lengths.data(), static_cast<std::int64_t>(history.size()), tokens.data()},
        {});
    for (const std::int32_t token : tokens) ++counts.at(static_cast<std::size_t>(token));
  }
  return counts;
}

TEST(OpsSample, DrawsFromTheDistributionOfTransformers) {
  std::ifstream file(std::string(TESSERA_FIXTURES) + "/ops/sampling.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 17u);
  const int draws = backend_is_slow() ? 100 : 20000;
  for (const std::string& name : sampling_backends()) {
    const std::unique_ptr<OpsBackend> backend = make_tested_ops_backend(name);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << name << ", case " << i);
      const nlohmann::json& c = cases[i];
      SamplingParameters p;
      p.temperature = c.value("temperature", 1.0f);
      p.top_k = c.value("top_k", 0);
      p.top_p = c.value("top_p", 1.0f);
      p.min_p = c.value("min_p", 0.0f);
      p.repetition_penalty = c.value("repetition_penalty", 1.0f);
      p.seed = i;
      const std::vector<std::int32_t> history = c.value("history", std::vector<std::int32_t>());
      const Values logits = c.at("logits").get<Values>();
      const Values probabilities = c.at("probabilities").get<Values>();
      const std::vector<int> counts = count_draws(*backend, logits, p, draws, history);
      double chi_square = 0;
      int kept = 0;
      for (std::size_t token = 0; token < counts.size(); ++token) {
        const double expected = probabilities[token] * draws;
        if (expected == 0) {
          EXPECT_EQ(counts[token], 0) << "token " << token << " was to be left out";
        } else if (expected >= 5) {
          chi_square += (counts[token] - expected) * (counts[token] - expected) / expected;
          ++kept;
        }
      }
      // Far enough out for 34 cases: mean + 5 standard deviations of chi-square.
      EXPECT_LT(chi_square, kept + 5 * std::sqrt(2.0 * kept));
    }
  }
}

/// A batch of sequences with settings of all kinds.
struct MixedBatch {
  std::vector<SamplingParameters> parameters;
  std::vector<std::int64_t> steps;
  std::vector<std::int32_t> history, lengths;
  static constexpr std::int64_t kHistoryStride = 50;

  MixedBatch(std::size_t batch, std::int64_t vocab_size, std::mt19937& random)
      : parameters(batch), steps(batch), history(batch * kHistoryStride), lengths(batch) {
    const auto pick = [&](auto... values) {
      const std::vector<float> list = {static_cast<float>(values)...};
      return list[random() % list.size()];
    };
    for (std::size_t s = 0; s < batch; ++s) {
      SamplingParameters& p = parameters[s];
      p.temperature = pick(0, 0.3, 0.7, 1, 1.5, 10);
      p.top_k =
          static_cast<std::int32_t>(pick(0, 0, 1, 2, 40, 700, vocab_size - 1, vocab_size, vocab_size + 500));
      p.top_p = pick(1, 1, 0.99, 0.9, 0.5, 0.1, 1e-9);
      p.min_p = pick(0, 0, 0.001, 0.05, 0.5, 1);
      p.repetition_penalty = pick(1, 1.1, 1.5, 0.8);
      p.seed = random();
      steps[s] = static_cast<std::int64_t>(random() % 1000);
      lengths[s] = static_cast<std::int32_t>(random() % (kHistoryStride + 1));
    }
    for (std::int32_t& token : history) {
      token = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab_size));
    }
  }

  std::vector<std::int32_t> sample(OpsBackend& backend, const Matrix& logits) const {
    std::vector<std::int32_t> tokens(parameters.size(), -1);
    backend.sample({logits, parameters.data(), steps.data(), history.data(), lengths.data(), kHistoryStride,
                    tokens.data()},
                   {});
    return tokens;
  }
};

TEST(OpsSample, CpuDrawsTheTokensOfTheReference) {
  constexpr std::int64_t kBatch = 40;
  constexpr std::int64_t kVocab = 1500;
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  std::mt19937 random(1);
  const int rounds = backend_is_slow() ? 3 : 30;
  std::set<std::int32_t> different;
  for (const DType dtype : kActivationDTypes) {
    for (int round = 0; round < rounds; ++round) {
      const MixedBatch batch(kBatch, kVocab, random);
      const double scale = std::array{1.0, 3.0, 8.0}[random() % 3];
      FencedMatrix logits(dtype, kBatch, kVocab, random_values(kBatch * kVocab, random(), scale), kVocab + 3);
      const Values before = logits.values();
      const std::vector<std::int32_t> got = batch.sample(*cpu, logits.view());
      EXPECT_EQ(got, batch.sample(*reference, logits.view())) << round;
      EXPECT_EQ(logits.values(), before);
      different.insert(got.begin(), got.end());
    }
  }
  EXPECT_GT(different.size(), backend_is_slow() ? 100u : 500u);
}

/// Rows that are hard to cut: equals, nearly equals, gaps.
Values hard_logits(int kind, std::size_t n, std::mt19937& random) {
  Values x = random_values(n, random(), 3);
  const std::size_t one = random() % n;
  switch (kind) {
    case 0:  // all equal
      x.assign(n, 2.5);
      break;
    case 1:  // nothing but one
      x.assign(n, -kInfinity);
      x[one] = -3;
      break;
    case 2:  // equals at every cut
      for (double& v : x) v = v < -1 ? -0.0 : v < 2 ? 1 : 1.5;
      break;
    case 3:  // all but two nearly the same, with as much mass as the first
      for (double& v : x) v = -std::log(static_cast<double>(n)) + 1e-5 * v;
      x[random() % n] = -1e30;
      x[one] = 0;
      break;
    case 4:  // far apart
      for (double& v : x) v *= 1000;
      break;
    case 5:  // half of them hidden
      for (double& v : x) v = random() % 2 == 0 ? -kInfinity : v;
      x[one] = 1;
      break;
    default:  // close together
      for (double& v : x) v = 20 + v * 1e-3;
  }
  return x;
}
constexpr int kHardKinds = 7;

TEST(OpsSample, CpuDrawsTheTokensOfTheReferenceFromHardLogits) {
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  std::mt19937 random(2);
  std::vector<std::int64_t> vocab_sizes = {1, 2, 7, 300, 2048, 2049, 5001};
  if (!backend_is_slow()) vocab_sizes.insert(vocab_sizes.end(), {33333, 128256});
  for (const std::int64_t vocab_size : vocab_sizes) {
    const std::size_t n = static_cast<std::size_t>(vocab_size);
    const int repeats = n < 1000 ? 8 : 2;
    for (const DType dtype : kActivationDTypes) {
      if (backend_is_slow() && n > 2048 && dtype != DType::kF32) continue;
      const std::size_t rows = static_cast<std::size_t>(repeats * kHardKinds);
      const MixedBatch batch(rows, vocab_size, random);
      Values values;
      for (std::size_t row = 0; row < rows; ++row) {
        const Values x = hard_logits(static_cast<int>(row) % kHardKinds, n, random);
        values.insert(values.end(), x.begin(), x.end());
      }
      // Rows that stand at multiples of 16 bytes, and at none.
      FencedMatrix logits(dtype, static_cast<std::int64_t>(rows), vocab_size, values,
                          vocab_size + (random() % 2 == 0 ? 1 : 16 - vocab_size % 16));
      const std::vector<std::int32_t> got = batch.sample(*cpu, logits.view());
      const std::vector<std::int32_t> expected = batch.sample(*reference, logits.view());
      for (std::size_t row = 0; row < rows; ++row) {
        const SamplingParameters& p = batch.parameters[row];
        EXPECT_EQ(got[row], expected[row])
            << vocab_size << " " << dtype_name(dtype) << ", kind " << row % kHardKinds << ", temperature "
            << p.temperature << ", top-k " << p.top_k << ", top-p " << p.top_p << ", min-p " << p.min_p
            << ", penalty " << p.repetition_penalty;
      }
    }
  }
}

TEST(OpsSample, VeryLargeVocabulary) {
  constexpr std::int64_t kVocab = 600'001;
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  std::mt19937 random(3);
  const std::size_t rows = backend_is_slow() ? 2 : 8;
  MixedBatch batch(rows, kVocab, random);
  batch.parameters[0] = {1, 0, 1, 0, 1.2f, 1};
  batch.parameters[1] = {1, 50, 0.9f, 0, 1, 2};
  FencedMatrix logits(DType::kF32, static_cast<std::int64_t>(rows), kVocab,
                      random_values(rows * static_cast<std::size_t>(kVocab), 4, 3));
  EXPECT_EQ(batch.sample(*cpu, logits.view()), batch.sample(*reference, logits.view()));
}

class OpsSampleBackends : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<OpsBackend> backend = make_tested_ops_backend(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Backends, OpsSampleBackends, ::testing::ValuesIn(sampling_backends()),
                         [](const auto& info) { return info.param; });

TEST_P(OpsSampleBackends, GreedyTakesTheLowestIdAmongEqualMaxima) {
  for (const DType dtype : kActivationDTypes) {
    FencedMatrix logits(dtype, 1, 6, {1, 3, -2, 3, -kInfinity, 3});
    EXPECT_EQ(draw(*backend, logits, {}, 0), 1);
    SamplingParameters p;
    p.repetition_penalty = 2;  // 3 -> 1.5 for token 1
    EXPECT_EQ(draw(*backend, logits, p, 0, {1, 1, 1}), 3);
    FencedMatrix negative(dtype, 1, 3, {-3, -1, -2});
    EXPECT_EQ(draw(*backend, negative, p, 0, {1}), 1);  // -1 -> -2: a tie that the lower id wins
    p.repetition_penalty = 4;
    EXPECT_EQ(draw(*backend, negative, p, 0, {1}), 2);
  }
}

TEST_P(OpsSampleBackends, EqualLogitsAroundTheCut) {
  SamplingParameters p;
  p.temperature = 1;
  FencedMatrix logits(DType::kF32, 1, 6, {0, 5, 5, 5, 5, 1});
  const auto drawn = [&] {
    std::set<std::int32_t> tokens;
    // Each of four equals is missed by 100 draws once in 10^12 times.
    for (int step = 0; step < 100; ++step) tokens.insert(draw(*backend, logits, p, step));
    return tokens;
  };
  p.top_k = 2;  // equals of the second stay
  EXPECT_EQ(drawn(), (std::set<std::int32_t>{1, 2, 3, 4}));
  p.top_k = 0;
  p.top_p = 0.4f;  // the first reaches 0.248, the second 0.496: lower ids count as more likely
  EXPECT_EQ(drawn(), (std::set<std::int32_t>{1, 2}));
  p.top_p = 1;
  p.min_p = 1;
  EXPECT_EQ(drawn(), (std::set<std::int32_t>{1, 2, 3, 4}));
  p.top_p = 1e-6f;
  EXPECT_EQ(drawn(), (std::set<std::int32_t>{1}));
}

TEST_P(OpsSampleBackends, TheLowestOfManyEqualTokensReachTopPExactly) {
  FencedMatrix logits(DType::kF32, 1, 4096, Values(4096, -1.5));
  SamplingParameters p;
  p.temperature = 0.5f;
  for (const int kept : {1, 2, 3}) {
    p.top_p = static_cast<float>(kept) / 4096;
    std::set<std::int32_t> tokens;
    for (int step = 0; step < 60; ++step) tokens.insert(draw(*backend, logits, p, step));
    EXPECT_EQ(tokens.size(), static_cast<std::size_t>(kept));
    EXPECT_EQ(*tokens.rbegin(), kept - 1);
  }
}

TEST_P(OpsSampleBackends, HiddenAndVeryUnlikelyTokensAreNeverDrawn) {
  SamplingParameters p;
  p.temperature = 0.01f;
  FencedMatrix logits(DType::kF32, 1, 5, {-kInfinity, 3e38, 1e38, -3e38, -kInfinity});
  for (int step = 0; step < 100; ++step) EXPECT_EQ(draw(*backend, logits, p, step), 1);
  p.temperature = 1e-45f;
  EXPECT_EQ(draw(*backend, logits, p, 0), 1);
  FencedMatrix single(DType::kF32, 1, 1, Values{-7});
  EXPECT_EQ(draw(*backend, single, p, 0), 0);
}

TEST_P(OpsSampleBackends, WhatLiesBetweenTheRowsIsNeverDrawn) {
  // A padded vocabulary: ids behind the last column would be by far the likeliest.
  constexpr std::int64_t kRows = 3, kStride = 640;
  for (const std::int64_t vocab_size : {1, 31, 290, 513, 639}) {
    const Values values = random_values(static_cast<std::size_t>(kRows * vocab_size), 2, 5);
    FencedMatrix alone(DType::kF32, kRows, vocab_size, values);
    FencedMatrix padded(DType::kF32, kRows, kStride, Values(static_cast<std::size_t>(kRows * kStride), 1e30));
    for (std::int64_t i = 0; i < kRows * vocab_size; ++i) {
      store_element(padded.data(), DType::kF32, i / vocab_size * kStride + i % vocab_size,
                    values[static_cast<std::size_t>(i)]);
    }
    Matrix logits = padded.view();
    logits.columns = vocab_size;
    const std::vector<std::int32_t> history(kRows, 0), lens(kRows, 1);
    const std::vector<std::int64_t> steps(kRows, 4);
    for (const SamplingParameters& p :
         {SamplingParameters{0, 0, 1, 0, 1, 1}, SamplingParameters{1, 0, 1, 0, 1, 2},
          SamplingParameters{1, 20, 0.9f, 0, 1, 3}, SamplingParameters{2, 0, 0.5f, 0.01f, 1.3f, 4}}) {
      const std::vector<SamplingParameters> parameters(kRows, p);
      const auto tokens_of = [&](const Matrix& matrix) {
        std::vector<std::int32_t> tokens(kRows, -1);
        backend->sample(
            {matrix, parameters.data(), steps.data(), history.data(), lens.data(), 1, tokens.data()}, {});
        return tokens;
      };
      EXPECT_EQ(tokens_of(logits), tokens_of(alone.view())) << vocab_size << " tokens";
    }
  }
}

TEST_P(OpsSampleBackends, ASeedGivesTheSameTokensWhateverTheBatch) {
  constexpr std::int64_t kVocab = 200;
  constexpr std::int64_t kBatch = 16;
  const Values row = random_values(kVocab, 3);
  Values all;
  for (std::int64_t s = 0; s < kBatch; ++s) all.insert(all.end(), row.begin(), row.end());
  FencedMatrix logits(DType::kF32, kBatch, kVocab, all);
  FencedMatrix one(DType::kF32, 1, kVocab, row);
  std::vector<SamplingParameters> parameters(kBatch);
  std::vector<std::int64_t> steps(kBatch);
  std::set<std::int32_t> seen;
  for (std::size_t s = 0; s < kBatch; ++s) {
    parameters[s].temperature = 1;
    parameters[s].seed = s / 2;
    steps[s] = static_cast<std::int64_t>(s % 2);
  }
  std::vector<std::int32_t> tokens(kBatch);
  backend->sample({logits.view(), parameters.data(), steps.data(), nullptr, nullptr, 0, tokens.data()}, {});
  for (std::size_t s = 0; s < kBatch; ++s) {
    EXPECT_EQ(draw(*backend, one, parameters[s], steps[s]), tokens[s]);
    seen.insert(tokens[s]);
  }
  EXPECT_GT(seen.size(), 8u);  // other seeds and steps draw other tokens
}

TEST_P(OpsSampleBackends, ARowGivesTheSameTokenInABatchOfAnySize) {
  constexpr std::int64_t kVocab = 5000;
  constexpr std::size_t kKinds = 10;
  std::mt19937 random(5);
  const MixedBatch settings(kKinds, kVocab, random);
  const Values rows = random_values(kKinds * kVocab, 6, 3);
  std::vector<std::int32_t> alone;
  for (const std::size_t batch : {std::size_t{1}, std::size_t{21}, std::size_t{150}}) {
    MixedBatch all = settings;
    Values values;
    const std::size_t num_rows = batch == 1 ? kKinds : batch;
    all.history.resize(num_rows * MixedBatch::kHistoryStride);
    for (std::size_t row = 0; row < num_rows; ++row) {
      const std::size_t kind = row % kKinds;
      if (row >= kKinds) {
        all.parameters.push_back(settings.parameters[kind]);
        all.steps.push_back(settings.steps[kind]);
        all.lengths.push_back(settings.lengths[kind]);
      }
      std::copy_n(settings.history.begin() + static_cast<std::ptrdiff_t>(kind * MixedBatch::kHistoryStride),
                  MixedBatch::kHistoryStride,
                  all.history.begin() + static_cast<std::ptrdiff_t>(row * MixedBatch::kHistoryStride));
      values.insert(values.end(), rows.begin() + static_cast<std::ptrdiff_t>(kind * kVocab),
                    rows.begin() + static_cast<std::ptrdiff_t>((kind + 1) * kVocab));
    }
    FencedMatrix logits(DType::kF32, static_cast<std::int64_t>(num_rows), kVocab, values);
    if (batch == 1) {
      for (std::size_t row = 0; row < kKinds; ++row) {
        Matrix one = logits.view();
        one.data = logits.data() + row * kVocab * sizeof(float);
        one.rows = 1;
        std::int32_t token = -1;
        backend->sample(
            {one, &all.parameters[row], &all.steps[row], &all.history[row * MixedBatch::kHistoryStride],
             &all.lengths[row], MixedBatch::kHistoryStride, &token},
            {});
        alone.push_back(token);
      }
      continue;
    }
    const std::vector<std::int32_t> tokens = all.sample(*backend, logits.view());
    for (std::size_t row = 0; row < num_rows; ++row)
      EXPECT_EQ(tokens[row], alone[row % kKinds]) << row << " of " << batch;
  }
}

TEST_P(OpsSampleBackends, GivesMinusOneForLogitsThatAreNoDistribution) {
  if (tested_ops_are_the_cpus()) GTEST_SKIP() << "on the CPU that is an error";
  constexpr std::size_t kVocab = 5000;
  for (const DType dtype : kActivationDTypes) {
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<SamplingParameters> parameters(5);
      for (std::size_t s = 1; s < 5; ++s) parameters[s].temperature = 1;
      parameters[2].top_k = 40;
      parameters[3].top_p = 0.5f;
      parameters[4].repetition_penalty = 2;
      const Values good = random_values(kVocab, 1);
      Values bad = good;
      if (kind == 0) bad[4321] = std::nan("");
      if (kind == 1) bad[0] = kInfinity;
      if (kind == 2) bad[4999] = -std::nan("");
      if (kind == 3) bad.assign(kVocab, -kInfinity);
      Values rows;
      for (std::size_t s = 0; s < 10; ++s) {
        const Values& row = s % 2 == 0 ? bad : good;
        rows.insert(rows.end(), row.begin(), row.end());
      }
      FencedMatrix logits(dtype, 10, kVocab, rows);
      std::vector<SamplingParameters> twice;
      for (const SamplingParameters& p : parameters) twice.insert(twice.end(), {p, p});
      const std::vector<std::int64_t> steps(10, 3);
      const std::vector<std::int32_t> history(10, 4321), lengths(10, 1);
      std::vector<std::int32_t> tokens(10, 7);
      backend->sample(
          {logits.view(), twice.data(), steps.data(), history.data(), lengths.data(), 1, tokens.data()}, {});
      for (std::size_t s = 0; s < 10; ++s) {
        if (s % 2 == 0) {
          EXPECT_EQ(tokens[s], -1) << "kind " << kind << ", row " << s;
        } else {
          EXPECT_GE(tokens[s], 0) << "kind " << kind << ", row " << s;
        }
      }
    }
  }
}

TEST_P(OpsSampleBackends, RejectsLogitsThatAreNoDistribution) {
  if (!tested_ops_are_the_cpus()) GTEST_SKIP() << "a GPU says so by token -1";
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParameters p;
    p.temperature = temperature;
    for (const DType dtype : kActivationDTypes) {
      Values values = random_values(100, 1);
      values[71] = std::nan("");
      FencedMatrix with_nan(dtype, 1, 100, values);
      expect_error([&] { draw(*backend, with_nan, p, 0); }, ErrorCode::kInvalidArgument,
                   "logits[0][71] is nan");
      values[71] = kInfinity;
      FencedMatrix infinite(dtype, 1, 100, values);
      expect_error([&] { draw(*backend, infinite, p, 0); }, ErrorCode::kInvalidArgument,
                   "logits[0][71] is inf");
      FencedMatrix hidden(dtype, 1, 100, Values(100, -kInfinity));
      expect_error([&] { draw(*backend, hidden, p, 0); }, ErrorCode::kInvalidArgument, "all 100 logits");
    }
  }
}

TEST_P(OpsSampleBackends, RejectsParametersOutOfRange) {
  FencedMatrix logits(DType::kF32, 1, 4, {1, 2, 3, 4});
  const auto expect_rejected = [&](const SamplingParameters& p, std::int64_t step,
                                   const std::vector<std::int32_t>& history, const std::string& part) {
    expect_error([&] { draw(*backend, logits, p, step, history); }, ErrorCode::kInvalidArgument, part);
  };
  SamplingParameters p;
  p.temperature = -1;
  expect_rejected(p, 0, {}, "parameters[0].temperature is -1");
  p.temperature = std::nanf("");
  expect_rejected(p, 0, {}, "temperature is nan");
  p = {};
  p.top_k = -3;
  expect_rejected(p, 0, {}, "top_k is -3");
  p = {};
  p.top_p = 0;
  expect_rejected(p, 0, {}, "top_p is 0");
  p = {};
  p.min_p = 1.5f;
  expect_rejected(p, 0, {}, "min_p is 1.5");
  p = {};
  p.repetition_penalty = 0;
  expect_rejected(p, 0, {}, "repetition_penalty is 0");
  p.repetition_penalty = 2;
  expect_rejected(p, 0, {}, "history is null");
  expect_rejected(p, 0, {1, 4}, "history[0][1] is 4");
  expect_rejected({}, -1, {}, "steps[0] is -1");
}

}  // namespace
}  // namespace tessera::testing
