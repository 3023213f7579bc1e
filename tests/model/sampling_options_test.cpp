// Biases, penalties, log probabilities and constraints of requests, from the options to the tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
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
  static LanguageModel load(const char* backend, std::optional<DType> activation_dtype = {}) {
    ModelOptions options;
    options.backend = backend;
    options.activation_dtype = activation_dtype;
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

// Of a text whose tokens come again and again, with biases of some that come and some that don't.
TEST_P(SamplingOfRequests, PenaltiesAndBiasesAddUp) {
  GenerateOptions options = some(24);
  options.sampling.presence_penalty = 0.75f;
  options.sampling.frequency_penalty = 0.5f;
  options.sampling.logit_bias = {{0, -2.0f}, {17, 3.0f}, {40, 2.5f}, {90, 1.5f}, {200, 2.75f}, {287, 2.0f}};
  std::vector<std::int32_t> text = prompt;
  std::map<std::int32_t, int> counts;
  LanguageModel exact = load(GetParam(), DType::kF32);  // the same logits whatever a step's size
  for (const std::int32_t token : exact.generate(prompt, options).tokens) {
    std::vector<float> logits = exact.logits(text);
    for (const auto& [biased, bias] : options.sampling.logit_bias)
      logits[static_cast<std::size_t>(biased)] += bias;
    for (const auto& [drawn, count] : counts)
      logits[static_cast<std::size_t>(drawn)] -= 0.75f + 0.5f * static_cast<float>(count);
    EXPECT_EQ(token, std::ranges::max_element(logits) - logits.begin()) << "behind " << text.size();
    ++counts[token];
    text.push_back(token);
  }
  EXPECT_LT(counts.size(), 24u) << "none comes twice";
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

/// What a constraint lets through behind `begun`, drawn at random until any token may come again.
std::string held_text(const Model& model, TokenConstraint& constraint, const std::vector<std::int32_t>& begun,
                      unsigned seed) {
  std::vector<std::uint32_t> mask(static_cast<std::size_t>((model.info().vocab_size + 31) / 32));
  for (const std::int32_t token : begun) {
    EXPECT_FALSE(constraint.allowed_tokens(mask));
    constraint.accept(token);
  }
  std::string text;
  for (int i = 0; i < 200; ++i) {
    std::ranges::fill(mask, 0u);
    if (!constraint.allowed_tokens(mask)) return text;
    std::vector<std::int32_t> allowed;
    for (std::int32_t token = 0; token < model.info().vocab_size; ++token) {
      if ((mask[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) != 0) allowed.push_back(token);
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "no token may come behind " << text;
      return text;
    }
    for (const std::int32_t end : model.end_tokens()) EXPECT_EQ(std::ranges::count(allowed, end), 0) << text;
    seed = seed * 1664525u + 1013904223u;
    const std::int32_t token = allowed[(seed >> 8) % allowed.size()];
    text += model.token_bytes(token);
    constraint.accept(token);
  }
  return text + " and no end";
}

TEST(StructuredOutputBetween, HoldsWhatFollowsAWordAndNothingElse) {
  LoadOptions load;
  load.backend = "cpu";
  const Model model = Model::load(std::string(TESSERA_SOURCE_DIR) + "/models/demo", load);
  const StructuredOutput structured(model);
  const char* schema =
      R"({"type":"object","properties":{"name":{"const":"add"},"of":{"type":"integer","minimum":0,"maximum":99}},)"
      R"("required":["name","of"],"additionalProperties":false})";
  const std::regex held(R"([ \n]?\{\s*"name": ?"add",\s*"of": ?[0-9]{1,2}\s*\}[ \n]?</call>)");
  const auto tokens = [&](const char* text) { return model.encode(text, false); };
  for (unsigned seed = 1; seed <= 5; ++seed) {
    const auto constraint = structured.json_between("<call>", schema, "</call>");
    for (const char* begun :
         {"Let me see. <cal <call>", "<<call>", " <call>"}) {  // once held, it can be again
      const std::string text = held_text(model, *constraint, tokens(begun), seed);
      EXPECT_TRUE(std::regex_match(text, held)) << text;
    }
  }
  EXPECT_EQ(
      held_text(model, *structured.json_between("<cell>", schema, "</call>"), tokens("a <call> <cell"), 1),
      "");
  // A control token of the name does as its text; a token that goes on with what can't follow is only text.
  const std::vector<std::int32_t> control = tokens("<|begin_of_text|>");
  ASSERT_EQ(control.size(), 1u);
  const auto by_control = structured.json_between("<|begin_of_text|>", schema, "</call>");
  EXPECT_TRUE(std::regex_match(held_text(model, *by_control, control, 3), held));
  const std::vector<std::int32_t> once = tokens("Once");
  ASSERT_EQ(model.token_bytes(once[0]), "Once");
  EXPECT_EQ(held_text(model, *structured.json_between("On", schema, "</call>"), {once[0]}, 1), "");
  // Without a close what is complete has ended.
  const auto open_ended = structured.json_between("<call>", "{\"enum\":[true,false]}", "");
  EXPECT_TRUE(
      std::regex_match(held_text(model, *open_ended, tokens("<call>"), 1), std::regex("[ \n]?(true|false)")));
  EXPECT_THROW(structured.json_between("", schema, ""), Error);
  EXPECT_THROW(structured.json_between("<call>", "{\"not\":{}}", ""), Error);
}

}  // namespace
}  // namespace tessera
