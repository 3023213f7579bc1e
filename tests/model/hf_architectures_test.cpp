// What each class of transformers makes of config.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hf_config_files.h"
#include "model_files.h"

namespace tessera {
namespace {

using namespace testing_files;

// Phi-4-mini's, shortened.
const json kPhi3 = json::parse(R"({
  "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "bos_token_id": 7, "eos_token_id": 8,
  "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 131072,
  "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 4, "num_hidden_layers": 4,
  "num_key_value_heads": 2, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true,
  "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1.5], "long_factor": [1, 2, 3, 4, 5, 6.5]},
  "vocab_size": 300})");

TEST(HfConfig, ReadsAPhi3) {
  const ModelConfig c = parse(kPhi3);
  EXPECT_EQ(c.architecture, Architecture::kPhi3);
  EXPECT_TRUE(c.fused_qkv && c.fused_gate_up);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm != QkNorm::kNone);
  EXPECT_EQ(c.sliding_window, 262144);
  EXPECT_TRUE(c.layer_uses_sliding_window.empty());
  EXPECT_EQ(c.rope.rotary_dim, 12);
  ASSERT_TRUE(c.rope.longrope);
  EXPECT_EQ(c.rope.longrope->short_divisors, (std::vector<float>{1, 1, 1, 1, 1, 1.5}));
  EXPECT_EQ(c.rope.longrope->long_divisors, (std::vector<float>{1, 2, 3, 4, 5, 6.5}));
  EXPECT_EQ(c.rope.longrope->original_max_seq_len, 4096);
  EXPECT_FLOAT_EQ(c.rope.longrope->attention_factor,
                  static_cast<float>(std::sqrt(1 + std::log(32.0) / std::log(4096.0))));

  const auto rope = [](const json& more) {
    return parse(with(kPhi3, {{"rope_scaling", with(kPhi3["rope_scaling"], more)}})).rope;
  };
  EXPECT_TRUE(rope({{"type", "su"}}).longrope) << "names in older files";
  EXPECT_TRUE(rope({{"type", "yarn"}}).longrope);
  EXPECT_EQ(rope({{"attention_factor", 1.25}}).longrope->attention_factor, 1.25f);
  EXPECT_FLOAT_EQ(rope({{"factor", 4}}).longrope->attention_factor,
                  static_cast<float>(std::sqrt(1 + std::log(4.0) / std::log(4096.0))));
  EXPECT_EQ(rope({{"factor", 1}}).longrope->attention_factor, 1);
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        rope({{"type", "linear"}, {"factor", 2}});
                      }),
             "this architecture has longrope alone");
  json inner = with(kPhi3["rope_scaling"], {{"partial_rotary_factor", 0.75}, {"rope_theta", 5000}});
  const ModelConfig nested = parse(with(
      kPhi3, {{"rope_scaling", nullptr}, {"partial_rotary_factor", nullptr}, {"rope_parameters", inner}}));
  EXPECT_EQ(nested.rope.rotary_dim, 12);
  EXPECT_EQ(nested.rope.theta, 5000);

  for (const json& fraction : {json(0), json(-0.5), json(1.5), json(0.01)}) {
    EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                        [&] {
                          parse(with(kPhi3, {{"partial_rotary_factor", fraction}}));
                        }),
               "partial_rotary_factor is " + fraction.dump() + "; a part of the heads was expected");
  }
  const ModelConfig plain = parse(minimal("Phi3ForCausalLM"));
  EXPECT_EQ(plain.hidden_size, 3072);
  EXPECT_EQ(plain.vocab_size, 32064);
  EXPECT_EQ(plain.intermediate_size, 8192);
  EXPECT_EQ(plain.num_kv_heads, 32);
  EXPECT_EQ(plain.norm_eps, 1e-5f);
  EXPECT_EQ(plain.max_seq_len, 4096);
  EXPECT_EQ(plain.rope.rotary_dim, 0);
  EXPECT_EQ(plain.eos_token_ids, std::vector<std::int32_t>{32000});
  EXPECT_FALSE(plain.sliding_window || plain.rope.longrope);
}

TEST(HfConfig, ReadsASmolLm3) {
  const json base = with(minimal("SmolLM3ForCausalLM"), {{"num_hidden_layers", 6}});
  const ModelConfig plain = parse(base);
  EXPECT_EQ(plain.architecture, Architecture::kSmolLm3);
  EXPECT_EQ(plain.vocab_size, 128256);
  EXPECT_EQ(plain.hidden_size, 2048);
  EXPECT_EQ(plain.intermediate_size, 11008);
  EXPECT_EQ(plain.num_heads, 16);
  EXPECT_EQ(plain.num_kv_heads, 4);
  EXPECT_EQ(plain.head_dim, 128);
  EXPECT_EQ(plain.max_seq_len, 32768);
  EXPECT_EQ(plain.rope.theta, 2000000);
  EXPECT_TRUE(plain.tied_embeddings);
  EXPECT_FALSE(plain.sliding_window || plain.qkv_bias || plain.mlp_bias);
  EXPECT_EQ(plain.bos_token_id, 128000);
  EXPECT_EQ(plain.eos_token_ids, std::vector<std::int32_t>{128001});
  EXPECT_EQ(plain.layer_uses_rope, (std::vector<bool>{true, true, true, false, true, true}));
  EXPECT_EQ(parse(with(base, {{"no_rope_layer_interval", 2}})).layer_uses_rope,
            (std::vector<bool>{true, false, true, false, true, false}));
  const json listed = with(base, {{"no_rope_layers", {0, 1, 1, true, false, 1, 0}}});
  EXPECT_EQ(parse(listed).layer_uses_rope, (std::vector<bool>{false, true, true, true, false, true}));
  // Layers without RoPE slide where it says no more.
  const json slides = {{"use_sliding_window", true}, {"sliding_window", 8}};
  EXPECT_EQ(parse(with(listed, slides)).layer_uses_sliding_window,
            (std::vector<bool>{true, false, false, false, true, false}));
  EXPECT_FALSE(parse(with(listed, {{"sliding_window", 8}})).sliding_window);
  const auto refused = [&](const json& fields) {
    return error_of(ErrorCode::kCorruptFile, [&] { parse(with(base, fields)); });
  };
  EXPECT_HAS(refused({{"no_rope_layers", {1, 1}}}),
             "no_rope_layers is a list of 2 values; a list of 6 numbers");
  EXPECT_HAS(refused({{"no_rope_layers", {1, 1, 1, 1, 1, "x"}}}), "no_rope_layers is \"x\"; a whole number");
  EXPECT_HAS(refused({{"no_rope_layer_interval", 0}}), "no_rope_layer_interval is 0; a positive number");
}

TEST(HfConfig, ReadsAnOlmo) {
  const json base = minimal("OlmoForCausalLM");
  const ModelConfig c = parse(with(base, {{"rms_norm_eps", 0.5}}));
  EXPECT_EQ(c.architecture, Architecture::kOlmo);
  EXPECT_EQ(c.vocab_size, 50304);
  EXPECT_EQ(c.num_kv_heads, 32);
  EXPECT_EQ(c.norm, NormKind::kLayer);
  EXPECT_FALSE(c.norm_weights || c.norm_bias);
  EXPECT_EQ(c.norm_eps, 1e-5f) << "whatever files have";
  EXPECT_EQ(c.eos_token_ids, std::vector<std::int32_t>{50279});
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(base, {{"clip_qkv", 8.0}}));
                      }),
             "clip_qkv is 8.0; only queries, keys and values of any size are supported");
}

TEST(HfConfig, ReadsAGranite) {
  const json base = minimal("GraniteForCausalLM");
  const ModelConfig plain = parse(base);
  EXPECT_EQ(plain.architecture, Architecture::kGranite);
  EXPECT_EQ(plain.softmax_scale, 1) << "transformers' default is no 1 / sqrt(head_dim)";
  EXPECT_EQ(plain.embedding_scale, 1);
  EXPECT_EQ(plain.residual_scale, 1);
  EXPECT_EQ(plain.logits_scale, 1);
  const ModelConfig c = parse(with(base, {{"attention_multiplier", 0.015625},
                                          {"embedding_multiplier", 12},
                                          {"residual_multiplier", 0.22},
                                          {"logits_scaling", 8}}));
  EXPECT_EQ(c.softmax_scale, 0.015625f);
  EXPECT_EQ(c.embedding_scale, 12);
  EXPECT_EQ(c.residual_scale, 0.22f);
  EXPECT_EQ(c.logits_scale, 0.125f);
  for (const char* key :
       {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"}) {
    for (const double value : {0.0, -1.0, 1e9}) {
      EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                          [&] {
                            parse(with(base, {{key, value}}));
                          }),
                 "the scale of ");
    }
  }
  EXPECT_EQ(parse(with(kLlama, {{"residual_multiplier", 0.5}})).residual_scale, 1)
      << "which Llama doesn't read";
}

TEST(HfConfig, ReadsAGranite4WithoutExperts) {
  const json base = with(minimal("GraniteMoeHybridForCausalLM"),
                         {{"num_local_experts", 0},
                          {"layer_types", {"attention", "attention", "attention", "attention"}},
                          {"position_embedding_type", "rope"},
                          {"intermediate_size", 99},
                          {"shared_intermediate_size", 512},
                          {"logits_scaling", 8}});
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kGranite);
  EXPECT_EQ(c.intermediate_size, 512);
  EXPECT_EQ(c.logits_scale, 0.125f);
  EXPECT_FALSE(c.mixture || c.sliding_window || c.fused_gate_up);
  const auto error = [&](const json& fields) {
    return error_of(ErrorCode::kUnsupported, [&] { parse(with(base, fields)); });
  };
  EXPECT_HAS(error({{"num_local_experts", 64}}), "num_local_experts is 64; only models without experts");
  EXPECT_HAS(error({{"layer_types", {"mamba", "attention", "attention", "attention"}}}),
             "layer_types is \"mamba\"; only attention is supported");
  EXPECT_HAS(error({{"position_embedding_type", "nope"}}), "only rope is supported");
  json absent = base;
  absent.erase("layer_types");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { parse(absent); }), "layer_types is missing");
}

TEST(HfConfig, ReadsAnOlmo2) {
  const ModelConfig c =
      parse(with(minimal("Olmo2ForCausalLM"), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_EQ(c.architecture, Architecture::kOlmo2);
  EXPECT_EQ(c.vocab_size, 50304);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.qk_norm, QkNorm::kAllHeads);
  EXPECT_TRUE(c.norms_after && c.qkv_bias && c.o_bias);
  EXPECT_FALSE(c.norms_before || c.mlp_bias || c.bos_token_id);
  EXPECT_EQ(c.eos_token_ids, std::vector<std::int32_t>{50279});
}

TEST(HfConfig, ReadsAnOlmo3) {
  const json base = minimal("Olmo3ForCausalLM");
  const ModelConfig plain = parse(base);
  EXPECT_EQ(plain.architecture, Architecture::kOlmo2);
  EXPECT_EQ(plain.qk_norm, QkNorm::kAllHeads);
  EXPECT_EQ(plain.norm_eps, 1e-5f);
  EXPECT_EQ(plain.sliding_window, 4096);
  EXPECT_EQ(plain.layer_uses_sliding_window, (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(plain.rope.theta, 5e5f);
  EXPECT_EQ(plain.sliding_rope.value().theta, 5e5f);
  // A scaling is that of layers that see all; the base of those that slide stands nowhere around it.
  const ModelConfig c = parse(
      with(base, {{"rope_theta", 1e6},
                  {"rope_local_base_freq", 7},
                  {"rope_scaling",
                   {{"rope_type", "yarn"}, {"factor", 8}, {"original_max_position_embeddings", 8192}}}}));
  EXPECT_EQ(c.rope.theta, 1e6f);
  EXPECT_EQ(c.rope.yarn.value().factor, 8);
  EXPECT_EQ(c.sliding_rope.value().theta, 5e5f);
  EXPECT_FALSE(c.sliding_rope->yarn);
}

TEST(HfConfig, ReadsAnExaone4) {
  const json base = minimal("Exaone4ForCausalLM");
  const ModelConfig plain = parse(base);
  EXPECT_EQ(plain.architecture, Architecture::kExaone4);
  EXPECT_EQ(plain.vocab_size, 102400);
  EXPECT_EQ(plain.intermediate_size, 16384);
  EXPECT_EQ(plain.qk_norm, QkNorm::kEachHead);
  EXPECT_TRUE(plain.norms_after);
  EXPECT_FALSE(plain.norms_before);
  EXPECT_EQ(plain.bos_token_id, 0);
  EXPECT_EQ(plain.sliding_window, 4096);
  const std::vector<bool> three_of_four = {true, true, true, false};
  EXPECT_EQ(plain.layer_uses_sliding_window, three_of_four);
  EXPECT_EQ(plain.layer_uses_rope, three_of_four);
  const json types = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  const ModelConfig listed = parse(with(base, {{"layer_types", types}, {"sliding_window_pattern", "LLLG"}}));
  EXPECT_EQ(listed.layer_uses_sliding_window, (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(listed.layer_uses_rope, listed.layer_uses_sliding_window);
  // Without a window all layers turn.
  const ModelConfig all = parse(with(base, {{"sliding_window", nullptr}}));
  EXPECT_FALSE(all.sliding_window);
  EXPECT_TRUE(all.layer_uses_rope.empty());
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        parse(with(base, {{"sliding_window_pattern", "LLLG"}}));
                      }),
             "sliding_window_pattern is \"LLLG\"");
}

TEST(HfConfig, ReadsAGlm) {
  for (const auto& [name, architecture] :
       {std::pair("GlmForCausalLM", Architecture::kGlm), std::pair("Glm4ForCausalLM", Architecture::kGlm4)}) {
    SCOPED_TRACE(name);
    const json base = minimal(name);
    const ModelConfig c = parse(base);
    EXPECT_EQ(c.architecture, architecture);
    EXPECT_EQ(c.vocab_size, 151552);
    EXPECT_EQ(c.intermediate_size, 13696);
    EXPECT_EQ(c.num_kv_heads, 2);
    EXPECT_EQ(c.head_dim, 128);
    EXPECT_EQ(c.norm_eps, 1.5625e-7f);
    EXPECT_EQ(c.rope.pairing, RopePairing::kInterleaved);
    EXPECT_EQ(c.rope.rotary_dim, 64);
    EXPECT_TRUE(c.qkv_bias && c.fused_gate_up && c.norms_before);
    EXPECT_FALSE(c.o_bias || c.mlp_bias || c.fused_qkv || c.tied_embeddings);
    EXPECT_EQ(c.norms_after, architecture == Architecture::kGlm4);
    EXPECT_EQ(c.eos_token_ids, (std::vector<std::int32_t>{151329, 151336, 151338}));
    const ModelConfig other =
        parse(with(base, {{"partial_rotary_factor", 0.25}, {"attention_bias", false}, {"eos_token_id", 7}}));
    EXPECT_EQ(other.rope.rotary_dim, 32);
    EXPECT_FALSE(other.qkv_bias);
    EXPECT_EQ(other.eos_token_ids, std::vector<std::int32_t>{7});
  }
}

TEST(HfConfig, ReadsASeedOss) {
  const json base = minimal("SeedOssForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kSeedOss);
  EXPECT_EQ(c.num_heads, 80);
  EXPECT_EQ(c.num_kv_heads, 8);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_FALSE(c.o_bias || c.mlp_bias);
  const ModelConfig other =
      parse(with(base, {{"attention_bias", false}, {"attention_out_bias", true}, {"mlp_bias", true}}));
  EXPECT_FALSE(other.qkv_bias);
  EXPECT_TRUE(other.o_bias && other.mlp_bias);
}

TEST(HfConfig, ReadsAnErnie45) {
  const json base = minimal("Ernie4_5ForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kErnie45);
  EXPECT_EQ(c.hidden_size, 1024);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.rope.pairing, RopePairing::kInterleaved);
  EXPECT_EQ(c.rope.theta, 5e5f);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias);
  const ModelConfig biased = parse(with(base, {{"use_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
}

TEST(HfConfig, ReadsAMinistral3) {
  const json base = minimal("Ministral3ForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kMinistral3);
  EXPECT_EQ(c.vocab_size, 131072);
  EXPECT_EQ(c.intermediate_size, 14336);
  EXPECT_EQ(c.num_kv_heads, 8);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.max_seq_len, 262144);
  EXPECT_FALSE(c.sliding_window);
  // What the class takes where a file has no settings of RoPE.
  EXPECT_EQ(c.rope.theta, 1e6f);
  ASSERT_TRUE(c.rope.yarn && c.query_scaling);
  EXPECT_EQ(c.rope.yarn->factor, 16);
  EXPECT_EQ(c.rope.yarn->original_max_seq_len, 16384);
  EXPECT_EQ(c.rope.yarn->attention_factor, 1);
  EXPECT_EQ(c.query_scaling->beta, 0.1f);
  EXPECT_EQ(c.query_scaling->original_max_seq_len, 16384);
  EXPECT_EQ(query_scale(*c.query_scaling, 16383), 1);
  EXPECT_FLOAT_EQ(query_scale(*c.query_scaling, 16384), static_cast<float>(1 + 0.1 * std::log(2.0)));
  EXPECT_FLOAT_EQ(query_scale(*c.query_scaling, 262143), static_cast<float>(1 + 0.1 * std::log(16.0)));

  const auto rope = [&](const json& settings) { return parse(with(base, {{"rope_parameters", settings}})); };
  json settings = {{"rope_type", "yarn"},
                   {"factor", 8.0},
                   {"original_max_position_embeddings", 8192},
                   {"mscale", 1.0},
                   {"mscale_all_dim", 1.0},
                   {"rope_theta", 5e5},
                   {"llama_4_scaling_beta", 0.25}};
  EXPECT_EQ(rope(settings).query_scaling->beta, 0.25f);
  EXPECT_EQ(rope(settings).query_scaling->original_max_seq_len, 8192);
  EXPECT_EQ(rope(settings).rope.theta, 5e5f);
  EXPECT_FALSE(rope({{"rope_type", "default"}}).query_scaling);
  for (const double beta : {-0.5, 1e9}) {
    settings["llama_4_scaling_beta"] = beta;
    EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { rope(settings); }),
               "the beta of the scaling of queries is ");
  }
  settings["llama_4_scaling_beta"] = 0.25;
  settings["original_max_position_embeddings"] = 0;
  error_of(ErrorCode::kCorruptFile, [&] { rope(settings); });
  settings.erase("original_max_position_embeddings");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { rope(settings); }),
             "rope_parameters: original_max_position_embeddings is missing");

  // The part for text of a model that takes images, too.
  for (const auto& [type, architecture] :
       {std::pair("ministral3", Architecture::kMinistral3), std::pair("mistral", Architecture::kMistral)}) {
    const json text = {{"model_type", type}, {"num_hidden_layers", 4}};
    EXPECT_EQ(parse(with(minimal("Mistral3ForConditionalGeneration"), {{"text_config", text}})).architecture,
              architecture);
  }
}

TEST(HfConfig, RefusesAPartForTextOfAnotherKind) {
  const json config = {{"architectures", {"Mistral3ForConditionalGeneration"}},
                       {"text_config", {{"model_type", "ministral4"}, {"num_hidden_layers", 4}}}};
  EXPECT_HAS(
      error_of(ErrorCode::kUnsupported, [&] { parse(config); }),
      "text_config: model_type is \"ministral4\"; of Mistral3ForConditionalGeneration only mistral and "
      "ministral3 is supported");
  // Its RoPE is a text's in these classes alone.
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(minimal("Qwen2ForCausalLM"), {{"rope_scaling", {{"type", "mrope"}}}}));
                      }),
             "type is \"mrope\"");
}

TEST(HfConfig, ReadsAHunYuan) {
  const json base = minimal("HunYuanDenseV1ForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kHunYuanDense);
  EXPECT_EQ(c.vocab_size, 290943);
  EXPECT_EQ(c.intermediate_size, 11008);
  EXPECT_EQ(c.num_kv_heads, 32);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.max_seq_len, 2048);
  EXPECT_EQ(c.qk_norm, QkNorm::kEachHead);
  EXPECT_TRUE(c.qk_norm_after_rope);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.tied_embeddings);
  const json alpha = {
      {"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}, {"beta_fast", 32}, {"beta_slow", 1}};
  const ModelConfig stretched = parse(with(base, {{"head_dim", 128}, {"rope_scaling", alpha}}));
  EXPECT_FLOAT_EQ(stretched.rope.theta, static_cast<float>(1e4 * std::pow(1000.0, 128.0 / 126.0)));
  EXPECT_FALSE(stretched.rope.yarn || stretched.rope.linear);
  EXPECT_EQ(parse(with(minimal("LlamaForCausalLM"), {{"rope_scaling", alpha}})).rope.theta, 1e4f)
      << "alpha is HunYuan's alone";
  for (const json& change : {json{{"alpha", -1}}, json{{"alpha", 1e30}}}) {
    EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                        [&] {
                          parse(with(base, {{"rope_scaling", with(alpha, change)}}));
                        }),
               "the RoPE base is ");
  }
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        parse(with(base, {{"head_dim", 2}, {"rope_scaling", alpha}}));
                      }),
             "the RoPE base is ");
}

TEST(HfConfig, ReadsAnExaone) {
  const json base = minimal("ExaoneForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kExaone);
  EXPECT_EQ(c.vocab_size, 102400);
  EXPECT_EQ(c.intermediate_size, 14336);
  EXPECT_EQ(c.num_kv_heads, 8);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.max_seq_len, 4096);
  EXPECT_EQ(c.rope.theta, 5e5f);
  EXPECT_EQ(c.eos_token_ids, std::vector<std::int32_t>{361});
  EXPECT_FALSE(c.qkv_bias || c.mlp_bias || c.tied_embeddings);
  const ModelConfig own =
      parse(with(base, {{"num_layers", 3}, {"layer_norm_epsilon", 0.25}, {"activation_function", "gelu"}}));
  EXPECT_EQ(own.num_layers, 3);
  EXPECT_EQ(own.norm_eps, 0.25f);
  EXPECT_EQ(own.activation, Activation::kGelu);
}

TEST(HfConfig, ReadsAnInternLm3) {
  const json base = minimal("InternLM3ForCausalLM");
  const ModelConfig c = parse(with(base, {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 6.0}}}}));
  EXPECT_EQ(c.architecture, Architecture::kLlama);
  EXPECT_EQ(c.vocab_size, 128512);
  EXPECT_EQ(c.intermediate_size, 10240);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.max_seq_len, 32768);
  EXPECT_FALSE(c.rope.linear || c.rope.yarn) << "within max_position_embeddings dynamic scales nothing";
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias);
  for (const char* key : {"qkv_bias", "attention_bias"}) {
    const ModelConfig biased = parse(with(base, {{key, true}}));
    EXPECT_TRUE(biased.qkv_bias && !biased.o_bias && !biased.mlp_bias) << key;
  }
  for (const char* key : {"bias", "mlp_bias"}) {
    const ModelConfig biased = parse(with(base, {{key, true}}));
    EXPECT_TRUE(!biased.qkv_bias && biased.o_bias && biased.mlp_bias) << key;
  }
}

TEST(HfConfig, ReadsAHelium) {
  const json base = minimal("HeliumForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kLlama);
  EXPECT_EQ(c.hidden_size, 2560);
  EXPECT_EQ(c.intermediate_size, 7040);
  EXPECT_EQ(c.num_heads, 20);
  EXPECT_EQ(c.num_kv_heads, 20);
  EXPECT_EQ(c.norm_eps, 1e-8f);
  EXPECT_EQ(c.rope.theta, 1e5f);
  EXPECT_EQ(c.rope.pairing, RopePairing::kInterleaved);
  const ModelConfig biased = parse(with(base, {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.mlp_bias);
  EXPECT_FALSE(biased.o_bias);
}

TEST(HfConfig, ReadsAMiniCpm) {
  const json base = minimal("MiniCPMForCausalLM");
  const ModelConfig plain = parse(base);
  EXPECT_EQ(plain.architecture, Architecture::kMiniCpm);
  EXPECT_EQ(plain.embedding_scale, 1);
  EXPECT_EQ(plain.residual_scale, 0.5f);
  EXPECT_EQ(plain.logits_scale, 1.0f / 4096);
  EXPECT_FALSE(plain.softmax_scale);
  EXPECT_TRUE(plain.tied_embeddings);
  const ModelConfig c = parse(with(base, {{"scale_emb", 12}, {"scale_depth", 1.4}, {"dim_model_base", 256}}));
  EXPECT_EQ(c.embedding_scale, 12);
  EXPECT_FLOAT_EQ(c.residual_scale, 0.7f);
  EXPECT_EQ(c.logits_scale, 0.0625f);
  for (const char* key : {"scale_emb", "scale_depth", "dim_model_base"}) {
    EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { parse(with(base, {{key, -1}})); }), "the scale of ");
  }
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(base, {{"sparse_config", {{"kernel_size", 32}}}}));
                      }),
             "sparse_config is an object; only attention to all keys");
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(base, {{"num_experts", 8}}));
                      }),
             "num_experts is 8; only models without experts");
}

TEST(HfConfig, ReadsACohere) {
  const json base = minimal("CohereForCausalLM");
  const ModelConfig c = parse(with(base, {{"rms_norm_eps", 0.5}}));
  EXPECT_EQ(c.architecture, Architecture::kCohere);
  EXPECT_EQ(c.norm, NormKind::kLayer);
  EXPECT_EQ(c.norm_eps, 1e-5f) << "layer_norm_eps is the key";
  EXPECT_EQ(parse(with(base, {{"layer_norm_eps", 1e-3}})).norm_eps, 1e-3f);
  EXPECT_EQ(c.hidden_size, 8192);
  EXPECT_EQ(c.num_kv_heads, 64);
  EXPECT_EQ(c.logits_scale, 0.0625f);
  EXPECT_EQ(c.rope.theta, 5e5f);
  EXPECT_EQ(c.rope.pairing, RopePairing::kInterleaved);
  EXPECT_TRUE(c.parallel_blocks && c.norms_before && c.tied_embeddings);
  EXPECT_FALSE(c.norms_after || c.sliding_window || c.qkv_bias);
  EXPECT_EQ(parse(with(base, {{"logit_scale", 0.25}})).logits_scale, 0.25f);
  EXPECT_EQ(c.qk_norm, QkNorm::kNone);
  EXPECT_EQ(parse(with(base, {{"use_qk_norm", true}})).qk_norm, QkNorm::kOwnEachHead);
}

TEST(HfConfig, ReadsAStarcoder2) {
  const json base = minimal("Starcoder2ForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kStarcoder2);
  EXPECT_EQ(c.norm, NormKind::kLayer);
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_TRUE(c.qkv_bias && c.o_bias && c.mlp_bias && c.norm_bias && c.tied_embeddings);
  EXPECT_FALSE(c.gated_mlp || c.parallel_blocks || c.sliding_window || c.head_bias);
  EXPECT_EQ(parse(with(base, {{"norm_epsilon", 1e-3}})).norm_eps, 1e-3f);
  EXPECT_EQ(parse(with(base, {{"sliding_window", 4096}})).sliding_window, 4096);
  EXPECT_FALSE(parse(with(base, {{"use_bias", false}})).mlp_bias);
}

TEST(HfConfig, ReadsAPhi) {
  const json base = minimal("PhiForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kPhi);
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_EQ(c.rope.rotary_dim, 32);
  EXPECT_TRUE(c.parallel_blocks && c.head_bias && c.norm_bias && c.qkv_bias && c.o_bias && c.mlp_bias);
  EXPECT_FALSE(c.parallel_norms || c.gated_mlp || c.tied_embeddings);
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(base, {{"qk_layernorm", true}}));
                      }),
             "qk_layernorm is true");
}

TEST(HfConfig, ReadsAGptNeoX) {
  const json base = minimal("GPTNeoXForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kGptNeoX);
  EXPECT_EQ(c.activation, Activation::kGelu);
  EXPECT_EQ(c.rope.rotary_dim, 24);
  EXPECT_EQ(c.rope.theta, 1e4f);
  EXPECT_TRUE(c.fused_qkv && c.parallel_blocks && c.parallel_norms && c.norm_bias && c.qkv_bias &&
              c.mlp_bias);
  EXPECT_FALSE(c.gated_mlp || c.head_bias);
  const ModelConfig other =
      parse(with(base, {{"rotary_pct", 1.0}, {"rotary_emb_base", 500}, {"use_parallel_residual", false}}));
  EXPECT_EQ(other.rope.rotary_dim, 0);
  EXPECT_EQ(other.rope.theta, 500);
  EXPECT_FALSE(other.parallel_blocks || other.parallel_norms);
  EXPECT_FALSE(parse(with(base, {{"attention_bias", false}})).qkv_bias);
}

TEST(HfConfig, ReadsAStableLm) {
  const json base = minimal("StableLmForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kStableLm);
  EXPECT_EQ(c.norm, NormKind::kLayer);
  EXPECT_EQ(c.rope.rotary_dim, 20);
  EXPECT_TRUE(c.gated_mlp && c.norm_bias);
  EXPECT_FALSE(c.parallel_blocks || c.qkv_bias || c.o_bias || c.mlp_bias);
  EXPECT_EQ(c.qk_norm, QkNorm::kNone);
  const ModelConfig larger =
      parse(with(base, {{"use_qkv_bias", true}, {"qk_layernorm", true}, {"use_parallel_residual", true}}));
  EXPECT_TRUE(larger.parallel_blocks && larger.qkv_bias);
  EXPECT_FALSE(larger.parallel_norms || larger.o_bias);
  EXPECT_EQ(larger.qk_norm, QkNorm::kOwnEachHead);
}

TEST(HfConfig, ReadsANemotronAndAnArcee) {
  const ModelConfig nemotron = parse(minimal("NemotronForCausalLM"));
  EXPECT_EQ(nemotron.architecture, Architecture::kNemotron);
  EXPECT_EQ(nemotron.norm, NormKind::kLayer);
  EXPECT_EQ(nemotron.norm_offset, 1);
  EXPECT_EQ(nemotron.rope.rotary_dim, 64);
  EXPECT_TRUE(nemotron.norm_bias);
  const ModelConfig arcee = parse(minimal("ArceeForCausalLM"));
  EXPECT_EQ(arcee.architecture, Architecture::kArcee);
  EXPECT_EQ(arcee.norm, NormKind::kRms);
  EXPECT_EQ(arcee.rope.rotary_dim, 0);
  for (const ModelConfig& c : {nemotron, arcee}) {
    EXPECT_EQ(c.activation, Activation::kReluSquared);
    EXPECT_FALSE(c.gated_mlp || c.qkv_bias || c.mlp_bias || c.parallel_blocks);
  }
}

TEST(HfConfig, ReadsACohere2) {
  const json base = minimal("Cohere2ForCausalLM");
  const ModelConfig c = parse(base);
  EXPECT_EQ(c.architecture, Architecture::kCohere2);
  EXPECT_EQ(c.rope.theta, 1e4f);
  EXPECT_EQ(c.sliding_window, 4096);
  EXPECT_EQ(c.layer_uses_sliding_window, (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(c.layer_uses_rope, c.layer_uses_sliding_window);
  EXPECT_EQ(parse(with(base, {{"sliding_window_pattern", 2}})).layer_uses_rope,
            (std::vector<bool>{true, false, true, false}));
  // Layers that see all have no RoPE, whichever they are.
  EXPECT_EQ(parse(with(base, {{"sliding_window", nullptr}})).layer_uses_rope, std::vector<bool>(4, false));
}

TEST(HfConfig, ReadsAGemma) {
  const ModelConfig c = parse(with(minimal("GemmaForCausalLM"), {{"final_logit_softcapping", 30}}));
  EXPECT_EQ(c.architecture, Architecture::kGemma);
  EXPECT_EQ(c.vocab_size, 256000);
  EXPECT_EQ(c.hidden_size, 3072);
  EXPECT_EQ(c.intermediate_size, 24576);
  EXPECT_EQ(c.num_heads, 16);
  EXPECT_EQ(c.num_kv_heads, 16);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_EQ(c.embedding_scale, std::sqrt(3072.0f));
  EXPECT_EQ(c.norm_offset, 1);
  EXPECT_TRUE(c.norms_before && c.tied_embeddings && c.rounds_embedding_scale);
  EXPECT_FALSE(c.norms_after || c.softmax_scale || c.sliding_window || c.sliding_rope || c.logits_softcap);
  // Its files say "gelu" where they mean the approximation.
  EXPECT_EQ(parse(with(minimal("GemmaForCausalLM"), {{"hidden_act", "gelu"}})).activation,
            Activation::kGeluTanh);
}

TEST(HfConfig, ReadsAGemma2) {
  const json base = minimal("Gemma2ForCausalLM");
  const ModelConfig plain = parse(base);
  EXPECT_EQ(plain.architecture, Architecture::kGemma2);
  EXPECT_EQ(plain.vocab_size, 256000);
  EXPECT_EQ(plain.max_seq_len, 8192);
  EXPECT_EQ(plain.activation, Activation::kGeluTanh);
  EXPECT_EQ(plain.embedding_scale, 48);
  EXPECT_EQ(plain.softmax_scale, 1.0f / 16);
  EXPECT_EQ(plain.norm_offset, 1);
  EXPECT_TRUE(plain.norms_before && plain.norms_after && plain.tied_embeddings);
  EXPECT_EQ(plain.qk_norm, QkNorm::kNone);
  EXPECT_EQ(plain.sliding_window, 4096);
  EXPECT_EQ(plain.layer_uses_sliding_window, (std::vector<bool>{true, false, true, false}));
  EXPECT_FALSE(plain.sliding_rope);
  EXPECT_EQ(plain.attention_softcap, 50);
  EXPECT_EQ(plain.logits_softcap, 30);
  const ModelConfig c = parse(with(base, {{"attn_logit_softcapping", nullptr},
                                          {"final_logit_softcapping", 20},
                                          {"query_pre_attn_scalar", 144},
                                          {"sliding_window_pattern", 3}}));
  EXPECT_FALSE(c.attention_softcap);
  EXPECT_EQ(c.logits_softcap, 20);
  EXPECT_EQ(c.softmax_scale, 1.0f / 12);
  EXPECT_EQ(c.layer_uses_sliding_window, plain.layer_uses_sliding_window) << "a key that it doesn't read";
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    for (const double value : {0.0, -1.0, 1e9}) {
      EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                          [&] {
                            parse(with(base, {{key, value}}));
                          }),
                 "the softcap of ");
    }
  }
  for (const char* name : {"GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"}) {
    EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                        [&] {
                          parse(with(minimal(name), {{"use_bidirectional_attention", true}}));
                        }),
               "use_bidirectional_attention");
  }
}

TEST(HfConfig, ReadsAGemma3) {
  const ModelConfig plain = parse(minimal("Gemma3ForCausalLM"));
  EXPECT_EQ(plain.architecture, Architecture::kGemma3);
  EXPECT_EQ(plain.vocab_size, 262208);
  EXPECT_EQ(plain.hidden_size, 2304);
  EXPECT_EQ(plain.intermediate_size, 9216);
  EXPECT_EQ(plain.num_heads, 8);
  EXPECT_EQ(plain.num_kv_heads, 4);
  EXPECT_EQ(plain.head_dim, 256);
  EXPECT_EQ(plain.max_seq_len, 131072);
  EXPECT_EQ(plain.activation, Activation::kGeluTanh);
  EXPECT_EQ(plain.embedding_scale, 48);
  EXPECT_EQ(plain.softmax_scale, 1.0f / 16);
  EXPECT_EQ(plain.norm_offset, 1);
  EXPECT_TRUE(plain.norms_before && plain.norms_after && plain.tied_embeddings);
  EXPECT_EQ(plain.qk_norm, QkNorm::kEachHead);
  EXPECT_EQ(plain.sliding_window, 4096);
  EXPECT_TRUE(plain.layer_uses_sliding_window.empty()) << "of 4 layers none is the sixth";
  EXPECT_EQ(plain.rope.theta, 1e6f);
  EXPECT_EQ(plain.sliding_rope.value().theta, 1e4f);
  EXPECT_EQ(plain.bos_token_id, 2);
  EXPECT_EQ(plain.eos_token_ids, std::vector<std::int32_t>{1});
  EXPECT_EQ(
      parse(with(minimal("Gemma3ForCausalLM"), {{"sliding_window_pattern", 2}})).layer_uses_sliding_window,
      (std::vector<bool>{true, false, true, false}));
  const json types = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  EXPECT_EQ(parse(with(minimal("Gemma3ForCausalLM"), {{"layer_types", types}})).layer_uses_sliding_window,
            (std::vector<bool>{false, true, false, false}));

  // RoPE as transformers 4 and 5 write it; a scaling is that of layers that see all.
  const json linear = {{"rope_type", "linear"}, {"factor", 8}};
  for (const json& more : {json{{"rope_scaling", linear}, {"rope_theta", 5e5}, {"rope_local_base_freq", 2e4}},
                           json{{"rope_parameters",
                                 {{"full_attention", with(linear, {{"rope_theta", 5e5}})},
                                  {"sliding_attention", {{"rope_theta", 2e4}}}}}}}) {
    const ModelConfig c = parse(with(minimal("Gemma3ForCausalLM"), more));
    EXPECT_EQ(c.rope.theta, 5e5f);
    EXPECT_EQ(c.rope.linear.value().factor, 8);
    EXPECT_EQ(c.sliding_rope.value().theta, 2e4f);
    EXPECT_FALSE(c.sliding_rope->linear);
  }
  EXPECT_FALSE(plain.attention_softcap || plain.logits_softcap);
  const ModelConfig capped = parse(
      with(minimal("Gemma3ForCausalLM"), {{"final_logit_softcapping", 30}, {"attn_logit_softcapping", 50}}));
  EXPECT_EQ(capped.logits_softcap, 30);
  EXPECT_EQ(capped.attention_softcap, 50);
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        parse(with(minimal("Gemma3ForCausalLM"), {{"sliding_window_pattern", 0}}));
                      }),
             "sliding_window_pattern is 0");
}

TEST(HfConfig, ReadsAGemma4) {
  const ModelConfig plain = parse(with(minimal("Gemma4ForCausalLM"), {{"num_hidden_layers", 12}}));
  EXPECT_EQ(plain.architecture, Architecture::kGemma4);
  EXPECT_EQ(plain.vocab_size, 262144);
  EXPECT_EQ(plain.head_dim, 256);
  EXPECT_EQ(plain.num_kv_heads, 4);
  EXPECT_EQ(plain.full_attention, (FullAttentionConfig{4, 512, /*keys_as_values=*/false}));
  EXPECT_EQ(kv_sizes(plain, 0), (KvSizes{4, 256}));
  EXPECT_EQ(kv_sizes(plain, 5), (KvSizes{4, 512}));
  EXPECT_EQ(plain.sliding_window, 512);
  EXPECT_EQ(plain.layer_uses_sliding_window, all_but_every(12, 6));
  EXPECT_EQ(plain.layer_embedding_size, 256);
  EXPECT_EQ(plain.rope.theta, 1e6f);
  EXPECT_EQ(plain.rope.num_turned_pairs, 64);
  EXPECT_EQ(plain.sliding_rope.value().theta, 1e4f);
  EXPECT_EQ(plain.norm_offset, 0);
  EXPECT_EQ(plain.softmax_scale, 1.0f);
  EXPECT_TRUE(plain.v_norm && plain.tied_embeddings && plain.rounds_embedding_scale);
  EXPECT_FALSE(plain.mixture || plain.logits_softcap);

  // The last layer sees all tokens whatever a file says.
  const json types = {"sliding_attention", "full_attention", "sliding_attention", "sliding_attention"};
  EXPECT_EQ(parse(with(minimal("Gemma4ForCausalLM"), {{"layer_types", types}})).layer_uses_sliding_window,
            (std::vector<bool>{true, false, true, false}));
  const json keys = {{"attention_k_eq_v", true}, {"num_global_key_value_heads", 2}, {"global_head_dim", 128}};
  EXPECT_EQ(parse(with(minimal("Gemma4ForCausalLM"), keys)).full_attention,
            (FullAttentionConfig{2, 128, /*keys_as_values=*/true}));
  EXPECT_EQ(parse(with(minimal("Gemma4ForCausalLM"), {{"hidden_size_per_layer_input", nullptr}}))
                .layer_embedding_size,
            0);
  for (const json& none : {json(nullptr), json::object()}) {
    EXPECT_EQ(parse(with(minimal("Gemma4ForCausalLM"), {{"per_layer_config", none}, {"global_head_dim", 64}}))
                  .full_attention,
              (FullAttentionConfig{4, 256, /*keys_as_values=*/false}));
  }
  EXPECT_EQ(parse(minimal("Gemma4UnifiedForCausalLM")).layer_embedding_size, 0);
  EXPECT_EQ(parse(minimal("Gemma4UnifiedForCausalLM")).sliding_window, 1024);
  EXPECT_NO_THROW(parse(with(minimal("Gemma4ForCausalLM"), {{"use_bidirectional_attention", "vision"}})));
}

TEST(HfConfig, SaysWhatOfAGemma4IsNotSupported) {
  const auto error = [](ErrorCode code, const json& more) {
    return error_of(code, [&] { parse(with(minimal("Gemma4ForCausalLM"), more)); });
  };
  const json types = {
      {"layer_types", {"sliding_attention", "full_attention", "full_attention", "full_attention"}}};
  const auto layers = [&](const json& sizes) { return with(types, {{"per_layer_config", sizes}}); };
  const json size = {{"head_dim", 512}};
  EXPECT_NO_THROW(parse(with(minimal("Gemma4ForCausalLM"), layers({{"1", size}, {"2", size}, {"3", size}}))));
  EXPECT_HAS(error(ErrorCode::kUnsupported, layers({{"0", size}})), "with full_attention are supported");
  EXPECT_HAS(error(ErrorCode::kUnsupported, layers({{"1", size}})), "of all 3 layers with full_attention");
  EXPECT_HAS(error(ErrorCode::kUnsupported, layers({{"1", size}, {"2", {{"head_dim", 128}}}, {"3", size}})),
             "only equal sizes");
  EXPECT_HAS(error(ErrorCode::kUnsupported, layers({{"1", {{"head_dim", 512}, {"sliding_window", 7}}}})),
             "sliding_window is 7; only head_dim and num_key_value_heads");
  EXPECT_HAS(error(ErrorCode::kCorruptFile, layers(7)), "per_layer_config is 7");
  EXPECT_HAS(error(ErrorCode::kUnsupported, {{"use_bidirectional_attention", "all"}}),
             "use_bidirectional_attention is \"all\"");
  EXPECT_HAS(error(ErrorCode::kUnsupported, {{"vocab_size_per_layer_input", 7}}),
             "vocab_size_per_layer_input is 7; only that of vocab_size, 262144");
  EXPECT_HAS(error(ErrorCode::kCorruptFile, {{"num_kv_shared_layers", 4}}),
             "that share keys and values is 4");
  EXPECT_HAS(error(ErrorCode::kCorruptFile, with(types, {{"num_kv_shared_layers", 3}})),
             "expected a layer before them of each kind, as layer 1 is");
  EXPECT_HAS(error(ErrorCode::kCorruptFile, {{"num_global_key_value_heads", 3}, {"attention_k_eq_v", true}}),
             "key/value heads of full attention is 3");
  EXPECT_HAS(error(ErrorCode::kCorruptFile, {{"enable_moe_block", true}}), "the number of experts is 0");
  const json rope = {{"full_attention", {{"rope_type", "proportional"}, {"partial_rotary_factor", 2}}}};
  EXPECT_HAS(error(ErrorCode::kCorruptFile, {{"rope_parameters", rope}}),
             "partial_rotary_factor is 2; a part of the heads was expected");
}

// Gemma3ForConditionalGeneration's config.json has that of the part for text as an object.
TEST(HfConfig, ReadsThePartForTextOfAGemma3) {
  const json config = json::parse(R"({
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
    "mm_tokens_per_image": 256, "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "sliding_window": 1024}})");
  const ModelConfig c = parse(config);
  EXPECT_EQ(c.architecture, Architecture::kGemma3);
  EXPECT_EQ(c.hidden_size, 2560);
  EXPECT_EQ(c.num_layers, 34);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.sliding_window, 1024);
  EXPECT_EQ(std::count(c.layer_uses_sliding_window.begin(), c.layer_uses_sliding_window.end(), false), 5);
  EXPECT_EQ(c.rope.linear.value().factor, 8);
  EXPECT_EQ(c.eos_token_ids, (std::vector<std::int32_t>{1, 106}));
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        parse(with(config, {{"text_config", 7}}));
                      }),
             "text_config is 7; an object was expected");
}

}  // namespace
}  // namespace tessera
