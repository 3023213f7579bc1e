#include "model/checkpoint/hf_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/json_parse.h"
#include "model/checkpoint/hf_architectures.h"
#include "model/checkpoint/hf_experts.h"
#include "model/checkpoint/hf_gemma4.h"
#include "model/checkpoint/hf_rope.h"
#include "model/checkpoint/json_fields.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using nlohmann::json;

Activation parse_activation(const JsonFields& fields, const HfArchitecture& defaults) {
  const char* key = defaults.activation_key;
  const std::string name = fields.text(key).value_or(defaults.activation);
  if (defaults.experts.keys == ExpertKeys::kGptOss) return Activation::kClampedSilu;  // whatever the key says
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu" || name == "gelu_python") return Activation::kGelu;
  if (name == "relu2") return Activation::kReluSquared;
  // The same function with its constant written in different ways.
  for (const char* tanh_name :
       {"gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"}) {
    if (name == tanh_name) return Activation::kGeluTanh;
  }
  fields.unsupported(key, *fields.find(key), "supported are silu, gelu, gelu_pytorch_tanh and relu2");
}

/// The layers that layer_types says slide; none of a file without it.
std::optional<std::vector<bool>> parse_layer_types(const JsonFields& fields, const ModelConfig& config) {
  const json* types = fields.find("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array()) fields.fail("layer_types", *types, "a list was expected");
  if (types->size() != static_cast<std::size_t>(config.num_layers)) {
    fields.fail("layer_types", *types,
                fmt::format("one for each of the {} layers was expected", config.num_layers));
  }
  std::vector<bool> layers;
  for (const json& type : *types) {
    layers.push_back(type == "sliding_attention");
    if (!layers.back() && type != "full_attention")
      fields.unsupported("layer_types", type, "supported are full_attention and sliding_attention");
  }
  return layers;
}

void parse_sliding_window(const JsonFields& fields, const HfArchitecture& defaults, ModelConfig& config) {
  const WindowKeys keys = defaults.windows;
  const std::optional<std::int64_t> window =
      fields.has("sliding_window") ? fields.integer("sliding_window") : defaults.sliding_window;
  const bool must_ask =
      keys == WindowKeys::kQwen || keys == WindowKeys::kWithoutRope || keys == WindowKeys::kAllIfAsked;
  const bool asks =
      must_ask ? fields.boolean("use_sliding_window").value_or(false) : keys != WindowKeys::kNone;
  const bool slides = asks && window.has_value();
  std::int64_t first = 0;
  if (keys == WindowKeys::kQwen) first = fields.integer("max_window_layers").value_or(28);
  if (keys == WindowKeys::kFromLayer)
    first = fields.integer("max_window_layers").value_or(defaults.num_layers);

  std::optional<std::vector<bool>> layers;
  if (keys != WindowKeys::kAllLayers && keys != WindowKeys::kAllIfAsked)
    layers = parse_layer_types(fields, config);
  std::int64_t interval = defaults.full_interval;
  if (keys == WindowKeys::kPattern && !layers && slides) {  // elsewhere it may be a text
    interval = fields.integer("sliding_window_pattern").value_or(interval);
    if (interval < 1) {
      fields.fail("sliding_window_pattern", *fields.find("sliding_window_pattern"),
                  "a positive number was expected");
    }
  }
  if (layers && !slides && std::count(layers->begin(), layers->end(), true) > 0) {
    if (keys == WindowKeys::kNone) {
      fields.unsupported("layer_types", "sliding_attention", "this architecture has full_attention alone");
    }
    fields.fail("layer_types", "sliding_attention",
                must_ask ? "use_sliding_window and sliding_window were expected to be set"
                         : "sliding_window was expected to be set");
  }
  if (!layers) {
    layers.emplace();
    if (interval > 0 && slides) layers = all_but_every(config.num_layers, interval);
    for (int layer = static_cast<int>(layers->size()); layer < config.num_layers; ++layer) {
      const bool turns =
          keys == WindowKeys::kWithoutRope && config.layer_uses_rope[static_cast<std::size_t>(layer)];
      layers->push_back(slides && layer >= first && !turns);
    }
  }
  // Whatever a file says of it.
  if (config.architecture == Architecture::kGemma4) layers->back() = false;
  // Of EXAONE 4 a file without a window is of a model that turns everywhere, of Cohere's nowhere.
  if (defaults.turns_where_it_slides && (slides || config.architecture == Architecture::kCohere2))
    config.layer_uses_rope = *layers;
  if (window) set_sliding_window(config, *window, std::move(*layers));
}

/// Whether a file is of a mixture of experts.
bool has_mixture(const JsonFields& fields, const HfExpertTraits& traits) {
  if (traits.keys == ExpertKeys::kGemma4) return fields.boolean("enable_moe_block").value_or(false);
  return traits.keys != ExpertKeys::kNone;
}

/// Gives settings that EXAONE 3's files have under names of their own the usual ones.
void rename_exaone_settings(json& document) {
  for (const auto& [own, usual] :
       {std::pair("num_layers", "num_hidden_layers"), std::pair("layer_norm_epsilon", "rms_norm_eps"),
        std::pair("activation_function", "hidden_act")}) {
    if (document.contains(own)) document[usual] = document[own];
  }
}

/// Of Granite 4 the models whose layers all have attention and no experts; the others have layers of states.
void check_granite4(const JsonFields& fields, json& document) {
  if (fields.small_integer("num_local_experts", 8) != 0) {
    fields.unsupported("num_local_experts", document.value("num_local_experts", json(8)),
                       "only models without experts are supported of this architecture");
  }
  const json* const types = fields.find("layer_types");
  if (types == nullptr) fields.missing("layer_types");
  if (!types->is_array()) fields.fail("layer_types", *types, "a list was expected");
  for (const json& type : *types) {
    if (type != "attention" && type != "full_attention")
      fields.unsupported("layer_types", type, "only attention is supported of this architecture");
  }
  if (fields.text("position_embedding_type").value_or("") != "rope") {
    fields.unsupported("position_embedding_type", document.value("position_embedding_type", json()),
                       "only rope is supported");
  }
  document.erase("layer_types");
}

/// Gives RoPE's settings that GPT-NeoX's files have under names of their own the usual ones.
void rename_gpt_neox_settings(json& document) {
  for (const auto& [own, usual] :
       {std::pair("rotary_pct", "partial_rotary_factor"), std::pair("rotary_emb_base", "rope_theta")}) {
    if (document.contains(own) && !document.contains(usual)) document[usual] = document[own];
  }
}

/// How much of each head RoPE turns, which MiniMax-M2's files have as a number of elements.
void rename_minimax_settings(const JsonFields& fields, json& document) {
  if (fields.find("rotary_dim") == nullptr || document.contains("partial_rotary_factor")) return;
  const std::int64_t head_dim = fields.integer("head_dim").value_or(kMiniMaxM2HeadDim);
  const std::int64_t rotary_dim = *fields.integer("rotary_dim");
  if (rotary_dim < 1 || rotary_dim > head_dim)
    fields.fail("rotary_dim", document["rotary_dim"],
                fmt::format("1 to {}, head_dim, was expected", head_dim));
  document["partial_rotary_factor"] = static_cast<double>(rotary_dim) / static_cast<double>(head_dim);
}

/// What some classes take for RoPE's settings of a file that has none.
void add_default_rope(Architecture architecture, json& document) {
  json settings;
  if (architecture == Architecture::kGptOss) {
    settings = {{"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
                {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
  } else if (architecture == Architecture::kMinistral3) {
    settings = {{"rope_type", "yarn"},
                {"factor", 16.0},
                {"beta_fast", 32.0},
                {"beta_slow", 1.0},
                {"mscale", 1.0},
                {"mscale_all_dim", 1.0},
                {"rope_theta", 1e6},
                {"original_max_position_embeddings", 16384},
                {"llama_4_scaling_beta", 0.1}};
  } else if (architecture == Architecture::kGemma4) {
    settings = {
        {"full_attention",
         {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", kGemma4Theta}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", kGemma3SlidingTheta}}}};
  } else {
    return;
  }
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (const auto found = document.find(key); found != document.end() && !found->is_null()) return;
  }
  document["rope_parameters"] = std::move(settings);
}

void parse_no_rope_layers(const JsonFields& fields, ModelConfig& config) {
  if (const json* layers = fields.find("no_rope_layers")) {
    const auto count = static_cast<std::size_t>(config.num_layers);
    if (!layers->is_array() || layers->size() < count) {
      fields.fail("no_rope_layers", *layers, fmt::format("a list of {} numbers was expected", count));
    }
    for (std::size_t i = 0; i < count; ++i) {
      const json& value = (*layers)[i];
      config.layer_uses_rope.push_back(value.is_boolean() ? value.get<bool>()
                                                          : fields.as_integer("no_rope_layers", value) != 0);
    }
    return;
  }
  const std::int64_t interval = fields.integer("no_rope_layer_interval").value_or(kNoRopeInterval);
  if (interval < 1) {
    fields.fail("no_rope_layer_interval", *fields.find("no_rope_layer_interval"),
                "a positive number was expected");
  }
  config.layer_uses_rope = all_but_every(config.num_layers, interval);
}

void parse_gemma(const JsonFields& fields, const HfArchitecture& defaults, ModelConfig& config) {
  if (fields.boolean("use_bidirectional_attention").value_or(false)) {
    fields.unsupported("use_bidirectional_attention", true,
                       "only attention to the tokens before is supported");
  }
  config.norm_offset = 1;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  if (config.architecture == Architecture::kGemma) {
    // Its first files say so where they mean the approximation.
    if (config.activation == Activation::kGelu) config.activation = Activation::kGeluTanh;
    return;
  }
  config.softmax_scale = 1 / std::sqrt(fields.real("query_pre_attn_scalar").value_or(256));
  const auto softcap = [&](const char* key, std::optional<float> absent) {
    return fields.has(key) ? fields.real(key) : absent;
  };
  config.attention_softcap = softcap("attn_logit_softcapping", defaults.attention_softcap);
  config.logits_softcap = softcap("final_logit_softcapping", defaults.logits_softcap);
}

void parse_multipliers(const JsonFields& fields, ModelConfig& config) {
  config.softmax_scale = fields.real("attention_multiplier").value_or(1);
  config.embedding_scale = fields.real("embedding_multiplier").value_or(1);
  config.residual_scale = fields.real("residual_multiplier").value_or(1);
  config.logits_scale = 1 / fields.real("logits_scaling").value_or(1);
}

/// What is added to the residual stream is multiplied less the deeper a model is, and logits less the wider.
void parse_depth_scales(const JsonFields& fields, ModelConfig& config) {
  // Attention to blocks of keys that each query chooses, and layers of experts.
  if (const json* field = fields.find("sparse_config"); field != nullptr && !field->empty())
    fields.unsupported("sparse_config", *field, "only attention to all keys is supported");
  if (fields.integer("num_experts").value_or(0) != 0)
    fields.unsupported("num_experts", *fields.find("num_experts"),
                       "only models without experts are supported");
  config.embedding_scale = fields.real("scale_emb").value_or(1);
  config.residual_scale =
      static_cast<float>(fields.number("scale_depth").value_or(1) / std::sqrt(config.num_layers));
  config.logits_scale = static_cast<float>(fields.number("dim_model_base").value_or(1) /
                                           static_cast<double>(config.hidden_size));
}

void parse_biases(const JsonFields& fields, BiasKeys keys, ModelConfig& config) {
  const auto says = [&](const char* key, bool absent = false) {
    return fields.boolean(key).value_or(absent);
  };
  switch (keys) {
    case BiasKeys::kNone:
      break;
    case BiasKeys::kAttentionAndMlp:
      config.mlp_bias = says("mlp_bias");
      [[fallthrough]];
    case BiasKeys::kAttention:
      config.qkv_bias = config.o_bias = says("attention_bias");
      break;
    case BiasKeys::kOnlyQkv:
      config.qkv_bias = true;
      break;
    case BiasKeys::kEachPart:
      config.o_bias = says("attention_out_bias");
      config.mlp_bias = says("mlp_bias");
      [[fallthrough]];
    case BiasKeys::kQkv:
      config.qkv_bias = says("attention_bias", true);
      break;
    case BiasKeys::kQkvAndMlp:
      config.qkv_bias = says("attention_bias");
      config.mlp_bias = says("mlp_bias");
      break;
    case BiasKeys::kInternLm:
      config.qkv_bias = says("qkv_bias") || says("attention_bias");
      config.o_bias = config.mlp_bias = says("bias") || says("mlp_bias");
      break;
    case BiasKeys::kQkvIfAsked:
      config.qkv_bias = says("attention_bias");
      break;
    case BiasKeys::kQkvOfQwen:
      config.qkv_bias = says("qkv_bias", true);
      break;
    case BiasKeys::kUnlessSaid:
      config.qkv_bias = config.o_bias = says("attention_bias", true);
      break;
    case BiasKeys::kAll:
    case BiasKeys::kAllUnlessSaid:
      config.qkv_bias = config.o_bias = config.mlp_bias = says("use_bias", keys == BiasKeys::kAllUnlessSaid);
      break;
    case BiasKeys::kAlways:
      config.qkv_bias = config.o_bias = config.mlp_bias = true;
      break;
    case BiasKeys::kUseQkv:
      config.qkv_bias = says("use_qkv_bias");
      break;
    case BiasKeys::kAlwaysMlp:
      config.qkv_bias = config.o_bias = says("attention_bias", true);
      config.mlp_bias = true;
      break;
  }
}

/// Sizes of heads that go through latents, and what follows from them.
void parse_latent_attention(const JsonFields& fields, const HfArchitecture& defaults, ModelConfig& config) {
  constexpr int kMost = 1 << 20;
  const auto size = [&](const char* key, int absent) {
    const int value = fields.small_integer(key, absent);
    if (value > kMost)
      fields.fail(key, *fields.find(key), fmt::format("no more than {} was expected", kMost));
    return value;
  };
  if (fields.boolean("attention_bias").value_or(false))
    fields.unsupported("attention_bias", true,
                       "only models without biases are supported of this architecture");
  LatentAttentionConfig& latent = config.latent.emplace();
  // A null asks for none.
  if (!fields.has("q_lora_rank") || fields.find("q_lora_rank") != nullptr)
    latent.q_rank = size("q_lora_rank", defaults.latent->q_rank);
  latent.kv_rank = size("kv_lora_rank", defaults.latent->kv_rank);
  latent.nope_dim = size("qk_nope_head_dim", defaults.latent->nope_dim);
  latent.rope_dim = size("qk_rope_head_dim", defaults.latent->rope_dim);
  latent.value_dim = size("v_head_dim", defaults.latent->value_dim);
  config.num_kv_heads = 1;
  config.head_dim = latent.kv_rank + latent.rope_dim;
}

/// RoPE of the part that turns, and scores by YaRN's mscale_all_dim.
void parse_latent_rope(const JsonFields& fields, const HfArchitecture& defaults, ModelConfig& config) {
  HfRopeTraits traits = defaults.rope;
  if (!fields.boolean("rope_interleave").value_or(true)) traits.pairing = RopePairing::kHalves;
  ModelConfig turned = config;
  turned.head_dim = config.latent->rope_dim;
  config.rope = parse_hf_rope(fields, turned, traits);
  config.rope.rotary_dim = config.latent->rope_dim;
  double scale = 1 / std::sqrt(static_cast<double>(config.latent->query_dim()));
  if (config.rope.yarn) {
    double all_dim = 0;
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      const json* const found = fields.find(key);
      if (found != nullptr && found->is_object())
        all_dim = JsonFields(*found, fields.where()).number("mscale_all_dim").value_or(all_dim);
    }
    const double factor = static_cast<double>(config.rope.yarn->factor);
    const double mscale = factor > 1 && all_dim != 0 ? 0.1 * all_dim * std::log(factor) + 1 : 1;
    scale *= mscale * mscale;
  }
  config.softmax_scale = static_cast<float>(scale);
}

std::vector<std::int64_t> token_ids(const JsonFields& fields, const char* key) {
  const json* field = fields.find(key);
  if (field == nullptr) return {};
  if (!field->is_array()) return {fields.as_integer(key, *field)};
  std::vector<std::int64_t> ids;
  for (const json& id : *field) ids.push_back(fields.as_integer(key, id));
  return ids;
}

void parse_special_tokens(const JsonFields& fields, const JsonFields* generation,
                          const HfArchitecture& defaults, ModelConfig& config) {
  const auto in_vocabulary = [&](std::int64_t id) { return id >= 0 && id < config.vocab_size; };
  std::optional<std::int64_t> bos = defaults.bos_token_id;
  if (fields.has("bos_token_id")) bos = fields.integer("bos_token_id");
  if (bos && in_vocabulary(*bos)) config.bos_token_id = static_cast<std::int32_t>(*bos);

  std::vector<std::int64_t> eos = token_ids(fields, "eos_token_id");
  bool given = fields.has("eos_token_id");
  if (generation != nullptr && generation->has("eos_token_id")) {
    given = true;
    const std::vector<std::int64_t> more = token_ids(*generation, "eos_token_id");
    eos.insert(eos.end(), more.begin(), more.end());
  }
  if (!given && defaults.eos_token_id) {
    eos.push_back(*defaults.eos_token_id);
    eos.insert(eos.end(), defaults.more_eos_token_ids.begin(), defaults.more_eos_token_ids.end());
  }
  std::set<std::int64_t> seen;
  for (const std::int64_t id : eos) {
    if (in_vocabulary(id) && seen.insert(id).second) {
      config.eos_token_ids.push_back(static_cast<std::int32_t>(id));
    }
  }
}

}  // namespace

ModelConfig parse_hf_config(std::string_view config_json, const std::string& source,
                            std::string_view generation_config_json, const std::string& generation_source) {
  HfDocument parsed = parse_hf_document(config_json, source);
  json& document = parsed.settings;
  const HfArchitecture& defaults = parsed.architecture;
  if (defaults.architecture == Architecture::kExaone) rename_exaone_settings(document);
  if (defaults.model_type == "granitemoehybrid") check_granite4(JsonFields(document, source), document);
  if (defaults.architecture == Architecture::kGptNeoX) rename_gpt_neox_settings(document);
  if (defaults.architecture == Architecture::kMiniMaxM2)
    rename_minimax_settings(JsonFields(document, source), document);
  add_default_rope(defaults.architecture, document);
  const JsonFields fields(document, source);
  if (const json* field = fields.find("per_layer_config");
      field != nullptr && !field->empty() && defaults.architecture != Architecture::kGemma4)
    fields.unsupported("per_layer_config", *field, "only equal layers are supported");
  if (defaults.architecture == Architecture::kPhi && fields.boolean("qk_layernorm").value_or(false)) {
    fields.unsupported("qk_layernorm", true, "only models without norms of queries and keys are supported");
  }
  const bool may_clip =
      defaults.architecture == Architecture::kOlmoe || defaults.architecture == Architecture::kOlmo;
  if (may_clip && fields.real("clip_qkv"))
    fields.unsupported("clip_qkv", document["clip_qkv"],
                       "only queries, keys and values of any size are supported");
  // Which layers slide depends on transformers' version, and no published model has any.
  if (defaults.architecture == Architecture::kQwen2Moe &&
      fields.boolean("use_sliding_window").value_or(false)) {
    fields.unsupported("use_sliding_window", true, "only attention to all tokens before is supported");
  }
  // For transformers a null is a false, too.
  if (fields.has("is_causal") && !fields.boolean("is_causal").value_or(false)) {
    fields.unsupported("is_causal", document["is_causal"],
                       "only attention to the tokens before is supported, as models that generate have it");
  }

  ModelConfig config = architecture_config(defaults.architecture);
  config.vocab_size = fields.integer("vocab_size").value_or(defaults.vocab_size);
  config.hidden_size = fields.integer("hidden_size").value_or(defaults.hidden_size);
  config.intermediate_size =
      fields.integer(defaults.intermediate_size_key).value_or(defaults.intermediate_size);
  config.num_layers = fields.small_integer("num_hidden_layers", defaults.num_layers);
  config.num_heads = fields.small_integer("num_attention_heads", defaults.num_heads);
  // A null asks for as many as query heads whatever the default is.
  const bool kv_heads_like_heads = fields.has("num_key_value_heads") || defaults.num_kv_heads == 0;
  config.num_kv_heads = fields.small_integer("num_key_value_heads",
                                             kv_heads_like_heads ? config.num_heads : defaults.num_kv_heads);
  const bool head_dim_derived = fields.has("head_dim") || defaults.head_dim == 0;
  if (defaults.latent) {
    parse_latent_attention(fields, defaults, config);
  } else if (fields.find("head_dim") == nullptr && head_dim_derived) {
    if (config.num_heads == 0 || config.hidden_size <= 0 || config.hidden_size % config.num_heads != 0) {
      throw Error(ErrorCode::kCorruptFile,
                  fmt::format("{}: hidden_size is {}; without head_dim a positive multiple of "
                              "num_attention_heads, {}, was expected",
                              source, config.hidden_size, config.num_heads));
    }
    if (config.hidden_size / config.num_heads > std::numeric_limits<int>::max()) {
      throw Error(ErrorCode::kCorruptFile,
                  fmt::format("{}: hidden_size is {}; that is too large", source, config.hidden_size));
    }
    config.head_dim = static_cast<int>(config.hidden_size / config.num_heads);
  } else {
    config.head_dim = fields.small_integer("head_dim", defaults.head_dim);
  }
  if (defaults.recurrent != RecurrentKeys::kNone) parse_hf_recurrent(fields, defaults.recurrent, config);
  if (defaults.architecture == Architecture::kGemma4)
    parse_hf_gemma4(fields, defaults.has_layer_embeddings, config);
  config.norm_eps = fields.real(defaults.norm_eps_key).value_or(defaults.norm_eps);
  config.activation = parse_activation(fields, defaults);
  config.max_seq_len = fields.integer("max_position_embeddings").value_or(defaults.max_seq_len);
  if (defaults.latent) {
    parse_latent_rope(fields, defaults, config);
  } else if (defaults.rope.sliding_theta) {
    parse_hf_sliding_rope(fields, config, defaults.rope);
  } else {
    config.rope = parse_hf_rope(fields, config, defaults.rope);
  }
  if (defaults.architecture == Architecture::kMinistral3)
    config.query_scaling = parse_hf_query_scaling(fields);
  if (defaults.architecture == Architecture::kGlm4Moe && fields.boolean("use_qk_norm").value_or(false))
    config.qk_norm = QkNorm::kEachHead;
  if (defaults.is_gemma) parse_gemma(fields, defaults, config);
  if (defaults.architecture == Architecture::kNemotron || defaults.recurrent == RecurrentKeys::kQwenNext)
    config.norm_offset = 1;
  if (defaults.head_norm_key != nullptr && fields.boolean(defaults.head_norm_key).value_or(false))
    config.qk_norm = QkNorm::kOwnEachHead;
  if (defaults.parallel_residual) {
    config.parallel_blocks = fields.boolean("use_parallel_residual").value_or(*defaults.parallel_residual);
    // Of StableLM's the MLP reads what attention reads.
    config.parallel_norms = config.parallel_blocks && defaults.architecture == Architecture::kGptNeoX;
  }
  parse_biases(fields, defaults.biases, config);
  config.tied_embeddings = fields.boolean("tie_word_embeddings").value_or(defaults.tied_embeddings);
  if (config.short_conv)
    config.tied_embeddings = fields.boolean("tie_embedding").value_or(config.tied_embeddings);
  if (has_mixture(fields, defaults.experts))
    config.mixture = parse_hf_mixture(fields, config, defaults.experts);
  config.transposed_experts = defaults.experts.keys == ExpertKeys::kQwenVl;
  if (defaults.has_multipliers) parse_multipliers(fields, config);
  if (defaults.has_depth_scales) parse_depth_scales(fields, config);
  if (defaults.logit_scale) config.logits_scale = fields.real("logit_scale").value_or(*defaults.logit_scale);
  validate(config, source);  // before anything as long as a number in the file

  if (defaults.has_no_rope_layers) parse_no_rope_layers(fields, config);
  if (config.mixture) parse_hf_expert_layers(fields, config, defaults.experts);
  if (defaults.recurrent != RecurrentKeys::kNone) {
    parse_hf_attention_layers(fields, defaults.recurrent, config);
  } else {
    parse_sliding_window(fields, defaults, config);
  }
  if (defaults.architecture == Architecture::kGemma4) check_hf_gemma4_layers(fields, config);
  if (generation_config_json.empty()) {
    parse_special_tokens(fields, nullptr, defaults, config);
  } else {
    const json generation_document = parse_json_bounded(generation_config_json, generation_source);
    const JsonFields generation(generation_document, generation_source);
    parse_special_tokens(fields, &generation, defaults, config);
  }
  validate(config, source);
  return config;
}

}  // namespace tessera
