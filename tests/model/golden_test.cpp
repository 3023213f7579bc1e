// Logits and greedy tokens of every golden model against what Hugging Face transformers computed, over
// backends, prefill chunks, page sizes, batches and activation dtypes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/golden_fixture.h"
#include "tessera/attention.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

// An implementation within this of the largest logit must choose the fixtures' greedy tokens (see their
// README).
constexpr double kTolerance = 2e-3;

std::size_t vocab_size_of(const GoldenFixture& fixture) {
  return fixture.logits.size() / fixture.tokens.size();
}

Generation generate_greedily(LanguageModel& model, const GoldenFixture& fixture) {
  GenerateOptions options;
  options.max_tokens = static_cast<std::int64_t>(fixture.greedy.size());
  return model.generate(fixture.tokens, options);
}

std::vector<std::string> golden_16bit_fixture_names() {
  std::vector<std::string> names;
  for (const auto& [name, errors] : read_golden_errors_16bit()) names.push_back(name);
  return names;
}

std::vector<std::string> usable_backends() {
  std::vector<std::string> names;
  for (const BackendInfo& backend : attention_backends()) {
    if (backend.unavailable_reason.empty()) names.push_back(backend.name);
  }
  return names;
}

std::vector<std::string> batch_invariant_backends() {
  std::vector<std::string> names = usable_backends();
  std::erase_if(names, [](const std::string& name) { return name.ends_with("unfused"); });
  return names;
}

std::string test_name(const testing::TestParamInfo<std::tuple<std::string, std::string>>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param);
}

class Golden : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  GoldenFixture fixture_ = read_golden_fixture(std::get<0>(GetParam()));
  ModelOptions options_ = golden_options(std::get<1>(GetParam()));
  std::size_t vocab_size_ = vocab_size_of(fixture_);
};

/// Backends that promise batch-invariant bits.
class GoldenBits : public Golden {};

/// Models that transformers runs in 16 bits.
class Golden16 : public Golden {};

TEST_P(Golden, LogitsOfEveryPositionAgreeWithTransformersHoweverThePromptIsSplit) {
  for (const int chunk : {512, 1, 7}) {
    options_.prefill_chunk = chunk;
    LanguageModel model = LanguageModel::load(fixture_.model, options_);
    EXPECT_LE(max_relative_row_error(model.logits(fixture_.tokens, true), fixture_.logits, vocab_size_),
              kTolerance)
        << "chunk " << chunk;
    const std::vector<float> last(fixture_.logits.end() - static_cast<std::ptrdiff_t>(vocab_size_),
                                  fixture_.logits.end());
    EXPECT_LE(max_relative_row_error(model.logits(fixture_.tokens), last, vocab_size_), kTolerance)
        << "chunk " << chunk;
  }
}

TEST_P(Golden, GreedyTokensAreThoseOfTransformersHoweverThePromptIsSplit) {
  for (const int chunk : {512, 1, 7}) {
    options_.prefill_chunk = chunk;
    LanguageModel model = LanguageModel::load(fixture_.model, options_);
    const Generation generation = generate_greedily(model, fixture_);
    EXPECT_EQ(generation.tokens, fixture_.greedy) << "chunk " << chunk;
    EXPECT_EQ(generation.stop_reason, StopReason::kMaxTokens);
    EXPECT_EQ(generation.stats.prompt_tokens, static_cast<std::int64_t>(fixture_.tokens.size()));
    EXPECT_EQ(generation.stats.generated_tokens, static_cast<std::int64_t>(fixture_.greedy.size()));
  }
}

TEST_P(Golden, PagesOfAnySizeGiveTheSameTokens) {
  for (const int page_size : {1, 5, 16, 128}) {
    options_.page_size = page_size;
    LanguageModel model = LanguageModel::load(fixture_.model, options_);
    EXPECT_LE(max_relative_row_error(model.logits(fixture_.tokens, true), fixture_.logits, vocab_size_),
              kTolerance)
        << "page_size " << page_size;
    EXPECT_EQ(generate_greedily(model, fixture_).tokens, fixture_.greedy) << "page_size " << page_size;
  }
}

TEST_P(Golden16, ActivationsErrAtMostTwiceAsMuchAsThoseOfTransformers) {
  const Errors16 bounds = read_golden_errors_16bit().at(fixture_.name);
  for (const auto& [dtype, bound] :
       {std::pair(DType::kBF16, bounds.bf16), std::pair(DType::kF16, bounds.f16)}) {
    options_.activation_dtype = dtype;
    LanguageModel model = LanguageModel::load(fixture_.model, options_);
    EXPECT_EQ(model.info().activation_dtype, dtype);
    EXPECT_LE(max_relative_row_error(model.logits(fixture_.tokens, true), fixture_.logits, vocab_size_),
              2 * bound)
        << dtype_name(dtype);
  }
}

TEST_P(Golden, PromptsInABatchGoOnAsTransformersSays) {
  options_.max_batch = 3;
  options_.prefill_chunk = 27;  // the first prompt is still going in when the second begins to decode
  LanguageModel model = LanguageModel::load(fixture_.model, options_);
  // The prompt, and the prompt with some of its continuation: each goes on along the same tokens.
  std::vector<std::vector<std::int32_t>> prompts(3, fixture_.tokens);
  std::vector<GenerateOptions> generate_options(3);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].insert(prompts[i].end(), fixture_.greedy.begin(),
                      fixture_.greedy.begin() + std::ptrdiff_t(3 * i));
    generate_options[i].max_tokens = std::int64_t(fixture_.greedy.size() - 5 * i);
  }
  const std::vector<Generation> generations = model.generate_batch(prompts, generate_options);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto begin = fixture_.greedy.begin() + std::ptrdiff_t(3 * i);
    EXPECT_EQ(generations[i].tokens, std::vector<std::int32_t>(begin, begin + generate_options[i].max_tokens))
        << "prompt " << i;
  }
}

TEST_P(GoldenBits, OfABatchAreThoseOfEachPromptAlone) {
  options_.batch_invariant = true;
  options_.max_batch = 4;
  options_.prefill_chunk = 11;  // the prompts end in different steps
  LanguageModel model = LanguageModel::load(fixture_.model, options_);
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<GenerateOptions> generate_options;
  for (const std::size_t length : {std::size_t{40}, std::size_t{3}, std::size_t{17}, std::size_t{1}}) {
    prompts.emplace_back(fixture_.tokens.begin(),
                         fixture_.tokens.begin() + static_cast<std::ptrdiff_t>(length));
    GenerateOptions o;
    o.max_tokens = static_cast<std::int64_t>(24 - length / 4);  // and the sequences, too
    o.sampling.temperature = prompts.size() % 2 == 0 ? 1.0f : 0.0f;
    o.sampling.seed = prompts.size();
    generate_options.push_back(o);
  }
  const std::vector<Generation> together = model.generate_batch(prompts, generate_options);
  ASSERT_EQ(together.size(), prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Generation alone = model.generate(prompts[i], generate_options[i]);
    EXPECT_EQ(together[i].tokens, alone.tokens) << "prompt " << i;
    EXPECT_EQ(together[i].stop_reason, alone.stop_reason) << "prompt " << i;
  }
  EXPECT_TRUE(std::equal(together[0].tokens.begin(), together[0].tokens.end(), fixture_.greedy.begin()));
}

TEST_P(GoldenBits, OfLogitsAreTheSameHoweverThePromptIsSplit) {
  options_.batch_invariant = true;
  std::vector<float> whole;
  for (const int chunk : {512, 1, 7, 16}) {
    options_.prefill_chunk = chunk;
    options_.page_size = chunk == 7 ? 5 : 16;
    LanguageModel model = LanguageModel::load(fixture_.model, options_);
    const std::vector<float> logits = model.logits(fixture_.tokens, true);
    if (whole.empty()) whole = logits;
    EXPECT_TRUE(logits == whole) << "chunk " << chunk << ": relative difference "
                                 << max_relative_row_error(logits, whole, vocab_size_);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden,
                         testing::Combine(testing::ValuesIn(golden_fixture_names()),
                                          testing::ValuesIn(usable_backends())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Models, Golden16,
                         testing::Combine(testing::ValuesIn(golden_16bit_fixture_names()),
                                          testing::ValuesIn(usable_backends())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Models, GoldenBits,
                         testing::Combine(testing::ValuesIn(golden_fixture_names()),
                                          testing::ValuesIn(batch_invariant_backends())),
                         test_name);

TEST(GoldenFixtures, AreAllThereAndEveryBackendOfTheCpuRunsThem) {
  EXPECT_GE(golden_fixture_names().size(), 26u);
  const std::vector<std::string> backends = usable_backends();
  for (const char* name : {"cpu", "unfused", "reference"}) {
    EXPECT_NE(std::ranges::find(backends, name), backends.end()) << name;
  }
}

// transformers decides by each sequence's length, and keeps keys of both kinds side by side when one grows
// past the original context; here, as in llama.cpp and vLLM, what sequences may grow to decides.
TEST(LongRope, TheContextThatIsAskedForSaysWhichFactorsCount) {
  const GoldenFixture fixture = read_golden_fixture("phi3_longrope");
  const std::size_t vocab_size = vocab_size_of(fixture);
  const std::size_t original = fixture.short_logits.size() / vocab_size;
  const std::vector<std::int32_t> prompt(fixture.tokens.begin(),
                                         fixture.tokens.begin() + static_cast<std::ptrdiff_t>(original));
  const std::vector<float> long_logits(
      fixture.logits.begin(), fixture.logits.begin() + static_cast<std::ptrdiff_t>(original * vocab_size));
  ModelOptions options = golden_options("cpu");
  for (const auto& [context, expected] :
       {std::pair(original, fixture.short_logits), std::pair(original + 1, long_logits)}) {
    options.max_seq_len = static_cast<std::int64_t>(context);
    LanguageModel model = LanguageModel::load(fixture.model, options);
    EXPECT_LE(max_relative_row_error(model.logits(prompt, true), expected, vocab_size), kTolerance)
        << context;
  }
  EXPECT_GT(max_relative_row_error(fixture.short_logits, long_logits, vocab_size), 10 * kTolerance);
}

TEST(Unfused, RefusesToPromiseBatchInvariantBits) {
  ModelOptions options = golden_options("unfused");
  options.batch_invariant = true;
  try {
    LanguageModel::load(read_golden_fixture("llama2").model, options);
    ADD_FAILURE() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.message();
  }
}

}  // namespace
}  // namespace tessera
