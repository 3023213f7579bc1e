// The shipped demo model, from its files to text, against what Hugging Face transformers computes with it in
// fp32.

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/golden_fixture.h"
#include "tessera/model.h"

namespace tessera {
namespace {

constexpr double kTolerance = 2e-3;

LanguageModel load_demo(const std::string& backend, std::optional<DType> activation_dtype) {
  ModelOptions options;
  options.backend = backend;
  options.activation_dtype = activation_dtype;
  return LanguageModel::load(std::filesystem::path(TESSERA_SOURCE_DIR) / "models" / "demo", options);
}

class Demo : public testing::TestWithParam<const char*> {
 protected:
  DemoFixture fixture_ = read_demo_fixture();
};

TEST_P(Demo, LogitsAgreeWithTransformers) {
  LanguageModel model = load_demo(GetParam(), DType::kF32);
  const std::size_t vocab_size = static_cast<std::size_t>(model.info().vocab_size);
  const std::vector<float> logits = model.logits(fixture_.tokens, true);
  // The fixture has those of the prompt's last positions.
  const std::vector<float> last(logits.end() - static_cast<std::ptrdiff_t>(fixture_.logits.size()),
                                logits.end());
  EXPECT_LE(max_relative_row_error(last, fixture_.logits, vocab_size), kTolerance);
}

TEST_P(Demo, GreedyTextIsThatOfTransformers) {
  LanguageModel model = load_demo(GetParam(), DType::kF32);
  EXPECT_EQ(model.encode(fixture_.prompt), fixture_.tokens);
  GenerateOptions options;
  options.max_tokens = static_cast<std::int64_t>(fixture_.greedy.size());
  std::string text;
  const Generation generation =
      model.generate(model.encode(fixture_.prompt), options, [&](std::int32_t, std::string_view piece) {
        text += piece;
        return true;
      });
  EXPECT_EQ(generation.tokens, fixture_.greedy);
  EXPECT_EQ(text, fixture_.greedy_text);
}

INSTANTIATE_TEST_SUITE_P(Backends, Demo, testing::Values("cpu", "unfused", "reference"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           return std::string(info.param);
                         });

TEST(DemoModel, WritesWholeStoriesInItsOwnDType) {
  LanguageModel model = load_demo("auto", std::nullopt);
  EXPECT_EQ(model.info().activation_dtype, DType::kBF16);
  GenerateOptions options;
  options.max_tokens = 1000;
  options.sampling.temperature = 0.7f;
  options.sampling.top_p = 0.95f;
  // Roundings, and with them the stories, differ between SIMD targets; a long one may not end.
  int ended = 0;
  for (options.sampling.seed = 1; options.sampling.seed <= 4; ++options.sampling.seed) {
    const Generation generation = model.generate(model.encode("Once upon a time"), options);
    ended += generation.stop_reason == StopReason::kEndOfText && generation.tokens.size() > 100 ? 1 : 0;
  }
  EXPECT_GE(ended, 3);
}

}  // namespace
}  // namespace tessera
