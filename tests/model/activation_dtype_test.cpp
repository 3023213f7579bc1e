// Which dtype a model's activations have, by the types of its tensors.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "backends/factories.h"
#include "core/block_format.h"
#include "model/random_checkpoint.h"
#include "model/weights.h"

namespace tessera {
namespace {

/// Of a model of `layers` in which some tensors are of other types.
DType activation_dtype(DType layers, const std::map<std::string, DType>& others = {},
                       DeviceKind device = DeviceKind::kCpu) {
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
  return activation_dtype_of(random.checkpoint, device);
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

TEST(ActivationDType, OfBlocksIsBf16OnAGpu) {
  for (const DeviceKind gpu : {DeviceKind::kCuda, DeviceKind::kHip}) {
    EXPECT_EQ(activation_dtype(DType::kQ8_0, {}, gpu), DType::kBF16);
    EXPECT_EQ(activation_dtype(DType::kQ8_0, {{"layers.1.mlp.down_proj.weight", DType::kF16}}, gpu),
              DType::kBF16);
    EXPECT_EQ(activation_dtype(DType::kQ8_0, {{"layers.1.mlp.down_proj.weight", DType::kF32}}, gpu),
              DType::kF32);
    EXPECT_EQ(activation_dtype(DType::kF16, {}, gpu), DType::kF16);
    EXPECT_EQ(activation_dtype(DType::kF32, {}, gpu), DType::kF32);
  }
}

TEST(ActivationDType, IsWhatWeightsAreLoadedWith) {
  const RandomCheckpoint random = make_random_checkpoint(random_model_shape("tiny"), DType::kBF16);
  const std::unique_ptr<OpsBackend> ops = make_reference_ops();
  EXPECT_EQ(load_weights(random.checkpoint, *ops).activation_dtype, DType::kBF16);
}

}  // namespace
}  // namespace tessera
