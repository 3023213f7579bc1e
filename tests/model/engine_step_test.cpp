// Steps of the execution plan below the public interface: bits that don't depend on the batch, and decode
// steps that a device records once and replays.

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/recording_ops.h"
#include "model/tiny_engine.h"

namespace tessera {
namespace {

/// A device that norms, multiplies and rotates or activates steps of few rows in one kernel.
class FusingOps : public RecordingOps {
 public:
  explicit FusingOps(std::int64_t most_rows) : RecordingOps(make_ops_backend("cpu")), most_rows_(most_rows) {}

  Weight make_stacked_weight(std::span<const HostWeight> parts) override {
    if (keeps_v_apart && parts.size() == 3) return {};
    std::vector<float>& stacked = stacked_.emplace_back();
    for (const HostWeight& part : parts) {
      const float* data = reinterpret_cast<const float*>(part.data);
      stacked.insert(stacked.end(), data, data + part.rows * part.columns);
    }
    const std::int64_t columns = parts.front().columns;
    return make_weight({reinterpret_cast<const std::byte*>(stacked.data()), DType::kF32,
                        static_cast<std::int64_t>(stacked.size()) / columns, columns, "stacked"});
  }
  bool takes_normed_gemm(const NormedGemmArguments& a) const override {
    ++num_asked_;
    return a.gemm.x.rows <= most_rows_ && !(a.rope && refuses_rope);
  }
  void normed_gemm(const NormedGemmArguments& a, Stream stream) override {
    const std::int64_t rows = a.gemm.x.rows, hidden = a.gemm.x.columns, outputs = a.gemm.weight.rows;
    std::vector<float> normed(static_cast<std::size_t>(rows * hidden));
    RmsNormArguments norm;
    norm.x = a.gemm.x;
    norm.out = {normed.data(), DType::kF32, rows, hidden, hidden};
    norm.weight = a.norm_weight;
    norm.eps = a.eps;
    rms_norm(norm, stream);
    GemmArguments product = without_lower_rows(a).gemm;
    product.x = norm.out;
    if (!a.activation) {
      gemm(product, stream);
      if (a.lower) {
        product = only_lower_rows(a).gemm;
        product.x = norm.out;
        gemm(product, stream);
      }
      if (a.rope) rope_append(*a.rope, stream);
      return;
    }
    std::vector<float> both(static_cast<std::size_t>(rows * outputs));
    product.out = {both.data(), DType::kF32, rows, outputs, outputs};
    gemm(product, stream);
    const Matrix gate{both.data(), DType::kF32, rows, outputs / 2, outputs};
    const Matrix up{both.data() + outputs / 2, DType::kF32, rows, outputs / 2, outputs};
    gated_activation({*a.activation, gate, up, a.gemm.out}, stream);
  }

  int num_asked() const { return num_asked_; }

  bool refuses_rope = false;   ///< as kernels do where the cache is of another type
  bool keeps_v_apart = false;  ///< as devices do where v is of another type than q and k

 private:
  std::int64_t most_rows_;
  std::deque<std::vector<float>> stacked_;
  mutable int num_asked_ = 0;
};

/// The last tokens of four sequences, as many as new_tokens says, go through together and, after those before
/// them, each alone.
void expect_bits_of_each_alone(const std::vector<std::size_t>& new_tokens) {
  const auto ops = make_ops_backend("cpu");
  TinyEngine engine(*ops, /*batch_invariant=*/true);
  const std::vector<std::vector<std::int32_t>> tokens = {some_tokens(13, 0), some_tokens(1, 1),
                                                         some_tokens(30, 2), some_tokens(7, 3)};
  std::vector<KvSequence> pages;
  std::vector<std::vector<float>> alone;
  std::vector<SequenceSlice> slices;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    pages.emplace_back(*engine.cache);
    pages.back().reserve(static_cast<std::int64_t>(tokens[i].size()));
    const std::size_t before = tokens[i].size() - new_tokens[i];
    const std::span<const std::int32_t> all(tokens[i]);
    if (before > 0) {
      const SequenceSlice prefix{all.first(before), 0, pages.back().block_table()};
      engine.step_logits({&prefix, 1});
    }
    slices.push_back({all.subspan(before), static_cast<std::int64_t>(before), pages.back().block_table()});
    alone.push_back(engine.step_logits({&slices.back(), 1}));
  }
  std::vector<float> expected;
  for (const std::vector<float>& logits : alone)
    expected.insert(expected.end(), logits.begin(), logits.end());
  EXPECT_TRUE(engine.step_logits(slices) == expected);
}

TEST(Step, BatchInvariantBitsDontDependOnTheOtherSequencesOfARaggedStep) {
  expect_bits_of_each_alone({7, 1, 30, 1});
}

TEST(Step, NorDoThoseOfDecodesThatComeBeforePrompts) { expect_bits_of_each_alone({1, 1, 20, 7}); }

TEST(Step, DecodesThatComeBeforePromptsAreCounted) {
  const auto ops = make_ops_backend("cpu");
  TinyEngine engine(*ops);
  const std::vector<std::int32_t> tokens = some_tokens(30, 1);
  const std::vector<std::int32_t> pages = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto shape_of = [&](const std::vector<std::size_t>& new_tokens) {
    std::vector<SequenceSlice> slices;
    for (const std::size_t count : new_tokens) slices.push_back({std::span(tokens).first(count), 5, pages});
    return engine.plan->begin_step(slices);
  };
  EXPECT_EQ(shape_of({1, 1, 7, 1}), (StepShape{10, 4, 7, 128, 2, 128}));
  EXPECT_EQ(shape_of({1, 1, 1}), (StepShape{3, 3, 1, 128})) << "alike";
  EXPECT_EQ(shape_of({7, 1}), (StepShape{8, 2, 7, 128}));
}

TEST(Step, WhatOneKernelDoesIsDecidedOnceForANumberOfRowsAndNamedSo) {
  FusingOps fusing_ops(/*most_rows=*/4);
  const auto plain_ops = make_ops_backend("cpu");
  TinyEngine fusing(fusing_ops), plain(*plain_ops);
  const int layers = static_cast<int>(fusing.weights.layers.size());
  const auto names = [&](std::int64_t rows) {
    std::vector<std::string> result;
    for (const PlanStep& step : fusing.plan->steps({rows, 1, rows, 256})) {
      if (step.layer == layers - 2) result.push_back(step.name);
    }
    return result;
  };
  EXPECT_EQ(names(4),
            (std::vector<std::string>{"input_norm+qkv_proj+rope_append", "attention", "o_proj+residual",
                                      "post_attention_norm+gate_up_proj+activation", "down_proj+residual"}));
  EXPECT_EQ(fusing_ops.num_asked(), 2 * layers);
  EXPECT_EQ(names(5),
            (std::vector<std::string>{"input_norm", "qkv_proj", "rope_append", "attention", "o_proj",
                                      "post_attention_norm", "gate_up_proj", "activation", "down_proj"}));
  EXPECT_EQ(fusing.plan->steps({4, 1, 4, 256}).back().name, "down_proj") << "the head's norm adds the last";

  const std::vector<std::int32_t> tokens = some_tokens(30, 1);
  const auto logits_of = [&](TinyEngine& engine) {
    KvSequence pages(*engine.cache);
    pages.reserve(30);
    std::vector<float> all;
    std::int64_t at = 0;
    for (const std::int64_t count : {10, 4, 1, 1, 10, 4}) {
      const SequenceSlice slice{
          std::span(tokens).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)), at,
          pages.block_table()};
      const std::vector<float> logits = engine.step_logits({&slice, 1});
      all.insert(all.end(), logits.begin(), logits.end());
      at += count;
    }
    return all;
  };
  const std::vector<float> actual = logits_of(fusing), expected = logits_of(plain);
  // With and, if refused, without RoPE.
  EXPECT_EQ(fusing_ops.num_asked(), 2 * layers * 4 + layers * 2) << "for 4, 5, 10 rows and one";
  ASSERT_EQ(actual.size(), expected.size());
  // Sums in another order: a few roundings of fp32 in each of the layers.
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-4) << i;
}

TEST(Step, NormAndProductStayOneKernelWhereRopeIsNotPartOfIt) {
  FusingOps fusing_ops(/*most_rows=*/4);
  fusing_ops.refuses_rope = true;
  const auto plain_ops = make_ops_backend("cpu");
  TinyEngine fusing(fusing_ops), plain(*plain_ops);
  std::vector<std::string> names;
  for (const PlanStep& step : fusing.plan->steps({4, 1, 4, 256})) {
    if (step.layer == 0) names.push_back(step.name);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"input_norm+qkv_proj", "rope_append", "attention", "o_proj+residual",
                                      "post_attention_norm+gate_up_proj+activation", "down_proj+residual"}));
  Request request;
  request.prompt = some_tokens(9, 2);
  request.max_tokens = 12;
  EXPECT_EQ(fusing.generate({request}), plain.generate({request}));
}

TEST(Step, QueriesKeysAndValuesStayOneProductWhereValuesAreOfAnotherType) {
  FusingOps fusing_ops(/*most_rows=*/4);
  fusing_ops.keeps_v_apart = true;
  const auto plain_ops = make_ops_backend("cpu");
  TinyEngine fusing(fusing_ops), plain(*plain_ops);
  const auto names = [&](std::int64_t rows) {
    std::vector<std::string> result;
    for (const PlanStep& step : fusing.plan->steps({rows, 1, rows, 256})) {
      if (step.layer == 0 && result.size() < 4) result.push_back(step.name);
    }
    return result;
  };
  EXPECT_EQ(names(4),
            (std::vector<std::string>{"input_norm+qkv_proj+rope_append", "attention", "o_proj+residual",
                                      "post_attention_norm+gate_up_proj+activation"}));
  EXPECT_EQ(names(5), (std::vector<std::string>{"input_norm", "qk_proj", "v_proj", "rope_append"}));
  Request request;
  request.prompt = some_tokens(9, 2);
  request.max_tokens = 12;
  EXPECT_EQ(fusing.generate({request}), plain.generate({request}));
}

TEST(Step, ReplayedDecodeStepsGiveTheTokensOfPlainOnes) {
  const auto plain_ops = make_ops_backend("cpu");
  RecordingOps recording_ops(make_ops_backend("cpu"));
  TinyEngine plain(*plain_ops);
  TinyEngine recording(recording_ops);
  recording_ops.uploads().clear();
  const int probes = recording_ops.num_recorded();

  std::vector<std::vector<std::int32_t>> prompts = {some_tokens(20, 0), some_tokens(5, 1), some_tokens(9, 2)};
  std::vector<Request> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt = prompts[i];
    request.max_tokens = static_cast<std::int64_t>(10 + 10 * i);
    request.sampling.temperature = 0.7f;
    request.sampling.seed = i;
    requests.push_back(request);
  }
  const std::vector<std::vector<std::int32_t>> expected = plain.generate(requests);
  const std::vector<std::vector<std::int32_t>> actual = recording.generate(requests);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(actual[i].size(), 10 + 10 * i);
    EXPECT_EQ(actual[i], expected[i]) << "prompt " << i;
  }
  // 29 decode steps: with three, two and one sequences. The first of each runs plainly, the second is
  // recorded.
  EXPECT_EQ(recording_ops.num_recorded() - probes, 3);
  EXPECT_EQ(recording_ops.num_replayed(), 29 - 3);
  // Tokens come from the host for the prefill and where a sequence has left the batch, not in between.
  EXPECT_EQ(recording_ops.uploads().count(recording.plan->tokens()), 3u);
}

}  // namespace
}  // namespace tessera
