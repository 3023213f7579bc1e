// What the keys of each architecture's GGUF files come to, and what those that are missing do.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/checkpoint/expected_tensors.h"
#include "model/checkpoint/gguf_checkpoint.h"
#include "model/checkpoint/gguf_names.h"
#include "model_files.h"

namespace tessera {
namespace {

using namespace testing_files;

using Change = std::function<void(GgufBuilder&, const std::string& prefix)>;

/// A small file of 4 layers, which has the tensors that `has` asks for but those that `leaves_out` names;
/// `file` becomes its bytes.
Checkpoint open(std::string& file, const std::string& architecture, const char* eps_key, const Change& change,
                const std::function<void(ModelConfig&)>& has,
                const std::function<bool(const std::string&)>& leaves_out) {
  ModelConfig sizes = architecture_config(gguf_architecture(architecture).value());
  sizes.vocab_size = 5;
  sizes.hidden_size = 16;
  sizes.intermediate_size = 8;
  sizes.num_layers = 4;
  sizes.num_heads = sizes.num_kv_heads = 2;
  sizes.head_dim = 8;
  sizes.tied_embeddings = true;
  if (has) has(sizes);
  GgufBuilder builder;
  const std::string prefix = architecture + ".";
  builder.text("general.architecture", architecture);
  for (const auto& [key, value] : {std::pair("vocab_size", 5u), std::pair("context_length", 64u),
                                   std::pair("embedding_length", 16u), std::pair("feed_forward_length", 8u),
                                   std::pair("block_count", 4u), std::pair("attention.head_count", 2u)}) {
    builder.u32(prefix + key, value);
  }
  builder.f32(prefix + eps_key, 1e-5f);
  if (change) change(builder, prefix);
  for (const ExpectedTensor& tensor : expected_tensors(sizes)) {
    if (leaves_out && leaves_out(tensor.name)) continue;
    std::size_t bytes = sizeof(float);
    for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::size_t>(extent);
    builder.tensor(gguf_tensor_name(tensor.name, sizes.architecture),
                   {tensor.shape.rbegin(), tensor.shape.rend()},
                   /*F32*/ 0, std::string(bytes, '\0'));
  }
  file = builder.build();
  return parse_gguf_checkpoint(std::as_bytes(std::span(file)), "test.gguf", {.load_tokenizer = false});
}

ModelConfig parse(const std::string& architecture, const char* eps_key, const Change& change = {},
                  const std::function<void(ModelConfig&)>& has = {}) {
  std::string file;
  return open(file, architecture, eps_key, change, has, {}).config;
}

constexpr const char* kRms = "attention.layer_norm_rms_epsilon";
constexpr const char* kLayerNorm = "attention.layer_norm_epsilon";
const std::vector<bool> kThreeOfFour = {true, true, true, false};

Change window(std::uint32_t size) {
  return
      [size](GgufBuilder& b, const std::string& prefix) { b.u32(prefix + "attention.sliding_window", size); };
}

TEST(GgufArchitectures, Gemma2HasTheSoftcapsAndWindowOfTheFirstFiles) {
  const ModelConfig c = parse("gemma2", kRms);
  EXPECT_EQ(c.attention_softcap, 50);
  EXPECT_EQ(c.logits_softcap, 30);
  EXPECT_EQ(c.sliding_window, 4096);
  EXPECT_EQ(c.layer_uses_sliding_window, (std::vector<bool>{true, false, true, false}));
  const ModelConfig other = parse("gemma2", kRms, [](GgufBuilder& b, const std::string& prefix) {
    b.f32(prefix + "attn_logit_softcapping", 0);
    b.f32(prefix + "final_logit_softcapping", 20);
    b.u32(prefix + "attention.sliding_window", 0);
  });
  EXPECT_FALSE(other.attention_softcap || other.sliding_window);
  EXPECT_EQ(other.logits_softcap, 20);
}

TEST(GgufArchitectures, Gemma3MayHaveASoftcapOfLogits) {
  EXPECT_FALSE(parse("gemma3", kRms).logits_softcap);
  EXPECT_EQ(
      parse("gemma3", kRms,
            [](GgufBuilder& b, const std::string& prefix) { b.f32(prefix + "final_logit_softcapping", 30); })
          .logits_softcap,
      30);
}

struct Gemma4File {
  std::string slides = std::string("\1\0\1\0", 4);
  std::vector<std::int32_t> kv_heads = {2, 1, 2, 1};
  std::uint32_t shared_layers = 2;
};

Change gemma4(const Gemma4File& file) {
  return [file](GgufBuilder& b, const std::string& prefix) {
    std::string kv_heads;
    for (const std::int32_t heads : file.kv_heads) kv_heads += raw(heads);
    b.array(prefix + "attention.head_count_kv", kIdI32, file.kv_heads.size(), kv_heads);
    b.array(prefix + "attention.sliding_window_pattern", kIdBool, 4, file.slides);
    b.u32(prefix + "attention.sliding_window", 7);
    b.u32(prefix + "attention.shared_kv_layers", file.shared_layers);
    b.u32(prefix + "attention.key_length", 16);
    b.u32(prefix + "attention.key_length_swa", 8);
    b.u32(prefix + "embedding_length_per_layer_input", 4);
    b.f32(prefix + "rope.freq_base_swa", 50);
    const float divisors[] = {1, 1, 1, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f};
    b.tensor("rope_freqs.weight", {8}, /*F32*/ 0,
             std::string(reinterpret_cast<const char*>(divisors), sizeof divisors));
  };
}

TEST(GgufArchitectures, Gemma4sLayersDifferInHeadsAndMayShareThem) {
  const auto has = [](ModelConfig& c) {
    c.full_attention = FullAttentionConfig{1, 16, /*keys_as_values=*/true};
    c.sliding_window = 7;
    c.layer_uses_sliding_window = {true, false, true, false};
    c.num_shared_kv_layers = 2;
    c.layer_embedding_size = 4;
  };
  const ModelConfig c = parse("gemma4", kRms, gemma4({}), has);
  EXPECT_EQ(c.full_attention, (FullAttentionConfig{1, 16, /*keys_as_values=*/true}));
  EXPECT_EQ(kv_sizes(c, 0), (KvSizes{2, 8}));
  EXPECT_EQ(c.num_shared_kv_layers, 2);
  EXPECT_EQ(kv_layer(c, 3), 1);
  EXPECT_EQ(c.layer_embedding_size, 4);
  EXPECT_EQ(c.shared_kv_intermediate_size, 0);
  EXPECT_EQ(c.rope.num_turned_pairs, 3);
  EXPECT_TRUE(c.rope.frequency_divisors.empty());
  EXPECT_EQ(c.sliding_rope.value().theta, 50);
  EXPECT_EQ(c.softmax_scale, 1.0f);
  EXPECT_TRUE(c.layer_scales && c.v_norm && !c.mixture);

  const auto error = [&](ErrorCode code, const Gemma4File& file) {
    return error_of(code, [&] { parse("gemma4", kRms, gemma4(file), has); });
  };
  EXPECT_HAS(error(ErrorCode::kUnsupported, {.kv_heads = {2, 2, 2, 1}}), "differs between layers that slide");
  EXPECT_HAS(error(ErrorCode::kCorruptFile, {.kv_heads = {2, 1}}),
             "one for each of the 4 layers was expected");
  EXPECT_HAS(error(ErrorCode::kUnsupported, {.slides = std::string("\1\0\1\1", 4), .kv_heads = {2, 1, 2, 2}}),
             "a last layer with a sliding window");
  EXPECT_HAS(error(ErrorCode::kCorruptFile, {.shared_layers = 3}),
             "expected a layer before them of each kind");
  EXPECT_HAS(error(ErrorCode::kCorruptFile, {.shared_layers = 4}), "that share keys and values is 4");
}

TEST(GgufArchitectures, LayersThatSlideStandInAListOrAreThreeOfFour) {
  EXPECT_FALSE(parse("exaone4", kRms).sliding_window);
  EXPECT_TRUE(parse("exaone4", kRms).layer_uses_rope.empty()) << "without a window all layers turn";
  const ModelConfig implied = parse("exaone4", kRms, window(7));
  EXPECT_EQ(implied.sliding_window, 7);
  EXPECT_EQ(implied.layer_uses_sliding_window, kThreeOfFour);
  EXPECT_EQ(implied.layer_uses_rope, kThreeOfFour);
  const auto list = [](std::uint32_t type, std::uint64_t count, const std::string& elements) {
    return [=](GgufBuilder& b, const std::string& prefix) {
      b.u32(prefix + "attention.sliding_window", 7);
      b.array(prefix + "attention.sliding_window_pattern", type, count, elements);
    };
  };
  const std::string flags("\0\1\1\0", 4);
  EXPECT_EQ(parse("exaone4", kRms, list(kIdBool, 4, flags)).layer_uses_rope,
            (std::vector<bool>{false, true, true, false}));
  const ModelConfig olmo = parse("olmo2", kRms, list(kIdBool, 4, flags));
  EXPECT_EQ(olmo.layer_uses_sliding_window, (std::vector<bool>{false, true, true, false}));
  EXPECT_TRUE(olmo.layer_uses_rope.empty());
  EXPECT_TRUE(olmo.sliding_rope);
  EXPECT_FALSE(parse("olmo2", kRms).sliding_rope);
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] { parse("exaone4", kRms, list(kIdBool, 3, flags.substr(0, 3))); }),
             "has 3 values; one for each of the 4 layers was expected");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] { parse("exaone4", kRms, list(kIdU32, 4, std::string(16, '\0'))); }),
             "an array of truth values was expected");
}

TEST(GgufArchitectures, CoheresSayByWhatLogitsAreMultiplied) {
  const auto scaled = [](GgufBuilder& b, const std::string& prefix) { b.f32(prefix + "logit_scale", 0.25f); };
  const ModelConfig c = parse("command-r", kLayerNorm, scaled);
  EXPECT_EQ(c.architecture, Architecture::kCohere);
  EXPECT_EQ(c.logits_scale, 0.25f);
  EXPECT_EQ(c.norm, NormKind::kLayer);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_TRUE(c.parallel_blocks);
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { parse("command-r", kLayerNorm); }),
             "'command-r.logit_scale': is missing");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { parse("command-r", kRms, scaled); }),
             "'command-r.attention.layer_norm_epsilon': is missing");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { parse("cohere2", kLayerNorm, scaled); }),
             "'cohere2.attention.sliding_window': is missing or 0");
  const ModelConfig sliding = parse("cohere2", kLayerNorm, [&](GgufBuilder& b, const std::string& prefix) {
    scaled(b, prefix);
    window(9)(b, prefix);
  });
  EXPECT_EQ(sliding.layer_uses_rope, kThreeOfFour);
  EXPECT_EQ(sliding.layer_uses_sliding_window, kThreeOfFour);
}

TEST(GgufArchitectures, Ministral3sQueriesAreScaledByTheirPositions) {
  const auto yarn = [](GgufBuilder& b, const std::string& prefix) {
    b.text(prefix + "rope.scaling.type", "yarn");
    b.f32(prefix + "rope.scaling.factor", 16);
    b.u32(prefix + "rope.scaling.original_context_length", 32);
  };
  const auto scaled = [](GgufBuilder& b, const std::string& prefix) {
    b.f32(prefix + "attention.temperature_scale", 0.1f);
  };
  const ModelConfig c = parse("mistral3", kRms, [&](GgufBuilder& b, const std::string& prefix) {
    yarn(b, prefix);
    scaled(b, prefix);
    b.f32(prefix + "rope.scaling.yarn_log_multiplier", 1);
  });
  EXPECT_EQ(c.architecture, Architecture::kMinistral3);
  ASSERT_TRUE(c.query_scaling && c.rope.yarn);
  EXPECT_EQ(c.query_scaling->beta, 0.1f);
  EXPECT_EQ(c.query_scaling->original_max_seq_len, 32);
  EXPECT_EQ(c.rope.yarn->attention_factor, 1);
  const ModelConfig other = parse("mistral3", kRms, [&](GgufBuilder& b, const std::string& prefix) {
    yarn(b, prefix);
    b.f32(prefix + "rope.scaling.yarn_log_multiplier", 0.5f);
  });
  EXPECT_FALSE(other.query_scaling);
  EXPECT_FLOAT_EQ(*other.rope.yarn->attention_factor,
                  static_cast<float>((1 + 0.1 * std::log(16)) / (1 + 0.05 * std::log(16))));
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { parse("mistral3", kRms, scaled); }),
             "'mistral3.rope.scaling.original_context_length': is missing");
  EXPECT_HAS(error_of(ErrorCode::kUnsupported, [&] { parse("llama", kRms, scaled); }),
             "attention.temperature_scale is not supported of this architecture");
}

TEST(GgufArchitectures, MiniCpmsFirstFilesLeaveOutItsScales) {
  const ModelConfig first = parse("minicpm", kRms);
  EXPECT_EQ(first.embedding_scale, 12);
  EXPECT_FLOAT_EQ(first.residual_scale, 0.7f);
  EXPECT_EQ(first.logits_scale, 16);
  const ModelConfig c = parse("minicpm", kRms, [](GgufBuilder& b, const std::string& prefix) {
    b.f32(prefix + "embedding_scale", 2);
    b.f32(prefix + "residual_scale", 0.25f);
    b.f32(prefix + "logit_scale", 4);
  });
  EXPECT_EQ(c.embedding_scale, 2);
  EXPECT_EQ(c.residual_scale, 0.25f);
  EXPECT_EQ(c.logits_scale, 0.25f);
  EXPECT_FALSE(c.softmax_scale);
}

TEST(GgufArchitectures, OfModelsOfImagesThePartForTextIsRead) {
  EXPECT_EQ(parse("qwen2vl", kRms).architecture, Architecture::kQwen2);
  EXPECT_EQ(parse("qwen3vl", kRms).architecture, Architecture::kQwen3);
  EXPECT_EQ(gguf_architecture_name(Architecture::kQwen2), "qwen2");
  EXPECT_EQ(gguf_architecture_name(Architecture::kQwen3), "qwen3");
}

/// Of 4 experts, 2 for each token.
Change experts(const Change& more = {}) {
  return [=](GgufBuilder& b, const std::string& prefix) {
    b.u32(prefix + "expert_count", 4);
    b.u32(prefix + "expert_used_count", 2);
    b.u32(prefix + "expert_feed_forward_length", 6);
    if (more) more(b, prefix);
  };
}

std::function<void(ModelConfig&)> has_experts_in(const std::vector<bool>& layers, std::int64_t shared,
                                                 bool score_bias) {
  return [=](ModelConfig& c) {
    c.mixture = {.num_experts = 4,
                 .num_experts_per_token = 2,
                 .intermediate_size = 6,
                 .score_bias = score_bias,
                 .shared_intermediate_size = shared};
    c.layer_has_experts = layers;
  };
}

TEST(GgufArchitectures, GlmsExpertsAreScoredEachForItself) {
  const std::vector<bool> all_but_first = {false, true, true, true};
  const auto dense_and_shared = [](GgufBuilder& b, const std::string& prefix) {
    b.u32(prefix + "leading_dense_block_count", 1);
    b.u32(prefix + "expert_shared_count", 3);
  };
  const auto has = has_experts_in(all_but_first, 18, true);
  for (const std::string name : {"glm4moe", "dots1"}) {
    SCOPED_TRACE(name);
    const ModelConfig c = parse(name, kRms, experts(dense_and_shared), has);
    EXPECT_EQ(c.layer_has_experts, all_but_first);
    const MixtureConfig expected = {.num_experts = 4,
                                    .num_experts_per_token = 2,
                                    .intermediate_size = 6,
                                    .scoring = ExpertScoring::kSigmoid,
                                    .normalized = false,
                                    .score_bias = true,
                                    .shared_intermediate_size = 18};
    EXPECT_EQ(c.mixture, expected);
  }
  const auto with_entry = [&](const Change& entry) {
    return parse("glm4moe", kRms, experts([&](GgufBuilder& b, const std::string& prefix) {
                   dense_and_shared(b, prefix);
                   entry(b, prefix);
                 }),
                 has);
  };
  const auto with_number = [&](const char* key, std::uint32_t value) {
    return with_entry([&](GgufBuilder& b, const std::string& prefix) { b.u32(prefix + key, value); });
  };
  EXPECT_EQ(with_number("expert_gating_func", 1).mixture->scoring, ExpertScoring::kSoftmax);
  EXPECT_TRUE(with_number("expert_gating_func", 3).mixture->normalized);
  EXPECT_HAS(error_of(ErrorCode::kUnsupported, [&] { with_number("expert_gating_func", 4); }),
             "glm4moe.expert_gating_func is 4; supported are 1");
  EXPECT_EQ(with_number("expert_group_count", 2).mixture->num_groups, 2);
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { with_number("expert_group_used_count", 2); }),
             "the number of groups of a token is 2, expected 1 to 1");
  const auto scale = [&](float value) {
    return with_entry([&](GgufBuilder& b, const std::string& prefix) {
             b.f32(prefix + "expert_weights_scale", value);
           })
        .mixture->weight_scale;
  };
  EXPECT_EQ(scale(2.5f), 2.5f);
  EXPECT_EQ(scale(0), 1) << "as readers take it";
  // Of its blocks the last is one that guesses more tokens.
  const ModelConfig guessing = parse("glm4moe", kRms, experts([&](GgufBuilder& b, const std::string& prefix) {
                                       dense_and_shared(b, prefix);
                                       b.u32(prefix + "nextn_predict_layers", 1);
                                     }),
                                     has);
  EXPECT_EQ(guessing.num_layers, 3);
  EXPECT_EQ(guessing.layer_has_experts, (std::vector<bool>{false, true, true}));
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { with_number("nextn_predict_layers", 4); }),
             "the number of layers is 0");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { parse("glm4moe", kRms, dense_and_shared, has); }),
             "'glm4moe.expert_count': is missing");
}

TEST(GgufArchitectures, OldFilesOfLatentAttentionSayWhatItComesTo) {
  const LatentAttentionConfig latent = {.kv_rank = 12, .nope_dim = 4, .rope_dim = 2, .value_dim = 5};
  const auto has = [&](ModelConfig& c) {
    has_experts_in({}, 0, false)(c);
    c.latent = latent;
    c.num_kv_heads = 1;
    c.head_dim = 14;
  };
  const auto sizes = [&](bool is_new) {
    return experts([=](GgufBuilder& b, const std::string& prefix) {
      b.u32(prefix + "attention.kv_lora_rank", 12);
      b.u32(prefix + "attention.head_count_kv", is_new ? 1 : 2);
      b.u32(prefix + "attention.key_length", is_new ? 14 : 6);
      b.u32(prefix + "attention.value_length", is_new ? 12 : 5);
      if (is_new) b.u32(prefix + "attention.key_length_mla", 6);
      if (is_new) b.u32(prefix + "attention.value_length_mla", 5);
      b.u32(prefix + "rope.dimension_count", 2);
    });
  };
  for (const bool is_new : {false, true}) {
    const ModelConfig c = parse("deepseek2", kRms, sizes(is_new), has);
    EXPECT_EQ(c.latent, latent);
    EXPECT_EQ(c.num_kv_heads, 1);
    EXPECT_EQ(c.head_dim, 14);
    EXPECT_EQ(c.rope.rotary_dim, 2);
    EXPECT_EQ(c.mixture->scoring, ExpertScoring::kSoftmax) << "of V2";
  }
  const auto with_number = [&](const char* key, std::uint32_t value) {
    return parse(
        "deepseek2", kRms,
        [&](GgufBuilder& b, const std::string& prefix) {
          sizes(true)(b, prefix);
          b.u32(prefix + key, value);
        },
        has);
  };
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { with_number("attention.q_lora_rank", 4'000'000'000); }),
             "is 4000000000, expected 0 to 1048576");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { parse("deepseek2", kRms, experts(), has); }),
             "attention.kv_lora_rank");
}

TEST(GgufArchitectures, KeysAndValuesOfHeadsMayBeOneMatrix) {
  // Two heads, of each three rows of keys and two of values, of 32 columns.
  constexpr int kHeads = 2, kNope = 3, kValues = 2, kRank = 32;
  const auto number = [](int row, int column) { return static_cast<float>((row * 7 + column * 3) % 11 - 5); };
  for (const bool is_blocks : {false, true}) {
    std::string rows;
    for (int row = 0; row < kHeads * (kNope + kValues); ++row) {
      if (is_blocks) rows += raw(std::uint16_t{0x3800});  // a step of 1/2
      for (int column = 0; column < kRank; ++column) {
        if (is_blocks) {
          rows += raw(static_cast<std::int8_t>(2 * number(row, column)));
        } else {
          rows += raw(number(row, column));
        }
      }
    }
    const auto sizes = experts([&](GgufBuilder& b, const std::string& prefix) {
      b.u32(prefix + "attention.kv_lora_rank", kRank);
      b.u32(prefix + "attention.key_length", kNope + 2);
      b.u32(prefix + "attention.value_length", kValues);
      b.u32(prefix + "rope.dimension_count", 2);
      for (int layer = 0; layer < 4; ++layer) {
        b.tensor("blk." + std::to_string(layer) + ".attn_kv_b.weight", {kRank, kHeads * (kNope + kValues)},
                 is_blocks ? 8 : 0, rows);
      }
    });
    const auto has = [](ModelConfig& c) {
      has_experts_in({}, 0, false)(c);
      c.latent = {.kv_rank = kRank, .nope_dim = kNope, .rope_dim = 2, .value_dim = kValues};
      c.num_kv_heads = 1;
      c.head_dim = kRank + 2;
    };
    std::string file;
    const Checkpoint c = open(file, "deepseek2", kRms, sizes, has, [](const std::string& name) {
      return name.find("k_b_proj") != name.npos || name.find("v_b_proj") != name.npos;
    });
    const auto numbers = [&](const std::string& name, DType dtype) {
      const CheckpointTensor& tensor = c.tensors.at("layers.3.self_attn." + name + ".weight");
      EXPECT_EQ(tensor.dtype, dtype) << name;
      std::vector<float> result;
      read_tensor(tensor, [&](std::span<const std::byte> bytes, std::size_t) {
        result.resize(static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1] * tensor.shape[2]));
        read_elements(tensor.dtype, bytes.data(), 0, result);
      });
      return result;
    };
    const std::vector<float> keys = numbers("k_b_proj", is_blocks ? DType::kF16 : DType::kF32),
                             values = numbers("v_b_proj", is_blocks ? DType::kQ8_0 : DType::kF32);
    std::vector<float> expected_keys, expected_values;
    for (int head = 0; head < kHeads; ++head) {
      const int first = head * (kNope + kValues);
      for (int column = 0; column < kRank; ++column)
        for (int row = 0; row < kNope; ++row) expected_keys.push_back(number(first + row, column));
      for (int row = 0; row < kValues; ++row)
        for (int column = 0; column < kRank; ++column)
          expected_values.push_back(number(first + kNope + row, column));
    }
    EXPECT_EQ(keys, expected_keys);
    EXPECT_EQ(values, expected_values);
  }
}

TEST(GgufArchitectures, ErniesExpertsMayStandInEverySoManyThLayer) {
  const std::vector<bool> every_second = {false, true, false, true};
  const auto interval = [](std::uint32_t step) {
    return experts([=](GgufBuilder& b, const std::string& prefix) {
      b.u32(prefix + "interleave_moe_layer_step", step);
      b.u32(prefix + "expert_shared_count", 2);
      b.u32(prefix + "expert_shared_feed_forward_length", 10);
    });
  };
  const ModelConfig c = parse("ernie4_5-moe", kRms, interval(2), has_experts_in(every_second, 10, false));
  EXPECT_EQ(c.layer_has_experts, every_second);
  const MixtureConfig expected = {
      .num_experts = 4, .num_experts_per_token = 2, .intermediate_size = 6, .shared_intermediate_size = 10};
  EXPECT_EQ(c.mixture, expected);
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile,
                      [&] { parse("ernie4_5-moe", kRms, interval(0), has_experts_in({}, 10, false)); }),
             "is below 1");
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] { parse("qwen3moe", kRms, interval(1), has_experts_in({}, 10, false)); }),
             "experts that all tokens share are not supported of this architecture");
}

}  // namespace
}  // namespace tessera
