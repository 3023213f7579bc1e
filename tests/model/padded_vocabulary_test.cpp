// Models with more ids than their tokenizers have tokens: what has no token is never drawn and is no text.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/drawable_tokens.h"
#include "model/golden_fixture.h"
#include "model/model_files.h"
#include "tessera/engine.h"
#include "tessera/model.h"

namespace tessera {
namespace {

using testing_files::error_of;
using testing_files::TemporaryFolder;

constexpr std::int32_t kEndOfText = 2;  // of the fixture's configuration
constexpr std::int32_t kFirstPadding = 90;

/// The folder of a model of 288 ids, about equally likely at a high temperature, and a tokenizer that has
/// tokens for 0 to 89 but for `absent`.
class PaddedModel {
 public:
  explicit PaddedModel(const std::set<std::int32_t>& absent) {
    const GoldenFixture fixture = read_golden_fixture("llama2");
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::filesystem::create_symlink(fixture.model / name, folder_.path() / name);
    }
    nlohmann::json vocabulary = nlohmann::json::object();
    for (std::int32_t id = 0; id < kFirstPadding; ++id) {
      if (!absent.contains(id)) vocabulary[std::string(1, static_cast<char>('!' + id))] = id;
    }
    const nlohmann::json tokenizer = {
        {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}},
        {"decoder", {{"type", "Fuse"}}}};
    folder_.write("tokenizer.json", tokenizer.dump());
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  LanguageModel load(const std::string& backend) const {
    return LanguageModel::load(path(), golden_options(backend));
  }

 private:
  TemporaryFolder folder_;
};

GenerateOptions any_token(std::uint64_t seed) {
  GenerateOptions options;
  options.max_tokens = 60;
  options.stop_at_eos = false;
  options.sampling.temperature = 1e6f;
  options.sampling.seed = seed;
  return options;
}

class PaddedVocabulary : public ::testing::TestWithParam<std::string> {
 protected:
  /// All ids that some generations draw. Every one is text or nothing.
  static std::set<std::int32_t> drawn(LanguageModel& model, GenerateOptions options) {
    std::set<std::int32_t> ids;
    const std::vector<std::int32_t> prompt = {7, 200, 287, 9, 40};  // padding may be given
    for (options.sampling.seed = 1; options.sampling.seed < 30; ++options.sampling.seed) {
      std::string streamed;
      const Generation generation = model.generate(prompt, options, [&](std::int32_t, std::string_view text) {
        streamed += text;
        return true;
      });
      EXPECT_EQ(generation.tokens.size(), 60u);
      EXPECT_EQ(streamed, model.decode(generation.tokens));
      ids.insert(generation.tokens.begin(), generation.tokens.end());
    }
    return ids;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, PaddedVocabulary, ::testing::Values("cpu", "reference"),
                         [](const auto& info) { return info.param; });

TEST_P(PaddedVocabulary, IsNotDrawnFromBehindTheTokenizersTokens) {
  const PaddedModel padded({});
  LanguageModel model = padded.load(GetParam());
  EXPECT_EQ(model.info().vocab_size, 288);
  for (const float penalty : {1.0f, 1.5f}) {
    GenerateOptions options = any_token(0);
    options.sampling.repetition_penalty = penalty;
    const std::set<std::int32_t> ids = drawn(model, options);
    EXPECT_LT(*ids.rbegin(), kFirstPadding);
    EXPECT_EQ(ids.size(), static_cast<std::size_t>(kFirstPadding)) << "each is drawn 19 times on average";
  }
}

TEST_P(PaddedVocabulary, IsNotDrawnFromBetweenTheTokenizersTokens) {
  const std::set<std::int32_t> absent = {kEndOfText, 5, 6, 7, 40, 88};
  const PaddedModel padded(absent);
  LanguageModel model = padded.load(GetParam());
  const std::set<std::int32_t> ids = drawn(model, any_token(0));
  EXPECT_LT(*ids.rbegin(), kFirstPadding);
  for (const std::int32_t id : absent) {
    EXPECT_EQ(ids.contains(id), id == kEndOfText)
        << id << " (the end of a text is drawn even without a token)";
  }
  const std::vector<float> logits = model.logits(std::vector<std::int32_t>{7, 8});
  EXPECT_TRUE(std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }));
}

TEST_P(PaddedVocabulary, IsNotAmongTheLikeliest) {
  std::set<std::int32_t> absent;
  for (std::int32_t id = 10; id < 60; ++id) absent.insert(id);
  const PaddedModel padded(absent);
  Engine engine(Model::load(padded.path(), {.backend = GetParam()}), {.max_batch = 1, .max_kv_tokens = 64});
  Request request;
  request.prompt = {3, 20, 200, 61};
  request.max_tokens = 1;
  request.top_logprobs = 64;
  request.prompt_logprobs = true;
  engine.submit(request);
  const std::vector<Event> events = engine.step();
  ASSERT_FALSE(events.empty());
  const auto expect_drawable = [&](const std::vector<TokenLogprob>& likeliest) {
    EXPECT_EQ(likeliest.size(), 40u);
    double sum = 0;
    for (const TokenLogprob& l : likeliest) {
      EXPECT_TRUE(l.token < kFirstPadding && !absent.contains(l.token)) << l.token;
      sum += std::exp(static_cast<double>(l.logprob));
    }
    EXPECT_NEAR(sum, 1, 1e-5);
  };
  expect_drawable(events[0].top_logprobs);
  ASSERT_EQ(events[0].prompt_logprobs.size(), 3u);
  for (const std::size_t i : {0u, 1u, 2u}) {
    expect_drawable(events[0].prompt_logprobs[i].top_logprobs);
    EXPECT_EQ(std::isfinite(events[0].prompt_logprobs[i].logprob), i == 2) << i;
  }
}

TEST_P(PaddedVocabulary, DecodesToNothing) {
  const PaddedModel padded({5});
  const LanguageModel model = padded.load(GetParam());
  EXPECT_EQ(model.decode(std::vector<std::int32_t>{287, 0, 5, 90, 1, 200}), "!\"");
  for (const std::int32_t id : {-1, 288, 1 << 30}) {
    const std::vector<std::int32_t> ids = {0, id};
    EXPECT_HAS(error_of(ErrorCode::kInvalidArgument, [&] { model.decode(ids); }),
               "is not in the vocabulary, whose ids are below 288");
  }
}

TEST(DrawableTokens, AreAllWithoutATokenizerAndMustNotBeNone) {
  ModelConfig config;
  config.vocab_size = 7;
  EXPECT_EQ(drawable_tokens(config, nullptr).limit, 7);
  EXPECT_TRUE(drawable_tokens(config, nullptr).absent.empty());
  const auto tokenizer =
      parse_tokenizer_json(R"({"model": {"type": "BPE", "vocab": {"a": 9}, "merges": []}})", "t");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { drawable_tokens(config, tokenizer.get()); }),
             "none of the model's 7 ids");
  config.eos_token_ids = {4};
  const DrawableTokens drawable = drawable_tokens(config, tokenizer.get());
  EXPECT_EQ(drawable.limit, 5);
  EXPECT_EQ(drawable.absent, (std::vector<std::int32_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace tessera
