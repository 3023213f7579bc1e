// Sampling with every setting at the ends of its range, and with logits at the ends of theirs.
#include <array>
#include <limits>
#include <optional>

#include "backends/factories.h"
#include "kernels/ops_testing.h"

namespace tessera::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMost = std::numeric_limits<float>::max();
constexpr float kLeast = std::numeric_limits<float>::denorm_min();
constexpr std::int32_t kMostTokens = std::numeric_limits<std::int32_t>::max();

/// The token, or none if the logits are no distribution: an error on the CPU, -1 on a GPU.
std::optional<std::int32_t> draw(OpsBackend& backend, const Matrix& logits,
                                 const SamplingParameters& parameters, std::int64_t step,
                                 const std::vector<std::int32_t>& history) {
  std::int32_t token = -1;
  const auto length = static_cast<std::int32_t>(history.size());
  try {
    backend.sample({logits, &parameters, &step, history.data(), &length, length, &token}, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return std::nullopt;
  }
  return token < 0 ? std::nullopt : std::optional(token);
}

class ExtremeDraws {
 public:
  explicit ExtremeDraws(std::uint32_t seed) : random_(seed) {}

  template <class T, std::size_t kCount>
  T pick(const std::array<T, kCount>& values) {
    return values[random_() % kCount];
  }

  SamplingParameters parameters(std::int32_t vocab_size) {
    SamplingParameters p;
    p.temperature = pick(std::array{0.0f, kLeast, 1e-38f, 1e-20f, 1e-9f, 1e-3f, 1.0f, 1e3f, kMost});
    p.top_k = pick(std::array{0, 0, 0, 1, 2, vocab_size / 2, vocab_size - 1, vocab_size, kMostTokens});
    p.top_p = pick(std::array{1.0f, 1.0f, 1.0f, std::nextafter(1.0f, 0.0f), 0.5f, 1e-9f, kLeast});
    p.min_p = pick(std::array{0.0f, kLeast, 1e-30f, 1e-9f, 0.1f, std::nextafter(1.0f, 0.0f), 1.0f, 1.0f});
    p.repetition_penalty =
        pick(std::array{1.0f, 1.0f, std::nextafter(1.0f, 2.0f), 1.5f, 1e-20f, 3e38f, kMost, kLeast});
    p.seed = random_();
    return p;
  }

  /// Several orders of magnitude in one row, or none; every tenth row is no distribution.
  Values logits(std::size_t n) {
    const double scale = pick(std::array<double, 9>{0, static_cast<double>(kLeast), 1e-38, 1e-9, 1, 30, 1e4,
                                                    1e20, static_cast<double>(kMost) / 8});
    Values x = random_values(n, random_(), scale);
    for (double& v : x) {
      if (random_() % 8 == 0) {
        v = static_cast<double>(
            pick(std::array{0.0f, -0.0f, kLeast, -kLeast, 1.0f, -1.0f, kMost, -kMost, -kInfinity}));
      }
    }
    if (random_() % 4 == 0) x.assign(n, x[0]);
    if (random_() % 4 == 0) {  // all far below 0
      for (double& v : x) v = -std::abs(v);
    }
    if (random_() % 10 == 0)
      x[random_() % n] = pick(std::array<double, 3>{std::nan(""), -std::nan(""), 1e39});
    if (random_() % 20 == 0) x.assign(n, -static_cast<double>(kInfinity));
    return x;
  }

  std::vector<std::int32_t> history(std::size_t vocab_size) {
    std::vector<std::int32_t> tokens(random_() % 3 == 0 ? 3 * vocab_size : 5);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random_() % vocab_size);
    return tokens;
  }

  std::int64_t step() { return static_cast<std::int64_t>(random_() >> 1); }

 private:
  std::mt19937 random_;
};

TEST(OpsSampleExtremes, AllParametersAndLogitsDrawTheTokensOfTheReference) {
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  const int draws = tested_ops_are_slow() ? (kSanitized ? 100 : 500) : (kSanitized ? 2000 : 40000);
  int refused = 0;
  for (int i = 0; i < draws; ++i) {
    ExtremeDraws next(static_cast<std::uint32_t>(i));
    const std::int32_t vocab_size = next.pick(std::array{1, 2, 3, 17, 64, 300});
    const SamplingParameters p = next.parameters(vocab_size);
    const DType dtype = next.pick(std::array{DType::kF32, DType::kF32, DType::kF16, DType::kBF16});
    FencedMatrix logits(dtype, 1, vocab_size, next.logits(static_cast<std::size_t>(vocab_size)));
    const std::vector<std::int32_t> history = next.history(static_cast<std::size_t>(vocab_size));
    const std::int64_t step = next.step();
    const std::optional<std::int32_t> expected = draw(*reference, logits.view(), p, step, history);
    if (!expected) ++refused;
    ASSERT_EQ(draw(*cpu, logits.view(), p, step, history), expected)
        << "draw " << i << ": " << vocab_size << " tokens, " << dtype_name(dtype) << ", temperature "
        << p.temperature << ", top-k " << p.top_k << ", top-p " << p.top_p << ", min-p " << p.min_p
        << ", penalty " << p.repetition_penalty;
  }
  EXPECT_GT(refused, draws / 20);
  EXPECT_LT(refused, draws / 2);
}

TEST(OpsSampleExtremes, TheMostLikelyTokenStaysAtAnyTemperature) {
  const std::unique_ptr<OpsBackend> cpu = make_tested_ops();
  FencedMatrix logits(DType::kF32, 1, 5, {3, 7.25, 11.75, -2, 11.5});
  SamplingParameters p;
  for (const float temperature : {1e-9f, 1e-20f, 1e-38f, kLeast}) {
    for (const float min_p : {1.0f, 0.1f, kLeast}) {
      p.temperature = temperature;
      p.min_p = min_p;
      EXPECT_EQ(draw(*cpu, logits.view(), p, 0, {}), 2) << temperature << ", min-p " << min_p;
    }
  }
  p = {};
  p.temperature = 1;
  p.min_p = 0.5f;
  p.repetition_penalty = 3e38f;  // of logits that are all below 0
  FencedMatrix negative(DType::kF32, 1, 3, {-3, -1.5, -4});
  EXPECT_EQ(draw(*cpu, negative.view(), p, 0, {0, 1, 2}), 1);
}

}  // namespace
}  // namespace tessera::testing
