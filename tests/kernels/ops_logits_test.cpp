// What surrounds a draw: biases, masks, logarithms of probabilities. Each backend against the fp64 reference.
#include <bit>
#include <limits>

#include "backends/factories.h"
#include "kernels/ops_testing.h"

namespace tessera::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A batch whose sequences have biases and masks of all kinds.
struct Adjustments {
  std::vector<std::uint32_t> masks;
  std::vector<std::int32_t> mask_rows, bias_offsets = {0};
  std::vector<LogitBias> biases;
  std::int64_t mask_stride;

  Adjustments(std::int64_t batch, std::int64_t vocab_size, std::mt19937& random)
      : mask_stride((vocab_size + 31) / 32 + static_cast<std::int64_t>(random() % 3)) {
    std::int32_t num_masks = 0;
    for (std::int64_t s = 0; s < batch; ++s) {
      mask_rows.push_back(random() % 3 == 0 ? -1 : num_masks++);
      for (std::int64_t word = 0; mask_rows.back() >= 0 && word < mask_stride; ++word) {
        const auto bits = static_cast<std::uint32_t>(random());
        masks.push_back(random() % 4 == 0 ? 0u : random() % 4 == 0 ? ~0u : bits);
      }
      for (std::int64_t token = 0; token < vocab_size && s % 4 != 0; ++token) {
        if (random() % 16 != 0) continue;
        biases.push_back({static_cast<std::int32_t>(token), static_cast<float>(random() % 2000) / 10 - 100});
      }
      std::shuffle(biases.begin() + bias_offsets.back(), biases.end(), random);
      bias_offsets.push_back(static_cast<std::int32_t>(biases.size()));
    }
    masks.push_back(0);  // an address, where no sequence has a mask
  }
  AdjustLogitsArguments arguments(const Matrix& logits, const Matrix& out) const {
    return {logits, out, masks.data(), mask_rows.data(), mask_stride, biases.data(), bias_offsets.data()};
  }
};

TEST(OpsAdjustLogits, AddsBiasesAndHidesWhatTheMaskLacks) {
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  std::mt19937 random(1);
  std::vector<std::int64_t> vocab_sizes = {1, 7, 31, 32, 33, 500, 2048, 2049, 4100};
  if (!backend_is_slow()) vocab_sizes.push_back(128256);
  for (const std::int64_t vocab_size : vocab_sizes) {
    for (const DType dtype : kActivationDTypes) {
      const std::int64_t batch = backend_is_slow() ? 3 : 5;
      const Adjustments adjustments(batch, vocab_size, random);
      const Values values = random_values(static_cast<std::size_t>(batch * vocab_size), random(), 5);
      const std::int64_t stride = vocab_size + (random() % 2 == 0 ? 3 : 16 - vocab_size % 16);
      FencedMatrix logits(dtype, batch, vocab_size, values, stride);
      FencedMatrix got(DType::kF32, batch, vocab_size), expected(DType::kF32, batch, vocab_size);
      const Values before = logits.values();
      tested->adjust_logits(adjustments.arguments(logits.view(), got.view()), {});
      reference->adjust_logits(adjustments.arguments(logits.view(), expected.view()), {});
      EXPECT_EQ(got.values(), expected.values())
          << vocab_size << " " << dtype_name(dtype);  // one addition: exact
      EXPECT_EQ(logits.values(), before);
      got.expect_fences_intact();
      if (dtype != DType::kF32) continue;
      tested->adjust_logits(adjustments.arguments(logits.view(), logits.view()), {});
      EXPECT_EQ(logits.values(), expected.values()) << vocab_size << ", in place";
      logits.expect_fences_intact();
    }
  }
}

TEST(OpsAdjustLogits, HidesNumbersThatAreNone) {
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  FencedMatrix logits(DType::kF32, 1, 4, {std::nan(""), 2, kInfinity, -kInfinity});
  const std::uint32_t mask = 0b1010;
  const std::int32_t row = 0;
  const LogitBias biases[] = {{3, 50}, {1, 0.5f}};
  const std::int32_t offsets[] = {0, 2};
  tested->adjust_logits({logits.view(), logits.view(), &mask, &row, 1, biases, offsets}, {});
  EXPECT_EQ(logits.values(), (Values{-kInfinity, 2.5, -kInfinity, -kInfinity}));
}

TEST(OpsAdjustLogits, WithNothingToAdjustWidens) {
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  FencedMatrix logits(DType::kBF16, 2, 3, {1, 2, 3, 4, 5, 6}), out(DType::kF32, 2, 3);
  tested->adjust_logits({logits.view(), out.view()}, {});
  EXPECT_EQ(out.values(), logits.values());
}

TEST(OpsAdjustLogits, WhatMakesNoSenseIsRejected) {
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  FencedMatrix logits(DType::kF32, 1, 40, Values(40, 1)), half(DType::kF16, 1, 40),
      narrow(DType::kF32, 1, 39);
  const std::uint32_t masks[2] = {};
  const std::int32_t row = 0, no_row = -2;
  const auto expect_rejected = [&](const AdjustLogitsArguments& a, const char* message) {
    try {
      tested->adjust_logits(a, {});
      ADD_FAILURE() << "accepted; expected: " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  expect_rejected({logits.view(), half.view()}, "out.dtype is f16; expected f32");
  expect_rejected({logits.view(), narrow.view()}, "out.columns is 39; expected logits.columns = 40");
  expect_rejected({logits.view(), logits.view(), masks, &row, 1}, "mask_stride is 1; expected at least 2");
  expect_rejected({logits.view(), logits.view(), nullptr, &row, 2}, "masks is null");
  expect_rejected({logits.view(), logits.view(), masks, &no_row, 2}, "mask_rows[0] is -2");
  const auto with_biases = [&](std::vector<LogitBias> biases, std::vector<std::int32_t> offsets,
                               const char* message) {
    AdjustLogitsArguments a{logits.view(), logits.view()};
    a.biases = biases.data();
    a.bias_offsets = offsets.data();
    expect_rejected(a, message);
  };
  with_biases({{40, 1}}, {0, 1}, "biases[0].token is 40; expected 0 to 39");
  with_biases({{-1, 1}}, {0, 1}, "biases[0].token is -1");
  with_biases({{1, kNan}}, {0, 1}, "biases[0].bias is nan");
  with_biases({{1, 1}, {2, 1}, {1, 2}}, {0, 3}, "two biases for token 1");
  with_biases({{1, 1}}, {1, 1}, "bias_offsets[0] is 1; expected 0");
  with_biases({}, {0, 1}, "biases is null; expected 1 elements");
  with_biases({{1, 1}}, {0, -1}, "bias_offsets[1] is -1");
}

struct Logprobs {
  std::vector<float> logprobs, top_logprobs;
  std::vector<std::int32_t> top_tokens;
};

Logprobs logprobs_of(OpsBackend& backend, const Matrix& logits, const std::vector<std::int32_t>& tokens,
                     int num_top) {
  const std::size_t top = tokens.size() * static_cast<std::size_t>(num_top);
  Logprobs result{std::vector<float>(tokens.size(), 7), std::vector<float>(top, 7),
                  std::vector<std::int32_t>(top, 7)};
  backend.logprobs({logits, tokens.data(), result.logprobs.data(), num_top, result.top_tokens.data(),
                    result.top_logprobs.data()},
                   {});
  return result;
}

/// How far x - max - log(sum), in fp32, may be from the exact value. Each of the sum's positive terms is
/// within 4 units of fp32's precision of the exponential of a difference that is rounded once (and so off by
/// |x - max| units, where it counts at all: beyond 104 terms vanish); a term goes through at most
/// `additions` additions. Then two differences and the logarithm.
double logprob_bound(double logprob, std::int64_t vocab_size) {
  const double unit = std::numeric_limits<float>::epsilon() / 2;
  const double additions = 8 + static_cast<double>(vocab_size) / (512 * 8) + 2 + 10;
  return unit * (additions + 4 + 104 / 2.0 + 4 + 3 * std::abs(logprob));
}

void expect_close(const Logprobs& got, const Logprobs& expected, std::int64_t vocab_size) {
  EXPECT_EQ(got.top_tokens, expected.top_tokens);
  const auto compare = [&](const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::isnan(b[i]) || std::isinf(b[i])) {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(a[i]) & 0x7fffffffu,
                  std::bit_cast<std::uint32_t>(b[i]) & 0x7fffffffu)
            << i;
      } else {
        EXPECT_NEAR(a[i], b[i], logprob_bound(static_cast<double>(b[i]), vocab_size)) << i;
      }
    }
  };
  compare(got.logprobs, expected.logprobs);
  compare(got.top_logprobs, expected.top_logprobs);
}

TEST(OpsLogprobs, AreThoseOfTheReference) {
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  std::mt19937 random(5);
  std::vector<std::int64_t> vocab_sizes = {1, 2, 9, 300, 4096, 5001};
  if (!backend_is_slow()) vocab_sizes.push_back(128256);
  for (const std::int64_t vocab_size : vocab_sizes) {
    for (const DType dtype : kActivationDTypes) {
      for (const int wanted : {0, 1, 5, 20}) {
        if (backend_is_slow() && wanted == 5) continue;
        constexpr std::int64_t kBatch = 4;
        const std::size_t n = static_cast<std::size_t>(vocab_size);
        Values values = random_values(kBatch * n, random(), 4);
        for (std::size_t i = 0; i < n; ++i) values[i] = 1.5;  // all equal
        for (std::size_t i = n; i < 2 * n; ++i)
          values[i] = i % 3 == 0 ? values[i] : -kInfinity;  // mostly hidden
        values[n] = 3;
        FencedMatrix logits(dtype, kBatch, vocab_size, values,
                            vocab_size + static_cast<std::int64_t>(random() % 3));
        std::vector<std::int32_t> tokens;
        for (std::int64_t s = 0; s < kBatch; ++s) tokens.push_back(static_cast<std::int32_t>(random() % n));
        const int num_top = static_cast<int>(std::min<std::int64_t>(wanted, vocab_size));
        SCOPED_TRACE(::testing::Message() << vocab_size << " " << dtype_name(dtype) << ", top " << num_top);
        expect_close(logprobs_of(*tested, logits.view(), tokens, num_top),
                     logprobs_of(*reference, logits.view(), tokens, num_top), vocab_size);
      }
    }
  }
}

TEST(OpsLogprobs, KnownValues) {
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const double log2 = std::log(2.0);
  FencedMatrix logits(DType::kF32, 1, 4, {0, log2, 2 * log2, 0});  // 1, 2, 4, 1 of 8
  const Logprobs got = logprobs_of(*tested, logits.view(), {1}, 4);
  EXPECT_EQ(got.top_tokens, (std::vector<std::int32_t>{2, 1, 0, 3}));
  EXPECT_NEAR(got.logprobs[0], std::log(2.0 / 8), 1e-6);
  EXPECT_NEAR(got.top_logprobs[0], std::log(4.0 / 8), 1e-6);
  EXPECT_NEAR(got.top_logprobs[3], std::log(1.0 / 8), 1e-6);
}

TEST(OpsLogprobs, RowsThatAreNoDistributionHaveNone) {
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const double nan = std::nan("");
  FencedMatrix logits(
      DType::kF32, 5, 3,
      {1, nan, 2, /**/ 1, kInfinity, 2, /**/ -kInfinity, -kInfinity, -kInfinity, /**/ 1, 2, 3, /**/ 1, 2, 3});
  const Logprobs got = logprobs_of(*tested, logits.view(), {0, 0, 0, -1, 3}, 2);
  for (std::size_t s = 0; s < 5; ++s) EXPECT_TRUE(std::isnan(got.logprobs[s])) << s;
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(std::isnan(got.top_logprobs[i])) << i;
    EXPECT_EQ(got.top_tokens[i], -1) << i;
  }
  EXPECT_EQ(std::vector(got.top_tokens.begin() + 6, got.top_tokens.end()),
            (std::vector<std::int32_t>{2, 1, 2, 1}));
}

TEST(OpsLogprobs, MoreTokensThanThereAreIsRejected) {
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  FencedMatrix logits(DType::kF32, 1, 3, {1, 2, 3});
  EXPECT_THROW(logprobs_of(*tested, logits.view(), {0}, 4), Error);
}

}  // namespace
}  // namespace tessera::testing
