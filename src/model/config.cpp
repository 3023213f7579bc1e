#include "model/config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "tessera/error.h"

namespace tessera {
namespace {

class Checker {
 public:
  explicit Checker(const std::string& source) : source_(source) {}

  void integer(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) const {
    if (value < low || value > high) fail(name, value, fmt::format("expected {} to {}", low, high));
  }

  void real(const char* name, double value, double low, double high) const {
    if (!(value >= low && value <= high)) fail(name, value, fmt::format("expected {} to {}", low, high));
  }

  template <class T>
  [[noreturn]] void fail(const char* name, T value, const std::string& expected) const {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {} is {}, {}", source_, name, value, expected));
  }

 private:
  const std::string& source_;
};

constexpr double kMaxFactor = 1e6;
constexpr std::int64_t kMaxSeqLen = std::int64_t{1} << 30;
constexpr const char* kOriginal = "the RoPE scaling's original context length";

void check_rope(const RopeConfig& rope, int head_dim, const Checker& check) {
  check.real("the RoPE base", rope.theta, 1, 1e15);
  check.integer("the RoPE dimension", rope.rotary_dim, 0, head_dim);
  if (rope.rotary_dim % 2 != 0) check.fail("the RoPE dimension", rope.rotary_dim, "expected an even number");
  check.integer("the number of pairs that RoPE turns", rope.num_turned_pairs, 0,
                (rope.rotary_dim == 0 ? head_dim : rope.rotary_dim) / 2);
  constexpr const char* kFactor = "the RoPE scaling's factor";
  if (rope.linear) check.real(kFactor, rope.linear->factor, 1 / kMaxFactor, kMaxFactor);
  if (rope.llama3) {
    check.real(kFactor, rope.llama3->factor, 1 / kMaxFactor, kMaxFactor);
    check.real("the RoPE scaling's low_freq_factor", rope.llama3->low_freq_factor, 1 / kMaxFactor,
               kMaxFactor);
    check.real("the RoPE scaling's high_freq_factor", rope.llama3->high_freq_factor, 1 / kMaxFactor,
               kMaxFactor);
    if (rope.llama3->high_freq_factor <= rope.llama3->low_freq_factor) {
      check.fail("the RoPE scaling's high_freq_factor", rope.llama3->high_freq_factor,
                 fmt::format("expected more than low_freq_factor, {}", rope.llama3->low_freq_factor));
    }
    check.integer(kOriginal, rope.llama3->original_max_seq_len, 1, kMaxSeqLen);
  }
  if (rope.yarn) {
    check.real(kFactor, rope.yarn->factor, 1 / kMaxFactor, kMaxFactor);
    check.real("the RoPE scaling's beta_fast", rope.yarn->beta_fast, 1 / kMaxFactor, kMaxFactor);
    check.real("the RoPE scaling's beta_slow", rope.yarn->beta_slow, 1 / kMaxFactor, kMaxFactor);
    check.integer(kOriginal, rope.yarn->original_max_seq_len, 1, kMaxSeqLen);
    if (rope.yarn->attention_factor) {
      check.real("the RoPE scaling's attention factor", *rope.yarn->attention_factor, 1 / kMaxFactor,
                 kMaxFactor);
    }
    // YaRN divides by the base's logarithm.
    if (rope.theta <= 1) check.fail("the RoPE base", rope.theta, "expected more than 1");
  }
  const int rotary_dim = rope.rotary_dim == 0 ? head_dim : rope.rotary_dim;
  const auto check_divisors = [&](const std::vector<float>& divisors) {
    if (divisors.size() != static_cast<std::size_t>(rotary_dim / 2)) {
      check.fail("the number of RoPE frequency divisors", divisors.size(),
                 fmt::format("expected {}", rotary_dim / 2));
    }
    for (const float divisor : divisors)
      check.real("a RoPE frequency divisor", divisor, 1 / kMaxFactor, kMaxFactor);
  };
  if (!rope.frequency_divisors.empty()) check_divisors(rope.frequency_divisors);
  if (rope.longrope) {
    check.integer(kOriginal, rope.longrope->original_max_seq_len, 1, kMaxSeqLen);
    check.real("the RoPE scaling's attention factor", rope.longrope->attention_factor, 1 / kMaxFactor,
               kMaxFactor);
    check_divisors(rope.longrope->short_divisors);
    check_divisors(rope.longrope->long_divisors);
  }
}

void check_mixture(const MixtureConfig& mixture, const Checker& check) {
  check.integer("the number of experts", mixture.num_experts, 1, kMostExperts);
  check.integer("the number of experts of a token", mixture.num_experts_per_token, 1, mixture.num_experts);
  check.integer("the experts' intermediate size", mixture.intermediate_size, 1, 1 << 24);
  check.integer("the shared expert's intermediate size", mixture.shared_intermediate_size, 0, 1 << 24);
  check.real("the scale of experts' weights", mixture.weight_scale, 1 / kMaxFactor, kMaxFactor);
  check.integer("the number of groups of experts", mixture.num_groups, 1, mixture.num_experts);
  check.integer("the number of groups of a token", mixture.num_groups_per_token, 1, mixture.num_groups);
  const int group_size = mixture.num_experts / mixture.num_groups;
  if (mixture.num_groups > 1 && (mixture.num_experts % mixture.num_groups != 0 || group_size < 2)) {
    check.fail(
        "the number of groups of experts", mixture.num_groups,
        fmt::format("expected one that makes groups of two or more of {} experts", mixture.num_experts));
  }
  if (group_size * mixture.num_groups_per_token < mixture.num_experts_per_token) {
    check.fail("the number of experts of a token", mixture.num_experts_per_token,
               fmt::format("expected no more than those of its groups, {}",
                           group_size * mixture.num_groups_per_token));
  }
}

/// Of heads of layers that see all tokens, and of layers that share keys and values.
void check_kv_layers(const ModelConfig& config, const Checker& check) {
  if (const auto& full = config.full_attention) {
    check.integer("the number of key/value heads of full attention", full->num_kv_heads, 1, config.num_heads);
    if (config.num_heads % full->num_kv_heads != 0) {
      check.fail("the number of key/value heads of full attention", full->num_kv_heads,
                 fmt::format("expected a divisor of the number of attention heads, {}", config.num_heads));
    }
    check.integer("head_dim of full attention", full->head_dim, 1, 1 << 14);
    if (full->head_dim % 2 != 0)
      check.fail("head_dim of full attention", full->head_dim, "expected an even number");
  }
  check.integer("the number of layers that share keys and values", config.num_shared_kv_layers, 0,
                config.num_layers - 1);
  const int first_shared = config.num_layers - config.num_shared_kv_layers;
  const std::vector<bool>& sliding = config.layer_uses_sliding_window;
  for (int layer = first_shared; layer < config.num_layers && !sliding.empty(); ++layer) {
    if (sliding.size() == static_cast<std::size_t>(config.num_layers) &&
        slides(config, kv_layer(config, layer)) != slides(config, layer))
      check.fail("the number of layers that share keys and values", config.num_shared_kv_layers,
                 fmt::format("expected a layer before them of each kind, as layer {} is", layer));
  }
  check.integer("the intermediate size of layers that share keys and values",
                config.shared_kv_intermediate_size, 0, 1 << 24);
  check.integer("the width of layers' embeddings", config.layer_embedding_size, 0, 1 << 20);
}

/// Before which head_dim and the like are not made of these.
void check_latent(const LatentAttentionConfig& latent, const Checker& check) {
  check.integer("the rank of queries", latent.q_rank, 0, 1 << 20);
  check.integer("the rank of keys and values", latent.kv_rank, 1, 1 << 14);
  check.integer("the part of a head that RoPE leaves alone", latent.nope_dim, 1, 1 << 14);
  check.integer("the part of a head that RoPE turns", latent.rope_dim, 2, 1 << 14);
  check.integer("the size of a head of values", latent.value_dim, 1, 1 << 14);
}

void check_recurrent(const ModelConfig& config, const Checker& check) {
  if (config.short_conv) check.integer("the convolution's length", config.short_conv->taps, 2, kMostConvTaps);
  if (const std::optional<GatedDeltaConfig>& delta = config.gated_delta) {
    constexpr int kMostHeads = 1 << 14;
    check.integer("the convolution's length", delta->taps, 2, kMostConvTaps);
    check.integer("the number of key heads of linear attention", delta->num_key_heads, 1, kMostHeads);
    check.integer("the number of value heads of linear attention", delta->num_value_heads, 1, kMostHeads);
    check.integer("the size of a key head of linear attention", delta->key_dim, 1, kMostDeltaKeyDim);
    check.integer("the size of a value head of linear attention", delta->value_dim, 1, 1 << 14);
    if (delta->num_value_heads % delta->num_key_heads != 0) {
      check.fail("the number of value heads of linear attention", delta->num_value_heads,
                 fmt::format("expected a multiple of the number of key heads, {}", delta->num_key_heads));
    }
  }
  const std::vector<bool>& layers = config.layer_has_attention;
  if (layers.empty()) return;
  if (layers.size() != static_cast<std::size_t>(config.num_layers)) {
    check.fail("the number of layers with or without attention", layers.size(),
               fmt::format("expected the number of layers, {}", config.num_layers));
  }
  if (std::ranges::count(layers, true) == 0)
    check.fail("the number of layers with attention", 0, "expected one at least");
}

}  // namespace

RecurrentStateSize recurrent_state_size(const ModelConfig& config) {
  if (config.short_conv) return {(config.short_conv->taps - 1) * config.hidden_size, 0};
  if (!config.gated_delta) return {};
  const GatedDeltaConfig& delta = *config.gated_delta;
  return {(delta.taps - 1) * delta.conv_columns(), delta.value_columns() * delta.key_dim};
}

std::string_view architecture_name(Architecture architecture) noexcept {
  switch (architecture) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kMistral:
      return "mistral";
    case Architecture::kMinistral3:
      return "ministral3";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kPhi3:
      return "phi3";
    case Architecture::kSmolLm3:
      return "smollm3";
    case Architecture::kGranite:
      return "granite";
    case Architecture::kMiniCpm:
      return "minicpm";
    case Architecture::kOlmo:
      return "olmo";
    case Architecture::kOlmo2:
      return "olmo2";
    case Architecture::kExaone:
      return "exaone";
    case Architecture::kExaone4:
      return "exaone4";
    case Architecture::kGlm:
      return "glm";
    case Architecture::kGlm4:
      return "glm4";
    case Architecture::kSeedOss:
      return "seed_oss";
    case Architecture::kErnie45:
      return "ernie4_5";
    case Architecture::kHunYuanDense:
      return "hunyuan_v1_dense";
    case Architecture::kCohere:
      return "cohere";
    case Architecture::kCohere2:
      return "cohere2";
    case Architecture::kGemma:
      return "gemma";
    case Architecture::kGemma2:
      return "gemma2";
    case Architecture::kGemma3:
      return "gemma3";
    case Architecture::kGemma4:
      return "gemma4";
    case Architecture::kQwen3Moe:
      return "qwen3_moe";
    case Architecture::kMixtral:
      return "mixtral";
    case Architecture::kGptOss:
      return "gpt_oss";
    case Architecture::kOlmoe:
      return "olmoe";
    case Architecture::kFlexOlmo:
      return "flex_olmo";
    case Architecture::kGraniteMoe:
      return "granitemoe";
    case Architecture::kQwen2Moe:
      return "qwen2_moe";
    case Architecture::kGlm4Moe:
      return "glm4_moe";
    case Architecture::kErnie45Moe:
      return "ernie4_5_moe";
    case Architecture::kDots1:
      return "dots1";
    case Architecture::kDeepSeek:
      return "deepseek";
    case Architecture::kMiniMaxM2:
      return "minimax_m2";
    case Architecture::kExaoneMoe:
      return "exaone_moe";
    case Architecture::kHunYuanMoe:
      return "hunyuan_v1_moe";
    case Architecture::kStarcoder2:
      return "starcoder2";
    case Architecture::kPhi:
      return "phi";
    case Architecture::kGptNeoX:
      return "gpt_neox";
    case Architecture::kStableLm:
      return "stablelm";
    case Architecture::kNemotron:
      return "nemotron";
    case Architecture::kArcee:
      return "arcee";
    case Architecture::kLfm2:
      return "lfm2";
    case Architecture::kLfm2Moe:
      return "lfm2_moe";
    case Architecture::kQwen3Next:
      return "qwen3_next";
    case Architecture::kQwen35:
      return "qwen3_5";
    case Architecture::kQwen35Moe:
      return "qwen3_5_moe";
  }
  return "unknown";
}

bool may_have_experts(Architecture architecture) noexcept {
  switch (architecture) {
    case Architecture::kQwen3Moe:
    case Architecture::kMixtral:
    case Architecture::kGptOss:
    case Architecture::kOlmoe:
    case Architecture::kFlexOlmo:
    case Architecture::kGraniteMoe:
    case Architecture::kQwen2Moe:
    case Architecture::kGlm4Moe:
    case Architecture::kErnie45Moe:
    case Architecture::kDots1:
    case Architecture::kDeepSeek:
    case Architecture::kLfm2Moe:
    case Architecture::kQwen3Next:
    case Architecture::kQwen35Moe:
    case Architecture::kGemma4:
    case Architecture::kMiniMaxM2:
    case Architecture::kExaoneMoe:
    case Architecture::kHunYuanMoe:
      return true;
    default:
      return false;
  }
}

ModelConfig architecture_config(Architecture architecture) {
  ModelConfig config;
  config.architecture = architecture;
  switch (architecture) {
    case Architecture::kQwen3:
    case Architecture::kQwen3Moe:
    case Architecture::kDots1:
    case Architecture::kLfm2:
    case Architecture::kLfm2Moe:
    case Architecture::kExaoneMoe:
      config.qk_norm = QkNorm::kEachHead;
      break;
    case Architecture::kQwen3Next:
    case Architecture::kQwen35:
    case Architecture::kQwen35Moe:
      config.qk_norm = QkNorm::kEachHead;
      config.attention_gate = true;
      break;
    case Architecture::kHunYuanDense:
    case Architecture::kHunYuanMoe:
      config.qk_norm = QkNorm::kEachHead;
      config.qk_norm_after_rope = true;
      break;
    case Architecture::kPhi3:
      config.fused_qkv = true;
      config.fused_gate_up = true;
      break;
    case Architecture::kCohere:
    case Architecture::kCohere2:
      config.norm = NormKind::kLayer;
      config.parallel_blocks = true;
      break;
    case Architecture::kGlm4:
      config.norms_after = true;
      [[fallthrough]];
    case Architecture::kGlm:
      config.fused_gate_up = true;
      break;
    case Architecture::kOlmo:
      config.norm = NormKind::kLayer;
      config.norm_weights = false;
      break;
    case Architecture::kOlmo2:
    case Architecture::kFlexOlmo:
      config.qk_norm = QkNorm::kAllHeads;
      config.norms_before = false;
      config.norms_after = true;
      break;
    case Architecture::kOlmoe:
    case Architecture::kMiniMaxM2:
      config.qk_norm = QkNorm::kAllHeads;
      break;
    case Architecture::kExaone4:
      config.qk_norm = QkNorm::kEachHead;
      config.norms_before = false;
      config.norms_after = true;
      break;
    case Architecture::kGemma4:
      config.v_norm = true;
      config.layer_scales = true;
      [[fallthrough]];
    case Architecture::kGemma3:
      config.qk_norm = QkNorm::kEachHead;
      [[fallthrough]];
    case Architecture::kGemma2:
      config.norms_after = true;
      [[fallthrough]];
    case Architecture::kGemma:
      config.activation = Activation::kGeluTanh;
      config.rounds_embedding_scale = true;
      break;
    case Architecture::kGptOss:
      config.activation = Activation::kClampedSilu;
      config.attention_sinks = true;
      break;
    case Architecture::kStarcoder2:
      config.norm = NormKind::kLayer;
      config.norm_bias = true;
      config.gated_mlp = false;
      config.activation = Activation::kGeluTanh;
      break;
    case Architecture::kPhi:
      config.norm = NormKind::kLayer;
      config.norm_bias = config.head_bias = true;
      config.parallel_blocks = true;
      config.gated_mlp = false;
      config.activation = Activation::kGeluTanh;
      break;
    case Architecture::kGptNeoX:
      config.norm = NormKind::kLayer;
      config.norm_bias = true;
      config.gated_mlp = false;
      config.fused_qkv = true;
      config.activation = Activation::kGelu;
      break;
    case Architecture::kStableLm:
      config.norm = NormKind::kLayer;
      config.norm_bias = true;
      break;
    case Architecture::kNemotron:
      config.norm = NormKind::kLayer;
      config.norm_bias = true;
      [[fallthrough]];
    case Architecture::kArcee:
      config.gated_mlp = false;
      config.activation = Activation::kReluSquared;
      break;
    case Architecture::kLlama:
    case Architecture::kMistral:
    case Architecture::kMinistral3:
    case Architecture::kQwen2:
    case Architecture::kSmolLm3:
    case Architecture::kGranite:
    case Architecture::kGraniteMoe:
    case Architecture::kQwen2Moe:
    case Architecture::kGlm4Moe:
    case Architecture::kErnie45Moe:
    case Architecture::kDeepSeek:
    case Architecture::kMiniCpm:
    case Architecture::kMixtral:
    case Architecture::kExaone:
    case Architecture::kSeedOss:
    case Architecture::kErnie45:
      break;
  }
  return config;
}

int kv_layer(const ModelConfig& config, int layer) {
  const int first_shared = config.num_layers - config.num_shared_kv_layers;
  if (layer < first_shared) return layer;
  int source = first_shared - 1;
  while (source > 0 && slides(config, source) != slides(config, layer)) --source;
  return source;
}

float query_scale(const QueryScaling& scaling, std::int64_t position) noexcept {
  const std::int64_t contexts = position / scaling.original_max_seq_len;
  return static_cast<float>(1 + double{scaling.beta} * std::log1p(static_cast<double>(contexts)));
}

void set_sliding_window(ModelConfig& config, std::int64_t window, std::vector<bool> layers) {
  const auto num_sliding = std::count(layers.begin(), layers.end(), true);
  if (num_sliding == 0) return;
  config.sliding_window = window;
  if (num_sliding < std::ssize(layers)) config.layer_uses_sliding_window = std::move(layers);
}

std::vector<bool> all_but_every(int num_layers, std::int64_t interval) {
  std::vector<bool> layers;
  for (int layer = 0; layer < num_layers; ++layer) layers.push_back((layer + 1) % interval != 0);
  return layers;
}

void validate(const ModelConfig& config, const std::string& source) {
  const Checker check(source);
  check.integer("the vocabulary size", config.vocab_size, 1, 1 << 24);
  check.integer("the hidden size", config.hidden_size, 1, 1 << 20);
  check.integer("the MLP's intermediate size", config.intermediate_size, 1, 1 << 24);
  check.integer("the number of layers", config.num_layers, 1, 10'000);
  check.integer("the number of attention heads", config.num_heads, 1, 1 << 14);
  check.integer("the number of key/value heads", config.num_kv_heads, 1, config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    check.fail("the number of attention heads", config.num_heads,
               fmt::format("expected a multiple of the number of key/value heads, {}", config.num_kv_heads));
  }
  if (config.latent) check_latent(*config.latent, check);
  check.integer("head_dim", config.head_dim, 1, 1 << 14);
  if (config.head_dim % 2 != 0 && config.rope.rotary_dim == 0) {
    check.fail("head_dim", config.head_dim, "expected an even number, since RoPE rotates pairs");
  }
  check.real("the norms' epsilon", config.norm_eps, 0, 1);
  check.integer("the context length", config.max_seq_len, 1, kMaxSeqLen);
  if (config.sliding_window) check.integer("the sliding window", *config.sliding_window, 1, kMaxSeqLen);
  if (!config.layer_uses_sliding_window.empty() &&
      config.layer_uses_sliding_window.size() != static_cast<std::size_t>(config.num_layers)) {
    check.fail("the number of layer types", config.layer_uses_sliding_window.size(),
               fmt::format("expected the number of layers, {}", config.num_layers));
  }
  if (!config.layer_uses_rope.empty() &&
      config.layer_uses_rope.size() != static_cast<std::size_t>(config.num_layers)) {
    check.fail("the number of layers with or without RoPE", config.layer_uses_rope.size(),
               fmt::format("expected the number of layers, {}", config.num_layers));
  }
  if (config.mixture) check_mixture(*config.mixture, check);
  if (!config.layer_has_experts.empty() &&
      config.layer_has_experts.size() != static_cast<std::size_t>(config.num_layers)) {
    check.fail("the number of layers with or without experts", config.layer_has_experts.size(),
               fmt::format("expected the number of layers, {}", config.num_layers));
  }
  check_recurrent(config, check);
  check_kv_layers(config, check);
  check_rope(config.rope, full_head_dim(config), check);
  if (config.sliding_rope) check_rope(*config.sliding_rope, config.head_dim, check);
  if (config.query_scaling) {
    check.real("the beta of the scaling of queries", config.query_scaling->beta, 0, kMaxFactor);
    check.integer(kOriginal, config.query_scaling->original_max_seq_len, 1, kMaxSeqLen);
  }
  const std::pair<const char*, float> scales[] = {
      {"the scale of attention's scores", config.softmax_scale.value_or(1)},
      {"the scale of embeddings", config.embedding_scale},
      {"the scale of what is added to the residual stream", config.residual_scale},
      {"the scale of logits", config.logits_scale},
      {"the softcap of attention's scores", config.attention_softcap.value_or(1)},
      {"the softcap of logits", config.logits_softcap.value_or(1)}};
  for (const auto& [name, scale] : scales) check.real(name, scale, 1 / kMaxFactor, kMaxFactor);
}

}  // namespace tessera
