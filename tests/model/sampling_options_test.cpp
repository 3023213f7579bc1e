// Biases, penalties, log probabilities and constraints of requests, from the options to the tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "tessera/engine.h"
#include "tessera/error.h"
#include "tessera/model.h"
#include "tessera/structured_output.h"

namespace tessera {
namespace {

class SamplingOfRequests : public testing::TestWithParam<const char*> {
 protected:
  static LanguageModel load(const char* backend) {
    ModelOptions options;
    options.backend = backend;
    options.max_seq_len = 128;
    options.max_batch = 3;
    return LanguageModel::load(std::string(TESSERA_SOURCE_DIR) + "/models/demo", options);
  }
  std::vector<std::int32_t> tokens(const GenerateOptions& options) {
    return model.generate(prompt, options).tokens;
  }
  static GenerateOptions some(std::int64_t count) {
    GenerateOptions options;
    options.max_tokens = count;
    options.stop_at_eos = false;
    return options;
  }

  LanguageModel model = load(GetParam());
  const std::vector<std::int32_t> prompt = model.encode("Once upon a time");
};
INSTANTIATE_TEST_SUITE_P(Backends, SamplingOfRequests, testing::Values("cpu", "reference"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(SamplingOfRequests, BiasesMakeTokensCertainOrImpossible) {
  const std::vector<std::int32_t> plain = tokens(some(4));
  GenerateOptions options = some(4);
  options.sampling.logit_bias = {{17, 1000.0f}};
  EXPECT_EQ(tokens(options), std::vector<std::int32_t>(4, 17));
  options.sampling.logit_bias = {{plain[0], -1000.0f}};
  const std::vector<std::int32_t> without = tokens(options);
  EXPECT_EQ(std::ranges::count(without, plain[0]), 0);
  options.sampling.logit_bias = {{1 << 30, 5.0f}};  // no such token: nothing changes
  EXPECT_EQ(tokens(options), plain);
  options.sampling.logit_bias = {{-1, 5.0f}};
  EXPECT_THROW(tokens(options), Error);
  options.sampling.logit_bias = {{1, std::nanf("")}};
  EXPECT_THROW(tokens(options), Error);
}

TEST_P(SamplingOfRequests, PenaltiesCountDrawnTokens) {
  for (const bool is_presence : {true, false}) {
    GenerateOptions options = some(10);
    (is_presence ? options.sampling.presence_penalty : options.sampling.frequency_penalty) = 1000;
    const std::vector<std::int32_t> drawn = tokens(options);
    EXPECT_EQ(std::set<std::int32_t>(drawn.begin(), drawn.end()).size(), drawn.size());  // no token twice
    options.sampling.logit_bias = {{17, 500.0f}};
    EXPECT_EQ(tokens(options)[0], 17);
    EXPECT_NE(tokens(options)[1], 17);
  }
  // A penalty of 100 a time and a bias of 950 let a token come ten times in a row.
  GenerateOptions options = some(12);
  options.sampling.frequency_penalty = 100;
  options.sampling.logit_bias = {{17, 950.0f}};
  const std::vector<std::int32_t> drawn = tokens(options);
  EXPECT_EQ(std::ranges::count(std::span(drawn).first(9), 17), 9);
  EXPECT_NE(drawn[11], 17);
  options.sampling.presence_penalty = INFINITY;
  EXPECT_THROW(tokens(options), Error);
}

TEST_P(SamplingOfRequests, LogprobsAreTheModelsOwn) {
  GenerateOptions options = some(3);
  options.top_logprobs = 4;
  options.sampling.logit_bias = {{17, 1000.0f}};
  const Generation result = model.generate(prompt, options);
  ASSERT_EQ(result.tokens, std::vector<std::int32_t>(3, 17));
  std::vector<std::int32_t> text = prompt;
  ASSERT_EQ(result.logprobs.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::vector<float> logits = model.logits(text);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    const auto logprob = [&](std::int32_t token) {
      return logits[static_cast<std::size_t>(token)] - std::log(sum);
    };
    EXPECT_NEAR(result.logprobs[i], logprob(17), 0.05);  // of the same model run in other steps, in bf16
    ASSERT_EQ(result.top_logprobs[i].size(), 4u);
    EXPECT_NEAR(result.top_logprobs[i][0].logprob, logprob(result.top_logprobs[i][0].token), 0.05);
    EXPECT_GT(result.top_logprobs[i][0].logprob, result.logprobs[i]);
    EXPECT_TRUE(std::ranges::is_sorted(result.top_logprobs[i], std::greater<>(), &TokenLogprob::logprob));
    text.push_back(17);
  }
  EXPECT_TRUE(model.generate(prompt, some(2)).logprobs.empty());
}

TEST_P(SamplingOfRequests, OneRequestsOptionsDisturbNoOther) {
  const std::vector<std::int32_t> plain = tokens(some(6));
  const StructuredOutput structured(model.model());
  std::vector<GenerateOptions> options(3, some(6));
  options[0].sampling.logit_bias = {{17, 1000.0f}};
  options[2].constraint = structured.regex("[0-9]{6,}");
  options[2].top_logprobs = 0;
  const std::vector<Generation> results =
      model.generate_batch(std::vector<std::vector<std::int32_t>>(3, prompt), options);
  EXPECT_EQ(results[0].tokens, std::vector<std::int32_t>(6, 17));
  EXPECT_EQ(results[1].tokens, plain);
  EXPECT_TRUE(std::regex_match(model.decode(results[2].tokens), std::regex(" ?[0-9]+")))
      << model.decode(results[2].tokens);
  EXPECT_EQ(results[2].logprobs.size(), 6u);
}

TEST_P(SamplingOfRequests, ConstraintsEndTheText) {
  const StructuredOutput structured(model.model());
  GenerateOptions options;
  options.max_tokens = 60;
  options.constraint = structured.json_schema(
      R"({"type":"object","properties":{"a":{"enum":[12,"no"]}},"required":["a"],"additionalProperties":false})");
  const Generation result = model.generate(prompt, options);
  EXPECT_EQ(result.stop_reason, StopReason::kEndOfText);
  EXPECT_TRUE(std::regex_match(model.decode(result.tokens), std::regex(R"(\s*\{\s*"a": ?(12|"no")\s*\})")))
      << model.decode(result.tokens);
  EXPECT_THROW(structured.json_schema(R"({"not":{}})"), Error);
  EXPECT_THROW(structured.regex("("), Error);
}

}  // namespace
}  // namespace tessera
