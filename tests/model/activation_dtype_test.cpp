// Which dtype a model's activations have, by the types of its tensors, and its routers.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "backends/cpu/simd_target.h"
#include "backends/factories.h"
#include "core/block_format.h"
#include "model/random_checkpoint.h"
#include "model/weights.h"

namespace tessera {
namespace {

/// Of a model of `layers` in which some tensors are of other types, on a device that multiplies blocks by
/// fp32 or by bf16.
DType activation_dtype(DType layers, const std::map<std::string, DType>& others = {},
                       bool multiplies_bf16 = false) {
  RandomCheckpoint random = make_random_checkpoint(random_model_shape("tiny"), layers);
  std::vector<std::vector<std::byte>> memory;
  for (const auto& [name, dtype] : others) {
    CheckpointTensor& tensor = random.checkpoint.tensors.at(name);
    std::size_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= static_cast<std::size_t>(extent);
    memory.emplace_back(dtype_bytes(dtype, elements));
    tensor.dtype = dtype;
    tensor.data = memory.back().data();
    tensor.size_bytes = memory.back().size();
  }
  return activation_dtype_of(random.checkpoint, multiplies_bf16);
}

TEST(ActivationDType, IsThatOfTheLayersMatricesIfItHas16Bits) {
  EXPECT_EQ(activation_dtype(DType::kBF16), DType::kBF16);
  EXPECT_EQ(activation_dtype(DType::kF16), DType::kF16);
  EXPECT_EQ(activation_dtype(DType::kF32), DType::kF32);
  EXPECT_EQ(activation_dtype(DType::kQ8_0), DType::kF32);
}

TEST(ActivationDType, DoesNotFollowTheEmbeddingHoweverLargeNorVectors) {
  EXPECT_EQ(activation_dtype(DType::kBF16, {{"embed_tokens.weight", DType::kF32}}), DType::kBF16);
  EXPECT_EQ(activation_dtype(DType::kF16, {{"embed_tokens.weight", DType::kQ8_0}}), DType::kF16);
  EXPECT_EQ(activation_dtype(DType::kQ8_0, {{"embed_tokens.weight", DType::kBF16}}), DType::kF32);
  EXPECT_EQ(activation_dtype(DType::kBF16, {{"layers.0.input_layernorm.weight", DType::kF16}}), DType::kBF16);
}

TEST(ActivationDType, IsF32WhereLayersDiffer) {
  for (const DType other : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    EXPECT_EQ(activation_dtype(DType::kBF16, {{"layers.1.mlp.down_proj.weight", other}}), DType::kF32);
  }
}

TEST(ActivationDType, OfBlocksIsBf16WhereThatIsMultiplied) {
  EXPECT_EQ(activation_dtype(DType::kQ8_0, {}, true), DType::kBF16);
  EXPECT_EQ(activation_dtype(DType::kQ8_0, {{"layers.1.mlp.down_proj.weight", DType::kF16}}, true),
            DType::kBF16);
  EXPECT_EQ(activation_dtype(DType::kQ8_0, {{"layers.1.mlp.down_proj.weight", DType::kF32}}, true),
            DType::kF32);
  EXPECT_EQ(activation_dtype(DType::kF16, {}, true), DType::kF16);
  EXPECT_EQ(activation_dtype(DType::kF32, {}, true), DType::kF32);
}

TEST(ActivationDType, OfBlocksOnACpuIsBf16OnlyWithInstructionsForIt) {
  const RandomCheckpoint random = make_random_checkpoint(random_model_shape("tiny"), DType::kQ8_0);
  EXPECT_EQ(load_weights(random.checkpoint, *make_reference_ops()).activation_dtype, DType::kF32);
  const std::unique_ptr<OpsBackend> ops = make_cpu_ops();
  for (const SimdTarget target : attainable_simd_targets()) {
    set_simd_target(target);
    const DType expected = ops->multiplies_bf16() ? DType::kBF16 : DType::kF32;
    EXPECT_EQ(load_weights(random.checkpoint, *ops).activation_dtype, expected);
    EXPECT_TRUE(target >= SimdTarget::kAvx512Bf16 || expected == DType::kF32);
  }
  set_simd_target(std::nullopt);
}

TEST(ActivationDType, IsWhatWeightsAreLoadedWith) {
  const RandomCheckpoint random = make_random_checkpoint(random_model_shape("tiny"), DType::kBF16);
  const std::unique_ptr<OpsBackend> ops = make_reference_ops();
  EXPECT_EQ(load_weights(random.checkpoint, *ops).activation_dtype, DType::kBF16);
}

TEST(LoadWeights, GivesRoutersOfF32AsBf16WhereThatHoldsTheirNumbers) {
  const std::unique_ptr<OpsBackend> ops = make_reference_ops();
  RandomCheckpoint random = make_random_checkpoint(random_model_shape("tiny-moe"), DType::kQ8_0);
  CheckpointTensor& router = random.checkpoint.tensors.at("layers.1.mlp.router.weight");
  ASSERT_EQ(router.dtype, DType::kBF16);
  std::vector<std::uint16_t> halves(router.size_bytes / 2);
  std::memcpy(halves.data(), router.data, router.size_bytes);
  std::vector<std::uint32_t> numbers;  // of fp32
  for (const std::uint16_t half : halves) numbers.push_back(std::uint32_t{half} << 16);
  router.dtype = DType::kF32;
  router.data = reinterpret_cast<const std::byte*>(numbers.data());
  router.size_bytes *= 2;
  const ModelWeights weights = load_weights(random.checkpoint, *ops);
  const Weight& loaded = weights.layers[1].router;
  ASSERT_EQ(loaded.dtype, DType::kBF16);
  EXPECT_EQ(std::memcmp(loaded.data, halves.data(), 2 * halves.size()), 0);
  numbers.back() |= 1;  // which bf16 doesn't hold
  EXPECT_EQ(load_weights(random.checkpoint, *ops).layers[1].router.dtype, DType::kF32);
}

}  // namespace
}  // namespace tessera
