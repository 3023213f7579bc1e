// What classes of transformers with latent attention make of config.json.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hf_config_files.h"
#include "model_files.h"

namespace tessera {
namespace {

using namespace testing_files;

// What the configuration classes of transformers 5.24 have for keys that are left out.
TEST(HfLatent, ReadsADeepSeekV3) {
  const json base = minimal("DeepseekV3ForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kDeepSeek);
  EXPECT_EQ(c.hidden_size, 7168);
  EXPECT_EQ(c.num_heads, 128);
  const LatentAttentionConfig expected = {
      .q_rank = 1536, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  EXPECT_EQ(c.latent, expected);
  EXPECT_EQ(c.num_kv_heads, 1);
  EXPECT_EQ(c.head_dim, 576);
  EXPECT_EQ(c.rope.rotary_dim, 64);
  EXPECT_EQ(c.rope.pairing, RopePairing::kInterleaved);
  EXPECT_FLOAT_EQ(*c.softmax_scale, static_cast<float>(1 / std::sqrt(192.0)));
  EXPECT_EQ(c.layer_has_experts, (std::vector<bool>{false, false, false, true}));
  const MixtureConfig mixture = {.num_experts = 256,
                                 .num_experts_per_token = 8,
                                 .intermediate_size = 2048,
                                 .scoring = ExpertScoring::kSigmoid,
                                 .weight_scale = 2.5f,
                                 .score_bias = true,
                                 .num_groups = 8,
                                 .num_groups_per_token = 4,
                                 .shared_intermediate_size = 2048};
  EXPECT_EQ(c.mixture, mixture);

  // Moonlight's.
  const ModelConfig other = parse(
      with(base, {{"q_lora_rank", nullptr}, {"n_group", 1}, {"topk_group", 1}, {"rope_interleave", false}}));
  EXPECT_EQ(other.latent->q_rank, 0);
  EXPECT_EQ(other.rope.pairing, RopePairing::kHalves);

  const json yarn = {{"type", "yarn"},
                     {"factor", 40},
                     {"original_max_position_embeddings", 4096},
                     {"mscale", 1.0},
                     {"mscale_all_dim", 1.0}};
  const double mscale = 0.1 * std::log(40.0) + 1;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const ModelConfig scaled = parse(with(base, {{key, yarn}, {"max_position_embeddings", 163840}}));
    ASSERT_TRUE(scaled.rope.yarn);
    EXPECT_EQ(scaled.rope.yarn->attention_factor, 1);
    EXPECT_FLOAT_EQ(*scaled.softmax_scale, static_cast<float>(mscale * mscale / std::sqrt(192.0)));
  }
  const ModelConfig plain = parse(with(base, {{"rope_scaling", with(yarn, {{"mscale_all_dim", 0}})}}));
  EXPECT_FLOAT_EQ(*plain.softmax_scale, static_cast<float>(1 / std::sqrt(192.0)));
  EXPECT_FLOAT_EQ(*plain.rope.yarn->attention_factor, static_cast<float>(mscale));

  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(base, {{"attention_bias", true}}));
                      }),
             "attention_bias is true; only models without biases");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        parse(with(base, {{"kv_lora_rank", 0}}));
                      }),
             "the rank of keys and values is 0, expected 1 to 16384");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        parse(with(base, {{"v_head_dim", 1 << 25}}));
                      }),
             "v_head_dim is 33554432; no more than 1048576 was expected");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        parse(with(base, {{"qk_rope_head_dim", 63}}));
                      }),
             "expected an even number");
}

TEST(HfLatent, ReadsADeepSeekV2) {
  const json base = with(minimal("DeepseekV2ForCausalLM"), {{"num_experts_per_tok", 6}});
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kDeepSeek);
  EXPECT_EQ(c.head_dim, 576);
  EXPECT_EQ(c.latent->q_rank, 1536);
  EXPECT_TRUE(c.layer_has_experts.empty());
  const MixtureConfig mixture = {.num_experts = 64,
                                 .num_experts_per_token = 6,
                                 .intermediate_size = 1407,
                                 .normalized = false,
                                 .num_experts_of_group = 1,
                                 .shared_intermediate_size = 2814};
  EXPECT_EQ(c.mixture, mixture);
  // As V2 and V2.5 have them; "greedy" reads no groups.
  const json groups = {{"n_group", 8}, {"topk_group", 3}, {"num_experts", 160}};
  const ModelConfig grouped = parse(with(with(base, groups), {{"topk_method", "group_limited_greedy"}}));
  EXPECT_EQ(grouped.mixture->num_groups, 8);
  EXPECT_EQ(grouped.mixture->num_groups_per_token, 3);
  EXPECT_EQ(grouped.mixture->num_experts_of_group, 1);
  EXPECT_EQ(parse(with(base, groups)).mixture->num_groups, 1);
  EXPECT_EQ(parse(with(base, {{"routed_scaling_factor", 16.0}})).mixture->weight_scale, 16);
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(base, {{"topk_method", "noaux_tc"}}));
                      }),
             "topk_method is \"noaux_tc\"; greedy and group_limited_greedy are supported");
}

TEST(HfLatent, ReadsAGlm4MoeLite) {
  const json base = minimal("Glm4MoeLiteForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kDeepSeek);
  const LatentAttentionConfig expected = {
      .q_rank = 768, .kv_rank = 512, .nope_dim = 192, .rope_dim = 64, .value_dim = 256};
  EXPECT_EQ(c.latent, expected);
  EXPECT_FLOAT_EQ(*c.softmax_scale, 1.0f / 16);
  EXPECT_EQ(c.mixture->weight_scale, 1.8f);
  EXPECT_EQ(c.layer_has_experts, (std::vector<bool>{false, true, true, true}));
  const auto types = [&](const json& list) {
    return parse(with(base, {{"mlp_layer_types", list}})).layer_has_experts;
  };
  EXPECT_EQ(types({"dense", "sparse", "dense", "sparse"}), (std::vector<bool>{false, true, false, true}));
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { types({"dense"}); }),
             "a list of one for each of the 4 layers was expected");
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        types({"dense", "other", "dense", "sparse"});
                      }),
             "supported are dense and sparse");
}

}  // namespace
}  // namespace tessera
