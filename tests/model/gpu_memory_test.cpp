// What happens when a GPU's memory runs out while a model is loaded.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gpu/tested_gpu.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

const ::testing::Environment* const needs_gpu =
    ::testing::AddGlobalTestEnvironment(new tessera::testing::NeedsGpu);

/// Llama with 512 MB of fp32 weights and about 250 MB of cache and buffers.
LanguageModel load_model() {
  RandomModelShape shape;
  shape.name = "test";
  shape.vocab_size = 2048;
  shape.hidden_size = 2048;
  shape.intermediate_size = 4096;
  shape.max_seq_len = 1024;
  shape.num_layers = 3;
  shape.num_heads = 16;
  shape.num_kv_heads = 16;
  shape.head_dim = 128;
  ModelOptions options;
  options.backend = tessera::testing::tested_family().name;
  return LanguageModel::random(shape, DType::kF32, options);
}

std::vector<std::int32_t> generate(LanguageModel& model) {
  const std::vector<std::int32_t> prompt = {1, 2, 3};
  GenerateOptions options;
  options.max_tokens = 4;
  options.stop_at_eos = false;
  return model.generate(prompt, options).tokens;
}

TEST(GpuMemory, ThatRunsOutWhileAModelLoadsIsNamedAndTheProcessGoesOn) {
  if (tessera::testing::tested_gpu_is_slow()) GTEST_SKIP() << "seven large models are too many here";
  gpu::Gpu& device = tessera::testing::tested_gpu();
  std::vector<std::int32_t> expected;
  {
    LanguageModel model = load_model();  // and whatever a process allocates once
    expected = generate(model);
  }
  // At these sizes loading ends at an early weight, at a late one, and at the buffers.
  for (const std::size_t left_mb : {std::size_t{40}, std::size_t{300}, std::size_t{600}}) {
    SCOPED_TRACE(left_mb);
    std::shared_ptr<std::byte> left = device.allocate(left_mb * kMegabyte, "what is left");
    std::vector<std::shared_ptr<std::byte>> held;
    for (std::size_t piece = std::size_t{64} << 30; piece >= 2 * kMegabyte;) {
      try {
        held.push_back(device.allocate(piece, "the test"));
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kOutOfMemory);
        piece /= 2;
      }
    }
    left.reset();
    device.synchronize({});
    try {
      LanguageModel model = load_model();
      ADD_FAILURE() << "the model was loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.message();
      const std::string text = error.message();
      for (const char* part : {"MB", "free", "the test", "weight"}) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
      }
      std::printf("%s\n", text.c_str());
    }
    held.clear();
    device.synchronize({});
    LanguageModel model = load_model();
    EXPECT_EQ(generate(model), expected);
  }
}

}  // namespace
}  // namespace tessera
