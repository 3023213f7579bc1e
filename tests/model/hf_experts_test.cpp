// What each class of transformers with mixtures of experts makes of config.json.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hf_config_files.h"
#include "model_files.h"

namespace tessera {
namespace {

using namespace testing_files;

// What the configuration classes of transformers 5.24 have for keys that are left out.
TEST(HfExperts, ReadsAQwen3Moe) {
  const ModelConfig defaults = parse(minimal("Qwen3MoeForCausalLM"));
  EXPECT_EQ(defaults.architecture, Architecture::kQwen3Moe);
  EXPECT_EQ(defaults.qk_norm, QkNorm::kEachHead);
  EXPECT_EQ(defaults.hidden_size, 2048);
  EXPECT_EQ(defaults.head_dim, 64);
  EXPECT_EQ(defaults.num_kv_heads, 4);
  ASSERT_TRUE(defaults.mixture);
  EXPECT_EQ(defaults.mixture->num_experts, 128);
  EXPECT_EQ(defaults.mixture->num_experts_per_token, 8);
  EXPECT_EQ(defaults.mixture->intermediate_size, 768);
  EXPECT_FALSE(defaults.mixture->normalized || defaults.mixture->router_bias ||
               defaults.mixture->expert_bias);
  EXPECT_TRUE(defaults.layer_has_experts.empty());
  EXPECT_FALSE(defaults.sliding_window || defaults.attention_sinks || defaults.qkv_bias);

  const json given = with(minimal("Qwen3MoeForCausalLM"), {{"num_experts", 16},
                                                           {"num_experts_per_tok", 4},
                                                           {"moe_intermediate_size", 96},
                                                           {"norm_topk_prob", true},
                                                           {"sliding_window", 64},
                                                           {"use_sliding_window", true}});
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.mixture->num_experts, 16);
  EXPECT_EQ(c.mixture->num_experts_per_token, 4);
  EXPECT_EQ(c.mixture->intermediate_size, 96);
  EXPECT_TRUE(c.mixture->normalized);
  EXPECT_EQ(c.sliding_window, 64);
  EXPECT_TRUE(c.layer_uses_sliding_window.empty());
  EXPECT_EQ(parse(with(given, {{"num_local_experts", 32}})).mixture->num_experts, 32);

  const auto layers = [&](const json& fields) { return parse(with(given, fields)).layer_has_experts; };
  EXPECT_EQ(layers({{"mlp_only_layers", {0, 2, 9}}}), (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(layers({{"decoder_sparse_step", 2}}), (std::vector<bool>{false, true, false, true}));
  EXPECT_FALSE(parse(with(given, {{"mlp_only_layers", {0, 1, 2, 3}}})).mixture);
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        layers({{"decoder_sparse_step", 0}});
                      }),
             "decoder_sparse_step is 0; a positive number was expected");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        layers({{"mlp_only_layers", 3}});
                      }),
             "mlp_only_layers is 3; a list of layers was expected");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        layers({{"num_experts", 1 << 20}});
                      }),
             "the number of experts is 1048576, expected 1 to 4096");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        layers({{"num_experts_per_tok", 17}});
                      }),
             "the number of experts of a token is 17, expected 1 to 16");
}

TEST(HfExperts, ReadsAMixtral) {
  const ModelConfig c = parse(minimal("MixtralForCausalLM"));
  EXPECT_EQ(c.architecture, Architecture::kMixtral);
  EXPECT_EQ(c.num_kv_heads, 8);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  ASSERT_TRUE(c.mixture);
  EXPECT_EQ(c.mixture->num_experts, 8);
  EXPECT_EQ(c.mixture->num_experts_per_token, 2);
  EXPECT_EQ(c.mixture->intermediate_size, 14336);
  EXPECT_TRUE(c.mixture->normalized);
  EXPECT_EQ(c.rope.theta, 1000000);
  EXPECT_FALSE(c.sliding_window);
  EXPECT_EQ(parse(with(minimal("MixtralForCausalLM"), {{"sliding_window", 4096}})).sliding_window, 4096);
}

TEST(HfExperts, ReadsAGptOss) {
  const ModelConfig c = parse(minimal("GptOssForCausalLM"));
  EXPECT_EQ(c.architecture, Architecture::kGptOss);
  EXPECT_EQ(c.activation, Activation::kClampedSilu);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.num_heads, 64);
  EXPECT_TRUE(c.attention_sinks && c.qkv_bias && c.o_bias);
  ASSERT_TRUE(c.mixture);
  EXPECT_EQ(c.mixture->num_experts, 128);
  EXPECT_EQ(c.mixture->num_experts_per_token, 4);
  EXPECT_EQ(c.mixture->intermediate_size, 2880);
  EXPECT_TRUE(c.mixture->normalized && c.mixture->router_bias && c.mixture->expert_bias);
  EXPECT_EQ(c.sliding_window, 128);
  EXPECT_EQ(c.layer_uses_sliding_window, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(c.rope.theta, 150000);
  ASSERT_TRUE(c.rope.yarn);
  EXPECT_EQ(c.rope.yarn->factor, 32);
  EXPECT_EQ(c.rope.yarn->original_max_seq_len, 4096);
  EXPECT_FALSE(c.rope.yarn->truncate);
  // Its own blocks are no reason to refuse it.
  EXPECT_TRUE(
      parse(with(minimal("GptOssForCausalLM"), {{"quantization_config", {{"quant_method", "mxfp4"}}}}))
          .mixture);
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [] {
                        parse(with(minimal("GptOssForCausalLM"), {{"swiglu_limit", 8.0}}));
                      }),
             "swiglu_limit is 8.0; only 7 is supported");
}

TEST(HfExperts, ReadsAnOlmoe) {
  const json base = minimal("OlmoeForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kOlmoe);
  EXPECT_EQ(c.vocab_size, 50304);
  EXPECT_EQ(c.hidden_size, 2048);
  EXPECT_EQ(c.num_kv_heads, 16);
  EXPECT_EQ(c.max_seq_len, 4096);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.qk_norm, QkNorm::kAllHeads);
  EXPECT_TRUE(c.norms_before && !c.norms_after);
  EXPECT_EQ(c.eos_token_ids, std::vector<std::int32_t>{50279});
  const MixtureConfig expected = {
      .num_experts = 64, .num_experts_per_token = 8, .intermediate_size = 2048, .normalized = false};
  EXPECT_EQ(c.mixture, expected);
  EXPECT_TRUE(parse(with(base, {{"norm_topk_prob", true}})).mixture->normalized);
  EXPECT_TRUE(parse(with(base, {{"clip_qkv", nullptr}})).mixture);
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(base, {{"clip_qkv", 8.0}}));
                      }),
             "clip_qkv is 8.0; only queries, keys and values of any size are supported");
}

TEST(HfExperts, ReadsAGraniteMoe) {
  const json base = minimal("GraniteMoeForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kGraniteMoe);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  const MixtureConfig expected = {
      .num_experts = 8, .num_experts_per_token = 2, .intermediate_size = 11008, .normalized = true};
  EXPECT_EQ(c.mixture, expected);
  EXPECT_EQ(c.softmax_scale, 1);
  EXPECT_EQ(parse(with(base, {{"residual_multiplier", 0.25}})).residual_scale, 0.25f);
  EXPECT_EQ(parse(with(base, {{"num_local_experts", 40}, {"num_experts_per_tok", 8}})).mixture->num_experts,
            40);
}

}  // namespace
}  // namespace tessera
