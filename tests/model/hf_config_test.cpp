#include "model/checkpoint/hf_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>

#include "cpu_time.h"
#include "hf_config_files.h"
#include "model_files.h"

namespace tessera {
namespace {

using namespace testing_files;

TEST(HfConfig, ReadsEveryFieldOfALlama) {
  const ModelConfig c = parse(kLlama);
  EXPECT_EQ(c.architecture, Architecture::kLlama);
  EXPECT_EQ(c.vocab_size, 128256);
  EXPECT_EQ(c.hidden_size, 2048);
  EXPECT_EQ(c.intermediate_size, 8192);
  EXPECT_EQ(c.num_layers, 16);
  EXPECT_EQ(c.num_heads, 32);
  EXPECT_EQ(c.num_kv_heads, 8);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.activation, Activation::kSilu);
  EXPECT_EQ(c.max_seq_len, 131072);
  EXPECT_FALSE(c.sliding_window);
  EXPECT_TRUE(c.layer_uses_sliding_window.empty());
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm != QkNorm::kNone);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.bos_token_id, 128000);
  EXPECT_EQ(c.eos_token_ids, (std::vector<std::int32_t>{128001, 128008, 128009}));
  EXPECT_EQ(c.rope.pairing, RopePairing::kHalves);
  EXPECT_EQ(c.rope.theta, 500000);
  EXPECT_EQ(c.rope.rotary_dim, 0);
  EXPECT_FALSE(c.rope.linear || c.rope.yarn);
  ASSERT_TRUE(c.rope.llama3);
  EXPECT_EQ(c.rope.llama3->factor, 32);
  EXPECT_EQ(c.rope.llama3->low_freq_factor, 1);
  EXPECT_EQ(c.rope.llama3->high_freq_factor, 4);
  EXPECT_EQ(c.rope.llama3->original_max_seq_len, 8192);
}

TEST(HfConfig, ReadsRopeParametersAsTransformers5WritesThem) {
  json config = kLlama;
  json rope = config["rope_scaling"];
  config.erase("rope_scaling");
  rope["rope_theta"] = config["rope_theta"];
  config.erase("rope_theta");
  config["rope_parameters"] = rope;
  const ModelConfig c = parse(config);
  EXPECT_EQ(c.rope.theta, 500000);
  ASSERT_TRUE(c.rope.llama3);
  EXPECT_EQ(c.rope.llama3->factor, 32);
  EXPECT_EQ(c.rope.llama3->original_max_seq_len, 8192);
}

// What the configuration classes of transformers 4.57 and 5.17 have for keys that are left out.
TEST(HfConfig, TakesTheDefaultsOfTransformers) {
  const ModelConfig llama = parse(minimal("LlamaForCausalLM"));
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.hidden_size, 4096);
  EXPECT_EQ(llama.intermediate_size, 11008);
  EXPECT_EQ(llama.num_heads, 32);
  EXPECT_EQ(llama.num_kv_heads, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.norm_eps, 1e-6f);
  EXPECT_EQ(llama.max_seq_len, 2048);
  EXPECT_EQ(llama.rope.theta, 10000);
  EXPECT_FALSE(llama.sliding_window || llama.tied_embeddings || llama.qkv_bias);
  EXPECT_EQ(llama.bos_token_id, 1);
  EXPECT_EQ(llama.eos_token_ids, std::vector<std::int32_t>{2});
  EXPECT_EQ(parse({{"model_type", "llama"}}).num_layers, 32);

  const ModelConfig mistral = parse(minimal("MistralForCausalLM"));
  EXPECT_EQ(mistral.architecture, Architecture::kMistral);
  EXPECT_EQ(mistral.vocab_size, 32000);
  EXPECT_EQ(mistral.intermediate_size, 14336);
  EXPECT_EQ(mistral.num_kv_heads, 8);
  EXPECT_EQ(mistral.head_dim, 128);
  EXPECT_EQ(mistral.max_seq_len, 131072);
  EXPECT_EQ(mistral.sliding_window, 4096);
  EXPECT_TRUE(mistral.layer_uses_sliding_window.empty());
  EXPECT_EQ(mistral.eos_token_ids, std::vector<std::int32_t>{2});

  const ModelConfig qwen2 = parse(minimal("Qwen2ForCausalLM"));
  EXPECT_EQ(qwen2.architecture, Architecture::kQwen2);
  EXPECT_EQ(qwen2.vocab_size, 151936);
  EXPECT_EQ(qwen2.intermediate_size, 22016);
  EXPECT_EQ(qwen2.num_kv_heads, 32);
  EXPECT_EQ(qwen2.max_seq_len, 32768);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.qk_norm != QkNorm::kNone || qwen2.sliding_window || qwen2.bos_token_id);
  EXPECT_TRUE(qwen2.eos_token_ids.empty());

  const ModelConfig qwen3 = parse(with(minimal("Qwen3ForCausalLM"), {{"hidden_size", 1024}}));
  EXPECT_EQ(qwen3.architecture, Architecture::kQwen3);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(qwen3.qk_norm != QkNorm::kNone);
  EXPECT_FALSE(qwen3.qkv_bias || qwen3.o_bias);
}

TEST(HfConfig, NullIsNotTheSameAsAbsent) {
  EXPECT_EQ(parse(with(kLlama, {{"num_key_value_heads", nullptr}})).num_kv_heads, 32);
  EXPECT_EQ(parse(with(minimal("MistralForCausalLM"), {{"num_key_value_heads", nullptr}})).num_kv_heads, 32);
  EXPECT_EQ(parse(with(kLlama, {{"head_dim", nullptr}})).head_dim, 64);
  EXPECT_EQ(parse(with(minimal("MistralForCausalLM"), {{"sliding_window", nullptr}})).sliding_window,
            std::nullopt);
  const ModelConfig none =
      parse(with(minimal("LlamaForCausalLM"), {{"eos_token_id", nullptr}, {"bos_token_id", nullptr}}));
  EXPECT_TRUE(none.eos_token_ids.empty());
  EXPECT_FALSE(none.bos_token_id);
  EXPECT_FALSE(parse(with(kLlama, {{"rope_scaling", nullptr}})).rope.llama3);
}

TEST(HfConfig, KnowsTheBiasesOfEachArchitecture) {
  const json biased = {{"attention_bias", true}, {"mlp_bias", true}};
  const ModelConfig llama = parse(with(kLlama, biased));
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias);
  const ModelConfig mistral = parse(with(minimal("MistralForCausalLM"), biased));
  EXPECT_FALSE(mistral.qkv_bias || mistral.o_bias || mistral.mlp_bias);
  const ModelConfig qwen2 = parse(with(minimal("Qwen2ForCausalLM"), biased));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.mlp_bias);
  const ModelConfig qwen3 = parse(with(minimal("Qwen3ForCausalLM"), biased));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias);
  EXPECT_FALSE(qwen3.mlp_bias);
}

TEST(HfConfig, KnowsTheActivations) {
  const std::pair<const char*, Activation> names[] = {{"silu", Activation::kSilu},
                                                      {"swish", Activation::kSilu},
                                                      {"gelu", Activation::kGelu},
                                                      {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                                      {"gelu_new", Activation::kGeluTanh}};
  for (const auto& [name, activation] : names) {
    EXPECT_EQ(parse(with(kLlama, {{"hidden_act", name}})).activation, activation) << name;
  }
}

TEST(HfConfig, QwenSlidesInTheLayersThatAskForIt) {
  for (const char* architecture : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    const json base = minimal(architecture);
    // Off unless use_sliding_window says so, whatever else is set.
    EXPECT_FALSE(parse(with(base, {{"sliding_window", 8}, {"max_window_layers", 1}})).sliding_window);
    const json slides = with(base, {{"use_sliding_window", true}, {"sliding_window", 8}});
    const ModelConfig late = parse(with(slides, {{"max_window_layers", 3}}));
    EXPECT_EQ(late.sliding_window, 8);
    EXPECT_EQ(late.layer_uses_sliding_window, (std::vector<bool>{false, false, false, true}));
    const ModelConfig all = parse(with(slides, {{"max_window_layers", 0}}));
    EXPECT_EQ(all.sliding_window, 8);
    EXPECT_TRUE(all.layer_uses_sliding_window.empty());
    EXPECT_FALSE(parse(slides).sliding_window) << "the default of max_window_layers, 28, is past all layers";
    EXPECT_EQ(parse(with(base, {{"use_sliding_window", true}, {"max_window_layers", 0}})).sliding_window,
              4096);
    EXPECT_FALSE(parse(with(slides, {{"sliding_window", nullptr}, {"max_window_layers", 0}})).sliding_window);
    // layer_types comes first.
    const json types = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
    const ModelConfig typed = parse(with(slides, {{"max_window_layers", 3}, {"layer_types", types}}));
    EXPECT_EQ(typed.layer_uses_sliding_window, (std::vector<bool>{true, false, false, false}));
    EXPECT_EQ(typed.sliding_window, 8);
  }
  // Llama has no sliding window even if a file has the key.
  EXPECT_FALSE(parse(with(kLlama, {{"sliding_window", 8}})).sliding_window);
}

TEST(HfConfig, MistralSlidesInTheLayersThatLayerTypesNames) {
  for (const char* architecture : {"MistralForCausalLM", "MinistralForCausalLM"}) {
    const json base = with(minimal(architecture), {{"sliding_window", 8}});
    EXPECT_EQ(parse(base).sliding_window, 8);
    EXPECT_TRUE(parse(base).layer_uses_sliding_window.empty());
    const json types = {"full_attention", "sliding_attention", "sliding_attention", "full_attention"};
    const ModelConfig typed = parse(with(base, {{"layer_types", types}}));
    EXPECT_EQ(typed.sliding_window, 8);
    EXPECT_EQ(typed.layer_uses_sliding_window, (std::vector<bool>{false, true, true, false}));
    const json full = json::array({"full_attention", "full_attention", "full_attention", "full_attention"});
    EXPECT_FALSE(parse(with(base, {{"layer_types", full}})).sliding_window);
    EXPECT_EQ(parse(with(base, {{"layer_types", nullptr}})).sliding_window, 8);
    const json no_window = with(base, {{"layer_types", types}, {"sliding_window", nullptr}});
    EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { parse(no_window); }),
               "sliding_window was expected to be set");
  }
  const json by_type = {{"model_type", "ministral"}, {"hidden_size", 64}, {"num_hidden_layers", 4}};
  EXPECT_EQ(parse(by_type).architecture, Architecture::kMistral);
}

TEST(HfConfig, ManyEndOfTextTokensTakeTimeInProportion) {
  json config = minimal("LlamaForCausalLM");
  config["vocab_size"] = 1 << 20;
  const auto time = [&](int count) {
    std::vector<int> ids(static_cast<std::size_t>(count));
    std::iota(ids.begin(), ids.end(), 0);
    return cpu_seconds([&] {
      EXPECT_EQ(parse(with(config, {{"eos_token_id", ids}}), {{"eos_token_id", ids}}).eos_token_ids.size(),
                ids.size());
    });
  };
  time(8'000);
  // 32 times as many; a search through the list for each takes 1,000 times as long.
  EXPECT_LT(time(256'000), 200 * time(8'000));
}

TEST(HfConfig, MergesTheEndOfTextTokens) {
  using Ids = std::vector<std::int32_t>;
  const json base = minimal("LlamaForCausalLM");
  EXPECT_EQ(parse(with(base, {{"eos_token_id", 5}}), {{"eos_token_id", {7, 5}}}).eos_token_ids, (Ids{5, 7}));
  EXPECT_EQ(parse(with(base, {{"eos_token_id", 5}}), {{"temperature", 0.6}}).eos_token_ids, Ids{5});
  EXPECT_EQ(parse(base, {{"eos_token_id", 7}}).eos_token_ids, Ids{7}) << "the class's default gives way";
  EXPECT_EQ(parse(base, {{"bos_token_id", 7}}).eos_token_ids, Ids{2});
  // Ids outside the vocabulary can't occur.
  EXPECT_EQ(parse(with(base, {{"eos_token_id", {-1, 4, 32000, 31999}}})).eos_token_ids, (Ids{4, 31999}));
  EXPECT_FALSE(parse(with(base, {{"bos_token_id", 32000}})).bos_token_id);
}

TEST(HfConfig, ReadsEachRopeScaling) {
  const auto rope = [](const json& scaling) { return parse(with(kLlama, {{"rope_scaling", scaling}})).rope; };
  EXPECT_FALSE(rope({{"rope_type", "default"}}).linear);
  EXPECT_EQ(rope({{"type", "linear"}, {"factor", 4}}).linear->factor, 4);

  const RopeConfig plain = rope({{"type", "yarn"}, {"factor", 4.0}});
  ASSERT_TRUE(plain.yarn);
  EXPECT_EQ(plain.yarn->factor, 4);
  EXPECT_EQ(plain.yarn->beta_fast, 32);
  EXPECT_EQ(plain.yarn->beta_slow, 1);
  EXPECT_EQ(plain.yarn->original_max_seq_len, 131072) << "without a value of its own the context length";
  EXPECT_TRUE(plain.yarn->truncate);
  EXPECT_FLOAT_EQ(plain.yarn->attention_factor.value(), 0.1f * std::log(4.0f) + 1);

  const RopeConfig full = rope({{"rope_type", "yarn"},
                                {"factor", 8},
                                {"beta_fast", 16},
                                {"beta_slow", 2},
                                {"original_max_position_embeddings", 4096},
                                {"attention_factor", 1.25},
                                {"truncate", false},
                                {"mscale", 3},
                                {"mscale_all_dim", 2}});
  EXPECT_EQ(full.yarn->factor, 8);
  EXPECT_EQ(full.yarn->beta_fast, 16);
  EXPECT_EQ(full.yarn->beta_slow, 2);
  EXPECT_EQ(full.yarn->original_max_seq_len, 4096);
  EXPECT_EQ(full.yarn->attention_factor, 1.25f);
  EXPECT_FALSE(full.yarn->truncate);

  const double log8 = std::log(8.0);
  const auto factor = [&](const json& more) {
    return *rope(with({{"rope_type", "yarn"}, {"factor", 8}}, more)).yarn->attention_factor;
  };
  EXPECT_FLOAT_EQ(factor({{"mscale", 3}, {"mscale_all_dim", 2}}),
                  static_cast<float>((0.3 * log8 + 1) / (0.2 * log8 + 1)));
  EXPECT_FLOAT_EQ(factor({{"mscale", 3}, {"mscale_all_dim", 0}}), static_cast<float>(0.1 * log8 + 1));
  EXPECT_FLOAT_EQ(factor({{"mscale", 3}}), static_cast<float>(0.1 * log8 + 1));
  EXPECT_FLOAT_EQ(factor({{"factor", 0.5}}), 1.0f);
  const RopeConfig implied =
      rope({{"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 16384}});
  EXPECT_EQ(implied.yarn->factor, 8) << "the ratio of the context lengths";
  EXPECT_EQ(
      rope({{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", nullptr}, {"beta_slow", 0}}).yarn->beta_slow,
      1);
}

TEST(HfConfig, TakesRopeSettingsFromWhereTransformersDoes) {
  const json scaling = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 7000.0}};
  const ModelConfig inner =
      parse(with(minimal("LlamaForCausalLM"), {{"rope_parameters", scaling}, {"rope_theta", 9000.0}}));
  EXPECT_EQ(inner.rope.theta, 7000);
  const ModelConfig both =
      parse(with(minimal("LlamaForCausalLM"), {{"rope_parameters", scaling},
                                               {"rope_scaling", {{"rope_type", "linear"}, {"factor", 3}}},
                                               {"rope_theta", 9000}}));
  EXPECT_EQ(both.rope.linear->factor, 3);
  EXPECT_EQ(both.rope.theta, 9000);
  const ModelConfig outer = parse(with(kLlama, {{"original_max_position_embeddings", 1024}}));
  EXPECT_EQ(outer.rope.llama3->original_max_seq_len, 1024);
}

TEST(HfConfig, RefusesToRotatePartsOfHeads) {
  for (const char* architecture :
       {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    const json whole = {{"rope_type", "default"}, {"partial_rotary_factor", 1}};
    EXPECT_EQ(parse(with(minimal(architecture), {{"partial_rotary_factor", 1.0}, {"rope_parameters", whole}}))
                  .rope.rotary_dim,
              0);
    for (const json& factor : {json(0.5), json(0.25), json(0), json(2), json(-1), json(0.999)}) {
      const json inner = {{"rope_type", "default"}, {"partial_rotary_factor", factor}};
      for (const json& more : {json{{"partial_rotary_factor", factor}}, json{{"rope_parameters", inner}},
                               json{{"rope_scaling", inner}, {"partial_rotary_factor", 1.0}},
                               json{{"rope_scaling", whole}, {"partial_rotary_factor", factor}}}) {
        EXPECT_HAS(error_of(ErrorCode::kUnsupported, [&] { parse(with(minimal(architecture), more)); }),
                   "partial_rotary_factor is " + factor.dump());
      }
    }
  }
}

TEST(HfConfig, SaysWhichFieldIsOutOfRange) {
  const auto rope = [](json more) {
    return json{{"rope_scaling", with({{"rope_type", "yarn"}, {"factor", 2}}, more)}};
  };
  const json llama3 = kLlama["rope_scaling"];
  const auto longrope = [](json more) {
    const std::vector<float> factors(32, 1.5f);
    return json{
        {"rope_scaling",
         with({{"rope_type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}}, more)}};
  };
  const struct {
    json fields;
    const char* expected;
  } cases[] = {
      {{{"hidden_size", 1000000000000}}, "the hidden size is 1000000000000, expected 1 to 1048576"},
      {{{"hidden_size", 1000000000000}, {"head_dim", nullptr}},
       "hidden_size is 1000000000000; that is too large"},
      {{{"num_hidden_layers", 1000000000}}, "the number of layers is 1000000000, expected 1 to 10000"},
      {{{"num_hidden_layers", 100000000000}},
       "num_hidden_layers is 100000000000; 0 to 2147483647 was expected"},
      {{{"num_hidden_layers", 0}}, "the number of layers is 0"},
      {{{"num_hidden_layers", -1}}, "num_hidden_layers is -1"},
      {{{"num_hidden_layers", "2"}}, "num_hidden_layers is \"2\"; a whole number was expected"},
      {{{"num_hidden_layers", 2.5}}, "num_hidden_layers is 2.5; a whole number was expected"},
      {{{"num_hidden_layers", 1e300}}, "a whole number was expected"},
      {{{"num_hidden_layers", {2}}}, "num_hidden_layers is a list of 1 values"},
      {{{"hidden_size", std::uint64_t{1} << 63}}, "hidden_size is 9223372036854775808"},
      {{{"vocab_size", 0}}, "the vocabulary size is 0"},
      {{{"vocab_size", 1 << 30}}, "the vocabulary size is 1073741824, expected 1 to 16777216"},
      {{{"intermediate_size", -5}}, "the MLP's intermediate size is -5"},
      {{{"num_attention_heads", 0}}, "the number of attention heads is 0"},
      {{{"num_attention_heads", 0}, {"head_dim", nullptr}}, "hidden_size is 2048; without head_dim"},
      {{{"num_attention_heads", 33}, {"head_dim", nullptr}},
       "a positive multiple of num_attention_heads, 33"},
      {{{"num_key_value_heads", 5}}, "the number of attention heads is 32, expected a multiple of"},
      {{{"num_key_value_heads", 64}}, "the number of key/value heads is 64, expected 1 to 32"},
      {{{"num_key_value_heads", 0}}, "the number of key/value heads is 0"},
      {{{"head_dim", 63}}, "head_dim is 63, expected an even number"},
      {{{"head_dim", 1 << 20}}, "head_dim is 1048576, expected 1 to 16384"},
      {{{"max_position_embeddings", 0}}, "the context length is 0"},
      {{{"max_position_embeddings", 1000000000000}}, "the context length is 1000000000000"},
      {{{"rms_norm_eps", -1.0}}, "the norms' epsilon is -1"},
      {{{"rms_norm_eps", "x"}}, "rms_norm_eps is \"x\"; a number was expected"},
      {{{"rope_theta", 0.0}}, "the RoPE base is 0"},
      {{{"rope_theta", 1e60}}, "rope_theta is 1e+60; a number within fp32's range was expected"},
      {{{"partial_rotary_factor", "x"}}, "partial_rotary_factor is \"x\"; a number was expected"},
      {{{"rope_scaling", "linear"}}, "rope_scaling: an object was expected"},
      {{{"rope_scaling", {{"rope_type", 7}}}}, "rope_type is 7; a string was expected"},
      {{{"rope_scaling", {{"rope_type", "linear"}}}}, "rope_scaling: factor is missing"},
      {{{"rope_scaling", {{"rope_type", "longrope"}}}}, "rope_scaling: short_factor is missing"},
      {longrope({{"long_factor", 2}}), "long_factor is 2; a list of numbers was expected"},
      {longrope({{"long_factor", {1, "x"}}}),
       "long_factor is \"x\"; numbers within fp32's range were expected"},
      {longrope({{"long_factor", {1, 2}}}), "the number of RoPE frequency divisors is 2, expected 32"},
      {longrope({{"short_factor", std::vector<int>(32, 0)}}), "a RoPE frequency divisor is 0"},
      {longrope({{"original_max_position_embeddings", 0}}),
       "the RoPE scaling's original context length is 0"},
      {longrope({{"original_max_position_embeddings", 1}}), "the RoPE scaling's attention factor is inf"},
      {{{"rope_scaling", {{"rope_type", "linear"}, {"factor", 0}}}}, "the RoPE scaling's factor is 0"},
      {{{"rope_scaling", with(llama3, {{"factor", nullptr}})}}, "factor is missing"},
      {{{"rope_scaling", with(llama3, {{"low_freq_factor", 4}})}},
       "high_freq_factor is 4, expected more than"},
      {{{"rope_scaling", with(llama3, {{"original_max_position_embeddings", 0}})}},
       "the RoPE scaling's original context length is 0"},
      {rope({{"original_max_position_embeddings", 0}}), "original_max_position_embeddings is 0"},
      {rope({{"original_max_position_embeddings", -8}}), "original_max_position_embeddings is -8"},
      {rope({{"beta_fast", -1}}), "beta_fast is -1"},
      {rope({{"attention_factor", 0}}), "attention factor is 0"},
      {rope({{"truncate", 1}}), "truncate is 1; true or false was expected"},
      {{{"tie_word_embeddings", "yes"}}, "tie_word_embeddings is \"yes\"; true or false was expected"},
      {{{"hidden_act", 3}}, "hidden_act is 3; a string was expected"},
      {{{"eos_token_id", "2"}}, "eos_token_id is \"2\""},
      {{{"eos_token_id", {1, nullptr}}}, "eos_token_id is null"},
      {{{"bos_token_id", {1}}}, "bos_token_id is a list"},
      {{{"architectures", "LlamaForCausalLM"}}, "a list of class names was expected"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(ErrorCode::kCorruptFile, [&] { parse(with(kLlama, c.fields)); });
    EXPECT_HAS(message, c.expected);
    EXPECT_TRUE(message.starts_with("config.json: ")) << message;
  }
  const json qwen = minimal("Qwen2ForCausalLM");
  const auto refused = [&](const json& fields) {
    return error_of(ErrorCode::kCorruptFile, [&] { parse(with(qwen, fields)); });
  };
  EXPECT_HAS(refused({{"layer_types", {"full_attention"}}}), "one for each of the 4 layers was expected");
  EXPECT_HAS(refused({{"layer_types", 7}}), "layer_types is 7; a list was expected");
  const json sliding =
      json::array({"full_attention", "full_attention", "full_attention", "sliding_attention"});
  EXPECT_HAS(refused({{"layer_types", sliding}}),
             "use_sliding_window and sliding_window were expected to be set");
  EXPECT_HAS(refused({{"use_sliding_window", true}, {"max_window_layers", 0}, {"sliding_window", 0}}),
             "the sliding window is 0");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] {
                        parse(kLlama, {{"eos_token_id", "x"}});
                      }),
             "generation_config.json: eos_token_id is \"x\"");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [] { parse(json::object()); }), "architectures is missing");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [] { parse(json::array()); }), "an object was expected");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [] { parse_hf_config("{\"a\": 1", "config.json"); }),
             "config.json: invalid JSON at byte 7");
}

TEST(HfConfig, SaysWhatIsNotSupported) {
  const struct {
    json fields;
    const char* expected;
  } cases[] = {
      {{{"architectures", {"GPT2LMHeadModel"}}}, "architectures is \"GPT2LMHeadModel\"; supported are Llama"},
      {{{"architectures", {"LlamaForSequenceClassification"}}}, "supported are LlamaForCausalLM"},
      {{{"architectures", json::array()}, {"model_type", "gpt2"}}, "model_type is \"gpt2\""},
      {{{"hidden_act", "relu"}}, "hidden_act is \"relu\"; supported are silu"},
      {{{"is_causal", false}}, "is_causal is false; only attention to the tokens before"},
      {{{"is_causal", nullptr}}, "is_causal is null"},
      {{{"rope_scaling", {{"rope_type", "dynamics"}, {"factor", 2}}}},
       "rope_type is \"dynamics\"; supported are default, linear, dynamic"},
      {{{"rope_scaling", nullptr}, {"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       "RoPE settings that differ between layers"},
  };
  for (const auto& c : cases) {
    EXPECT_HAS(error_of(ErrorCode::kUnsupported, [&] { parse(with(kLlama, c.fields)); }), c.expected);
  }
  EXPECT_NO_THROW(parse(with(kLlama, {{"is_causal", true}})));
  const json sliding = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(minimal("LlamaForCausalLM"), {{"layer_types", sliding}}));
                      }),
             "layer_types is \"sliding_attention\"; this architecture has full_attention alone");
  const json types = {"full_attention", "linear_attention", "full_attention", "full_attention"};
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] {
                        parse(with(minimal("Qwen2ForCausalLM"), {{"layer_types", types}}));
                      }),
             "layer_types is \"linear_attention\"");
}

TEST(HfConfig, SurvivesAnyChangedByte) {
  const std::string text = kLlama.dump();
  int refused = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::minstd_rand random(seed + 1);
    std::string damaged = text;
    damaged[random() % text.size()] = static_cast<char>(random() % 256);
    try {
      parse_hf_config(damaged, "config.json");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace tessera
