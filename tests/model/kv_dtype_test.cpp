// The KV cache's dtype: a cache of e4m3 takes a quarter of one of fp32, and the backends store and read the
// same numbers in it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tessera/engine.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

LanguageModel tiny_model(const std::string& backend, std::optional<DType> kv_dtype,
                         DType weights = DType::kF32) {
  ModelOptions options;
  options.backend = backend;
  options.max_seq_len = 64;
  options.kv_dtype = kv_dtype;
  return LanguageModel::random(random_model_shape("tiny"), weights, options);
}

std::vector<float> logits_of(LanguageModel model) {
  std::vector<std::int32_t> prompt(40);
  std::iota(prompt.begin(), prompt.end(), 1);
  return model.logits(prompt, true);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return std::sqrt(sum);
}

TEST(KvDType, IsTheActivationsUnlessAskedFor) {
  const LanguageModel usual = tiny_model("cpu", std::nullopt);
  EXPECT_EQ(usual.info().kv_dtype, DType::kF32);
  const LanguageModel narrow = tiny_model("cpu", DType::kF8E4M3);
  EXPECT_EQ(narrow.info().kv_dtype, DType::kF8E4M3);
  EXPECT_EQ(narrow.info().activation_dtype, DType::kF32);
  EXPECT_EQ(4 * narrow.info().kv_cache_bytes, usual.info().kv_cache_bytes);
  const LanguageModel of_bf16 = tiny_model("cpu", DType::kF8E4M3, DType::kBF16);
  EXPECT_EQ(2 * of_bf16.info().kv_cache_bytes,
            tiny_model("cpu", DType::kBF16, DType::kBF16).info().kv_cache_bytes);
}

TEST(KvDType, OfAnyOtherTypeIsAnError) {
  try {
    tiny_model("cpu", DType::kF16);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message().find("kv_dtype is f16; expected f8e4m3, or f32"), std::string::npos)
        << error.message();
  }
}

// What rounding to e4m3 changes is far more than what the backends' arithmetic does.
TEST(KvDType, BackendsReadTheSameNumbersInACacheOfE4M3) {
  const std::vector<float> wide = logits_of(tiny_model("reference", std::nullopt));
  const std::vector<float> narrow = logits_of(tiny_model("reference", DType::kF8E4M3));
  const double rounding = distance(narrow, wide);
  EXPECT_GT(rounding, 0);
  for (const std::string backend : {"cpu", "unfused"}) {
    EXPECT_LT(distance(logits_of(tiny_model(backend, DType::kF8E4M3)), narrow), 0.1 * rounding) << backend;
  }
}

TEST(KvDType, AttentionCanBeLookedAtInACacheOfE4M3) {
  const auto weights_of = [](std::optional<DType> kv_dtype) {
    EngineOptions options;
    options.max_seq_len = 64;
    options.max_batch = 1;
    options.kv_dtype = kv_dtype;
    LoadOptions load;
    load.backend = "cpu";
    Engine engine(Model::random(random_model_shape("tiny"), DType::kF32, load), options);
    AttentionRequest request;
    request.tokens.resize(40);
    std::iota(request.tokens.begin(), request.tokens.end(), 1);
    request.positions = {39};
    engine.submit(request);
    std::vector<float> weights;
    while (engine.has_work()) {
      for (const Event& event : engine.step()) {
        EXPECT_EQ(event.type, Event::Type::kFinished) << event.error_message;
        weights = event.attention;
      }
    }
    return weights;
  };
  const std::vector<float> wide = weights_of(std::nullopt), narrow = weights_of(DType::kF8E4M3);
  ASSERT_EQ(narrow.size(), wide.size());
  ASSERT_EQ(narrow.size() % 40, 0u);
  ASSERT_GT(narrow.size(), 0u);
  for (std::size_t row = 0; row < narrow.size(); row += 40) {
    EXPECT_NEAR(std::accumulate(narrow.begin() + static_cast<std::ptrdiff_t>(row),
                                narrow.begin() + static_cast<std::ptrdiff_t>(row + 40), 0.0),
                1, 1e-5);
  }
  // Keys lose a sixteenth of themselves at most.
  EXPECT_GT(distance(narrow, wide), 0);
  EXPECT_LT(distance(narrow, wide), distance(std::vector<float>(wide.size()), wide) / 16);
}

}  // namespace
}  // namespace tessera
