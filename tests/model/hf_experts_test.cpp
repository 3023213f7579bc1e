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

TEST(HfExperts, ReadsAGraniteMoeWithASharedExpert) {
  const json base = minimal("GraniteMoeSharedForCausalLM");
  EXPECT_EQ(parse(base).architecture, Architecture::kGraniteMoe);
  EXPECT_EQ(parse(base).mixture->shared_intermediate_size, 0);
  const ModelConfig c = parse(with(base, {{"shared_intermediate_size", 512}}));
  EXPECT_EQ(c.mixture->shared_intermediate_size, 512);
  EXPECT_FALSE(c.mixture->shared_gate);
  EXPECT_EQ(parse(with(minimal("GraniteMoeForCausalLM"), {{"shared_intermediate_size", 512}}))
                .mixture->shared_intermediate_size,
            0)
      << "that class has none";
}

TEST(HfExperts, ReadsAQwen2Moe) {
  const json base = minimal("Qwen2MoeForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kQwen2Moe);
  EXPECT_EQ(c.hidden_size, 2048);
  EXPECT_EQ(c.intermediate_size, 5632);
  EXPECT_EQ(c.num_kv_heads, 16);
  EXPECT_EQ(c.qk_norm, QkNorm::kNone);
  EXPECT_TRUE(c.qkv_bias && !c.o_bias && !c.sliding_window && c.layer_has_experts.empty());
  const MixtureConfig expected = {.num_experts = 60,
                                  .num_experts_per_token = 4,
                                  .intermediate_size = 1408,
                                  .normalized = false,
                                  .shared_intermediate_size = 5632,
                                  .shared_gate = true};
  EXPECT_EQ(c.mixture, expected);
  EXPECT_FALSE(parse(with(base, {{"qkv_bias", false}})).qkv_bias);
  EXPECT_EQ(parse(with(base, {{"mlp_only_layers", {1}}})).layer_has_experts,
            (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(parse(with(base, {{"shared_expert_intermediate_size", 20480}})).mixture->shared_intermediate_size,
            20480);
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(base, {{"use_sliding_window", true}}));
                      }),
             "use_sliding_window is true; only attention to all tokens before is supported");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        parse(with(base, {{"shared_expert_intermediate_size", -1}}));
                      }),
             "the shared expert's intermediate size is -1, expected 0 to 16777216");
}

TEST(HfExperts, ReadsAGlm4Moe) {
  const json base = with(minimal("Glm4MoeForCausalLM"), {{"head_dim", 128}});
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kGlm4Moe);
  EXPECT_EQ(c.num_heads, 96);
  EXPECT_EQ(c.num_kv_heads, 8);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.rope.pairing, RopePairing::kHalves);
  EXPECT_EQ(c.rope.rotary_dim, 64);
  EXPECT_EQ(c.qk_norm, QkNorm::kNone);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.norms_after);
  EXPECT_EQ(c.layer_has_experts, (std::vector<bool>{false, true, true, true}));
  const MixtureConfig expected = {.num_experts = 128,
                                  .num_experts_per_token = 8,
                                  .intermediate_size = 1408,
                                  .scoring = ExpertScoring::kSigmoid,
                                  .score_bias = true,
                                  .shared_intermediate_size = 1408};
  EXPECT_EQ(c.mixture, expected);

  const ModelConfig other = parse(with(base, {{"use_qk_norm", true},
                                              {"attention_bias", true},
                                              {"n_routed_experts", 160},
                                              {"n_shared_experts", 2},
                                              {"routed_scaling_factor", 2.5},
                                              {"norm_topk_prob", false},
                                              {"n_group", 8},
                                              {"topk_group", 4},
                                              {"first_k_dense_replace", 3}}));
  EXPECT_EQ(other.qk_norm, QkNorm::kEachHead);
  EXPECT_TRUE(other.qkv_bias && !other.o_bias);
  EXPECT_EQ(other.layer_has_experts, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(other.mixture->num_experts, 160);
  EXPECT_EQ(other.mixture->shared_intermediate_size, 2816);
  EXPECT_EQ(other.mixture->weight_scale, 2.5f);
  EXPECT_FALSE(other.mixture->normalized);
  EXPECT_EQ(other.mixture->num_groups, 8);
  EXPECT_EQ(other.mixture->num_groups_per_token, 4);
  EXPECT_TRUE(parse(with(base, {{"first_k_dense_replace", 0}})).layer_has_experts.empty());
  EXPECT_FALSE(parse(with(base, {{"first_k_dense_replace", 4}})).mixture);

  const auto error = [&](const json& fields) {
    return error_of(ErrorCode::kCorruptFile, [&] { parse(with(base, fields)); });
  };
  EXPECT_HAS(error({{"n_group", 3}}),
             "the number of groups of experts is 3, expected one that makes groups of two or more of 128");
  EXPECT_HAS(error({{"n_group", 64}, {"topk_group", 3}}),
             "the number of experts of a token is 8, expected no more than those of its groups, 6");
  EXPECT_HAS(error({{"n_group", 2}, {"topk_group", 3}}),
             "the number of groups of a token is 3, expected 1 to 2");
  EXPECT_HAS(error({{"n_shared_experts", 5000}}),
             "n_shared_experts is 5000; no more than 1024 were expected");
  EXPECT_HAS(error({{"routed_scaling_factor", 0}}), "the scale of experts' weights is 0");
}

TEST(HfExperts, ReadsADots1) {
  const json base =
      with(minimal("Dots1ForCausalLM"), {{"n_routed_experts", 128}, {"num_experts_per_tok", 6}});
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kDots1);
  EXPECT_EQ(c.hidden_size, 4608);
  EXPECT_EQ(c.qk_norm, QkNorm::kEachHead);
  EXPECT_FALSE(c.sliding_window) << "max_window_layers is 62";
  EXPECT_TRUE(c.layer_has_experts.empty());
  EXPECT_FALSE(c.mixture->normalized);
  EXPECT_EQ(c.mixture->shared_intermediate_size, 0);
  EXPECT_EQ(c.mixture->scoring, ExpertScoring::kSigmoid);
  EXPECT_EQ(parse(with(base, {{"max_window_layers", 3}})).layer_uses_sliding_window,
            (std::vector<bool>{false, false, false, true}));
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [] { parse(minimal("Dots1ForCausalLM")); }),
             "the number of experts is 0, expected 1 to 4096");
}

TEST(HfExperts, ReadsAnErnie45Moe) {
  const json base = minimal("Ernie4_5_MoeForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kErnie45Moe);
  EXPECT_EQ(c.hidden_size, 2560);
  EXPECT_EQ(c.rope.theta, 500000);
  EXPECT_EQ(c.rope.pairing, RopePairing::kInterleaved);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.layer_has_experts, (std::vector<bool>{false, true, true, true}));
  const MixtureConfig expected = {.num_experts = 64,
                                  .num_experts_per_token = 6,
                                  .intermediate_size = 1536,
                                  .score_bias = true,
                                  .shared_intermediate_size = 3072};
  EXPECT_EQ(c.mixture, expected);
  const auto layers = [&](const json& fields) { return parse(with(base, fields)).layer_has_experts; };
  EXPECT_EQ(layers({{"moe_layer_interval", 2}}), (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(layers({{"moe_layer_end_index", 2}}), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(parse(with(base, {{"num_experts", 32}, {"num_experts_per_tok", 4}})).mixture->num_experts, 32);
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(base, {{"use_bias", true}}));
                      }),
             "use_bias is true; only models without biases");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        layers({{"moe_layer_interval", 0}});
                      }),
             "moe_layer_interval is 0; a positive number was expected");
}

TEST(HfExperts, ReadsAFlexOlmo) {
  const ModelConfig c = parse(minimal("FlexOlmoForCausalLM"));
  EXPECT_EQ(c.architecture, Architecture::kFlexOlmo);
  EXPECT_EQ(c.vocab_size, 100352);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.rope.theta, 500000);
  EXPECT_EQ(c.qk_norm, QkNorm::kAllHeads);
  EXPECT_TRUE(c.norms_after && !c.norms_before);
  const MixtureConfig expected = {
      .num_experts = 7, .num_experts_per_token = 5, .intermediate_size = 11008, .normalized = false};
  EXPECT_EQ(c.mixture, expected);
}

TEST(HfExperts, ReadsTheTextOfAQwen3VlMoe) {
  const json base = {{"architectures", {"Qwen3VLMoeForConditionalGeneration"}},
                     {"text_config", {{"model_type", "qwen3_vl_moe_text"}, {"num_hidden_layers", 4}}}};
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kQwen3Moe);
  EXPECT_EQ(c.hidden_size, 2048);
  EXPECT_EQ(c.num_kv_heads, 16);
  EXPECT_EQ(c.rope.theta, 500000);
  EXPECT_TRUE(c.transposed_experts);
  const MixtureConfig expected = {.num_experts = 60, .num_experts_per_token = 4, .intermediate_size = 1408};
  EXPECT_EQ(c.mixture, expected);
  const auto text = [&](const json& fields) {
    return parse(with(base, {{"text_config", with(base["text_config"], fields)}}));
  };
  EXPECT_TRUE(text({{"norm_topk_prob", false}}).mixture->normalized) << "which the class doesn't read";
  EXPECT_EQ(text({{"mlp_only_layers", {1}}}).layer_has_experts, (std::vector<bool>{true, false, true, true}));
  // The whole model says whether the output head is its own.
  json tied = with(base, {{"tie_word_embeddings", false}});
  tied["text_config"]["tie_word_embeddings"] = true;
  EXPECT_FALSE(parse(tied).tied_embeddings);
  EXPECT_TRUE(text({{"tie_word_embeddings", true}}).tied_embeddings);
}

TEST(HfExperts, ReadsAMiniMaxM2) {
  const json base = minimal("MiniMaxM2ForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kMiniMaxM2);
  EXPECT_EQ(c.vocab_size, 200064);
  EXPECT_EQ(c.hidden_size, 3072);
  EXPECT_EQ(c.num_heads, 48);
  EXPECT_EQ(c.num_kv_heads, 8);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.max_seq_len, 196608);
  EXPECT_EQ(c.rope.theta, 5000000);
  EXPECT_EQ(c.rope.rotary_dim, 0) << "which the class takes for all of a head";
  EXPECT_EQ(c.qk_norm, QkNorm::kAllHeads);
  const MixtureConfig expected = {.num_experts = 256,
                                  .num_experts_per_token = 8,
                                  .intermediate_size = 1536,
                                  .scoring = ExpertScoring::kSigmoid,
                                  .score_bias = true};
  EXPECT_EQ(c.mixture, expected);
  const auto rotated = [&](const json& fields) { return parse(with(base, fields)).rope.rotary_dim; };
  EXPECT_EQ(rotated({{"rotary_dim", 64}}), 64);
  EXPECT_EQ(rotated({{"rotary_dim", 64}, {"head_dim", 64}}), 0);
  EXPECT_EQ(rotated({{"rotary_dim", 64}, {"partial_rotary_factor", 0.25}}), 32);
  for (const int wrong : {-2, 0, 130}) {
    EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                        [&] {
                          rotated({{"rotary_dim", wrong}});
                        }),
               "; 1 to 128, head_dim, was expected");
  }
}

TEST(HfExperts, ReadsAnExaoneMoe) {
  const json base = minimal("ExaoneMoeForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kExaoneMoe);
  EXPECT_EQ(c.vocab_size, 102400);
  EXPECT_EQ(c.intermediate_size, 16384);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.qk_norm, QkNorm::kEachHead);
  EXPECT_TRUE(c.norms_before && !c.norms_after);
  EXPECT_EQ(c.sliding_window, 4096);
  EXPECT_EQ(c.layer_uses_sliding_window, (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(c.layer_uses_rope, c.layer_uses_sliding_window);
  EXPECT_EQ(c.layer_has_experts, (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(c.eos_token_ids, std::vector<std::int32_t>{53});
  const MixtureConfig expected = {.num_experts = 64,
                                  .num_experts_per_token = 8,
                                  .intermediate_size = 1024,
                                  .scoring = ExpertScoring::kSigmoid,
                                  .weight_scale = 2.5f,
                                  .score_bias = true,
                                  .shared_intermediate_size = 1024};
  EXPECT_EQ(c.mixture, expected);
  // As its publisher spells the class, and with settings of K-EXAONE.
  const ModelConfig published = parse(with(
      minimal("ExaoneMoEForCausalLM"),
      {{"num_experts", 128},
       {"num_shared_experts", 2},
       {"mlp_layer_types", {"dense", "dense", "sparse", "sparse"}},
       {"sliding_window", 128},
       {"sliding_window_pattern", "LLLG"},
       {"layer_types", {"sliding_attention", "sliding_attention", "sliding_attention", "full_attention"}}}));
  EXPECT_EQ(published.architecture, Architecture::kExaoneMoe);
  EXPECT_EQ(published.mixture->num_experts, 128);
  EXPECT_EQ(published.mixture->shared_intermediate_size, 2048);
  EXPECT_EQ(published.layer_has_experts, (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ(published.sliding_window, 128);
}

TEST(HfExperts, ReadsAHunYuanMoe) {
  const json base = with(minimal("HunYuanMoEV1ForCausalLM"), {{"num_experts", 64}, {"moe_topk", 8}});
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kHunYuanMoe);
  EXPECT_EQ(c.vocab_size, 290943);
  EXPECT_EQ(c.qk_norm, QkNorm::kEachHead);
  EXPECT_TRUE(c.qk_norm_after_rope);
  const MixtureConfig expected = {.num_experts = 64,
                                  .num_experts_per_token = 8,
                                  .intermediate_size = 11008,
                                  .shared_intermediate_size = 11008};
  EXPECT_EQ(c.mixture, expected);
  EXPECT_EQ(parse(minimal("HunYuanMoEV1ForCausalLM")).mixture->num_experts, 1);
  // As Hunyuan-A13B has them.
  const auto mixture = [&](const json& fields) { return *parse(with(base, fields)).mixture; };
  EXPECT_EQ(mixture({{"moe_topk", {6, 6, 6, 6}}}).num_experts_per_token, 6);
  EXPECT_EQ(mixture({{"num_experts", {32, 32, 32, 32}}}).num_experts, 32);
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        mixture({{"moe_topk", {8, 8, 4, 8}}});
                      }),
             "moe_topk is a list of 4 values; only equal layers are supported");
  for (const json& wrong : {json::array(), json{-1, -1}, json{1 << 20}}) {
    EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                        [&] {
                          mixture({{"num_experts", wrong}});
                        }),
               "numbers from 0 to 4096 were expected");
  }
}

}  // namespace
}  // namespace tessera
