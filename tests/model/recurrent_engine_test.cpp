// Sequences of models whose layers have states beside keys and values: states go from slot to slot with their
// sequences, are made anew where a sequence had to leave, and are taken over only where they are of use.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "model/golden_fixture.h"
#include "model/tiny_requests.h"
#include "tessera/engine.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

/// Of a short convolution, and of the gated delta rule.
class RecurrentEngine : public testing::TestWithParam<std::string> {
 protected:
  const GoldenFixture fixture_ = read_golden_fixture(GetParam());

  ModelOptions options() const {
    ModelOptions options = golden_options("cpu");
    options.batch_invariant = true;
    options.page_size = 4;
    return options;
  }

  /// Prompts of several lengths and beginnings.
  std::vector<std::vector<std::int32_t>> prompts() const {
    std::vector<std::vector<std::int32_t>> prompts;
    for (const auto& [first, count] : {std::pair(0, 30), {5, 3}, {0, 17}, {11, 24}, {20, 1}, {2, 9}})
      prompts.emplace_back(fixture_.tokens.begin() + first, fixture_.tokens.begin() + first + count);
    return prompts;
  }

  std::vector<std::vector<std::int32_t>> alone(const std::vector<std::vector<std::int32_t>>& prompts) const {
    std::vector<std::vector<std::int32_t>> tokens;
    for (const std::vector<std::int32_t>& prompt : prompts) {
      LanguageModel model = LanguageModel::load(fixture_.model, options());
      tokens.push_back(model.generate(prompt, twenty_tokens()).tokens);
    }
    return tokens;
  }

  static GenerateOptions twenty_tokens() {
    GenerateOptions generate;
    generate.max_tokens = 20;
    generate.stop_at_eos = false;
    return generate;
  }
};

INSTANTIATE_TEST_SUITE_P(, RecurrentEngine, testing::Values("lfm2", "qwen3_5", "qwen3_5_moe"));

TEST_P(RecurrentEngine, GivesEachSequenceItsTokensThoughPagesRunOut) {
  const auto many = prompts();
  const auto expected = alone(many);
  Model model = Model::load(fixture_.model, {.backend = "cpu", .activation_dtype = DType::kF32});
  EngineOptions options;
  options.max_seq_len = 80;
  options.max_batch = 3;  // fewer than there are, whose slots others had before
  options.page_size = 4;
  options.max_kv_tokens = 96;
  options.prefill_chunk = 10;
  options.batch_invariant = true;
  options.prefix_cache = true;
  Engine engine(model, options);
  std::map<RequestId, std::vector<std::int32_t>> tokens;
  std::vector<RequestId> ids;
  for (int round = 0; round < 2; ++round) {
    for (const std::vector<std::int32_t>& prompt : many) {
      Request request = request_of(prompt, 20);
      request.stop_at_eos = false;
      ids.push_back(engine.submit(std::move(request)));
    }
  }
  Request cut_off = request_of(many.front(), 40);
  cut_off.stop_at_eos = false;
  const RequestId cancelled = engine.submit(std::move(cut_off));
  while (engine.has_work()) {
    for (const Event& event : engine.step()) {
      EXPECT_NE(event.type, Event::Type::kError) << event.error_message;
      if (event.type == Event::Type::kToken) tokens[event.id].push_back(event.token);
      if (event.id == cancelled && event.type == Event::Type::kToken && tokens[cancelled].size() == 5) {
        EXPECT_TRUE(engine.cancel(cancelled));
      }
    }
  }
  for (std::size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(tokens[ids[i]], expected[i % expected.size()]) << "request " << i;
  EXPECT_GT(engine.stats().preemptions, 0u);
  EXPECT_EQ(engine.stats().cached_tokens, 0u) << "pages without states are of use to nobody";
}

TEST_P(RecurrentEngine, KeepsAConversationAsLongAsItGoesOn) {
  LanguageModel model = LanguageModel::load(fixture_.model, options());
  GenerateOptions keep = twenty_tokens();
  keep.max_tokens = 6;
  keep.keep_cache = true;
  GenerateOptions fresh = keep;
  fresh.keep_cache = false;
  std::vector<std::int32_t> prompt(fixture_.tokens.begin(), fixture_.tokens.begin() + 9);
  std::size_t in_cache = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const Generation kept = model.generate(prompt, keep);
    LanguageModel another = LanguageModel::load(fixture_.model, options());
    EXPECT_EQ(kept.tokens, another.generate(prompt, fresh).tokens) << turn;
    EXPECT_EQ(kept.stats.cached_tokens, static_cast<std::int64_t>(in_cache)) << turn;
    in_cache = prompt.size() + kept.tokens.size() - 1;
    prompt.insert(prompt.end(), kept.tokens.begin(), kept.tokens.end());
    prompt.push_back(fixture_.tokens[static_cast<std::size_t>(turn)]);
  }
  // What differs anywhere, or is all that was computed, begins anew.
  for (const std::size_t length : {prompt.size() - 3, std::size_t{5}}) {
    prompt.resize(length);
    const Generation kept = model.generate(prompt, keep);
    LanguageModel another = LanguageModel::load(fixture_.model, options());
    EXPECT_EQ(kept.tokens, another.generate(prompt, fresh).tokens);
    EXPECT_EQ(kept.stats.cached_tokens, 0);
  }
}

TEST_P(RecurrentEngine, LooksAtLayersWithAttentionAlone) {
  Model model = Model::load(fixture_.model, {.backend = "cpu"});
  EngineOptions options;
  options.max_seq_len = 40;
  Engine engine(model, options);
  AttentionRequest request;
  request.tokens = {fixture_.tokens.begin(), fixture_.tokens.begin() + 6};
  request.positions = {5};
  request.layers = {0};
  try {
    engine.submit(request);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("layer 0 has no attention to look at"), std::string::npos)
        << error.message();
  }
  request.layers = {};
  const RequestId id = engine.submit(request);
  std::vector<float> weights;
  while (engine.has_work()) {
    for (Event& event : engine.step()) {
      EXPECT_NE(event.type, Event::Type::kError) << event.error_message;
      if (event.id == id && event.type == Event::Type::kFinished) weights = std::move(event.attention);
    }
  }
  // One layer, its heads, one position, six tokens.
  EXPECT_EQ(weights.size(), static_cast<std::size_t>(model.info().num_heads) * 6);
  for (std::size_t row = 0; row + 6 <= weights.size(); row += 6) {
    float sum = 0;
    for (std::size_t i = 0; i < 6; ++i) sum += weights[row + i];
    EXPECT_NEAR(sum, 1, 1e-3);
  }
}

}  // namespace
}  // namespace tessera
