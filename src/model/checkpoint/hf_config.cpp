#include "model/checkpoint/hf_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/json_parse.h"
#include "core/text.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using nlohmann::json;

/// Typed access to the fields of one JSON object; null counts as absent.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw Error(ErrorCode::kCorruptFile, where_ + ": an object was expected");
  }

  const json* find(const char* key) const {
    const auto field = object_.find(key);
    return field == object_.end() || field->is_null() ? nullptr : &*field;
  }

  /// Whether the key is written, be it as null.
  bool has(const char* key) const { return object_.contains(key); }

  std::optional<std::int64_t> integer(const char* key) const {
    const json* field = find(key);
    if (field == nullptr) return std::nullopt;
    return as_integer(key, *field);
  }

  std::int64_t as_integer(const char* key, const json& value) const {
    if (value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}) {
      return value.get<std::int64_t>();
    }
    if (value.is_number_integer() && !value.is_number_unsigned()) return value.get<std::int64_t>();
    if (value.is_number_float()) {  // some tools write 4096.0
      const double number = value.get<double>();
      if (std::abs(number) <= 0x1p53 && number == std::floor(number))
        return static_cast<std::int64_t>(number);
    }
    fail(key, value, "a whole number was expected");
  }

  std::optional<double> number(const char* key) const {
    const json* field = find(key);
    if (field == nullptr) return std::nullopt;
    if (!field->is_number()) fail(key, *field, "a number was expected");
    return field->get<double>();
  }

  /// For fields that end up as float; validate() checks closer ranges.
  std::optional<float> real(const char* key) const {
    const std::optional<double> value = number(key);
    if (!value) return std::nullopt;
    if (!(std::abs(*value) <= std::numeric_limits<float>::max())) {
      fail(key, *find(key), "a number within fp32's range was expected");
    }
    return static_cast<float>(*value);
  }

  std::optional<bool> boolean(const char* key) const {
    const json* field = find(key);
    if (field == nullptr) return std::nullopt;
    if (!field->is_boolean()) fail(key, *field, "true or false was expected");
    return field->get<bool>();
  }

  std::optional<std::string> text(const char* key) const {
    const json* field = find(key);
    if (field == nullptr) return std::nullopt;
    if (!field->is_string()) fail(key, *field, "a string was expected");
    return field->get<std::string>();
  }

  /// An integer that ModelConfig keeps as int; validate() checks closer ranges.
  int small_integer(const char* key, std::int64_t absent) const {
    const std::int64_t value = integer(key).value_or(absent);
    if (value < 0 || value > std::numeric_limits<int>::max()) {
      fail(key, *find(key), fmt::format("0 to {} was expected", std::numeric_limits<int>::max()));
    }
    return static_cast<int>(value);
  }

  [[noreturn]] void fail(const char* key, const json& value, const std::string& expected) const {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: {} is {}; {}", where_, key, shown(value), expected));
  }

  [[noreturn]] void unsupported(const char* key, const json& value, const std::string& supported) const {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: {} is {}; {}", where_, key, shown(value), supported));
  }

  [[noreturn]] void missing(const char* key) const {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {} is missing", where_, key));
  }

  const std::string& where() const { return where_; }

 private:
  static std::string shown(const json& value) {
    if (value.is_object()) return "an object";
    if (value.is_array()) return fmt::format("a list of {} values", value.size());
    return printable(value.dump(-1, ' ', false, json::error_handler_t::replace), 60);
  }

  const json& object_;
  std::string where_;
};

/// What transformers takes for a key that config.json leaves out.
struct ArchitectureDefaults {
  std::string_view class_name;
  std::string_view model_type;
  Architecture architecture;
  std::int64_t vocab_size;
  std::int64_t intermediate_size;
  std::int64_t num_kv_heads;  // 0: as many as query heads
  std::int64_t head_dim;      // 0: hidden_size / num_heads
  std::int64_t max_seq_len;
  std::optional<std::int32_t> bos_token_id, eos_token_id;
};

constexpr std::array<ArchitectureDefaults, 5> kArchitectures = {{
    {"LlamaForCausalLM", "llama", Architecture::kLlama, 32000, 11008, 0, 0, 2048, 1, 2},
    {"MistralForCausalLM", "mistral", Architecture::kMistral, 32000, 14336, 8, 0, 131072, 1, 2},
    // What transformers calls a Mistral whose file has layer_types.
    {"MinistralForCausalLM", "ministral", Architecture::kMistral, 32000, 14336, 8, 0, 131072, 1, 2},
    {"Qwen2ForCausalLM", "qwen2", Architecture::kQwen2, 151936, 22016, 32, 0, 32768, std::nullopt,
     std::nullopt},
    {"Qwen3ForCausalLM", "qwen3", Architecture::kQwen3, 151936, 22016, 32, 128, 32768, std::nullopt,
     std::nullopt},
}};

constexpr const char* kSupportedArchitectures =
    "supported are LlamaForCausalLM, MistralForCausalLM, MinistralForCausalLM, Qwen2ForCausalLM and "
    "Qwen3ForCausalLM";

const ArchitectureDefaults& find_architecture(const Fields& fields) {
  if (const json* classes = fields.find("architectures")) {
    if (!classes->is_array()) fields.fail("architectures", *classes, "a list of class names was expected");
    for (const json& name : *classes) {
      for (const ArchitectureDefaults& known : kArchitectures) {
        if (name.is_string() && name.get_ref<const std::string&>() == known.class_name) return known;
      }
    }
    if (!classes->empty()) fields.unsupported("architectures", classes->front(), kSupportedArchitectures);
  }
  const json* model_type = fields.find("model_type");
  if (model_type == nullptr) fields.missing("architectures");
  for (const ArchitectureDefaults& known : kArchitectures) {
    if (model_type->is_string() && model_type->get_ref<const std::string&>() == known.model_type)
      return known;
  }
  fields.unsupported("model_type", *model_type, kSupportedArchitectures);
}

Activation parse_activation(const Fields& fields) {
  const std::string name = fields.text("hidden_act").value_or("silu");
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu" || name == "gelu_python") return Activation::kGelu;
  // The same function with its constant written in different ways.
  for (const char* tanh_name :
       {"gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"}) {
    if (name == tanh_name) return Activation::kGeluTanh;
  }
  fields.unsupported("hidden_act", *fields.find("hidden_act"),
                     "supported are silu, gelu and gelu_pytorch_tanh");
}

/// The factor that YaRN multiplies cos and sin by, from its two "mscale" settings where both are given.
float yarn_attention_factor(const Fields& scaling, double factor) {
  if (const auto given = scaling.real("attention_factor")) return *given;
  const auto grown = [&](double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; };
  const double mscale = scaling.number("mscale").value_or(0);
  const double mscale_all_dim = scaling.number("mscale_all_dim").value_or(0);
  if (mscale == 0 || mscale_all_dim == 0) return static_cast<float>(grown(1));
  return static_cast<float>(grown(mscale) / grown(mscale_all_dim));
}

/// transformers 5 keeps everything in rope_parameters; 4 has rope_theta and rope_scaling beside each other.
/// As there, rope_scaling comes before rope_parameters and what the object holds comes before the fields
/// around it.
RopeConfig parse_rope(const Fields& fields, const ModelConfig& config) {
  const json empty = json::object();
  const auto filled = [&](const char* key) {
    const json* field = fields.find(key);
    return field != nullptr && !(field->is_object() && field->empty()) ? field : nullptr;
  };
  const char* key = filled("rope_scaling") != nullptr ? "rope_scaling" : "rope_parameters";
  const json* object = filled(key);
  const Fields scaling(object == nullptr ? empty : *object, fields.where() + ": " + key);

  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (scaling.find(layer_type) != nullptr) {
      scaling.unsupported(layer_type, *scaling.find(layer_type),
                          "RoPE settings that differ between layers are not supported");
    }
  }
  const auto own_or_outer = [&](const char* name) {
    const auto own = scaling.real(name);
    return own ? own : fields.real(name);
  };

  RopeConfig rope;
  rope.pairing = RopePairing::kHalves;
  rope.theta = own_or_outer("rope_theta").value_or(10000.0f);
  // These architectures rotate whole heads. Where a file says otherwise transformers fails or, in some of its
  // versions and for some RoPE types, ignores it.
  for (const Fields* owner : {&scaling, &fields}) {
    if (const auto fraction = owner->number("partial_rotary_factor"); fraction && *fraction != 1) {
      owner->unsupported("partial_rotary_factor", *owner->find("partial_rotary_factor"),
                         "this architecture rotates whole heads, so that only 1 is supported");
    }
  }

  const char* type_key = scaling.find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string type = scaling.text(type_key).value_or("default");
  const auto original_max_seq_len = [&] {
    constexpr const char* kKey = "original_max_position_embeddings";
    if (const auto outer = fields.integer(kKey)) return *outer;
    return scaling.integer(kKey).value_or(config.max_seq_len);
  };
  const auto required = [&](const char* name) {
    const auto value = scaling.real(name);
    if (!value) scaling.missing(name);
    return *value;
  };
  if (type == "linear") {
    rope.linear = RopeLinearScaling{.factor = required("factor")};
  } else if (type == "llama3") {
    rope.llama3 = RopeLlama3Scaling{.factor = required("factor"),
                                    .low_freq_factor = required("low_freq_factor"),
                                    .high_freq_factor = required("high_freq_factor"),
                                    .original_max_seq_len = original_max_seq_len()};
  } else if (type == "yarn") {
    RopeYarnScaling yarn;
    yarn.original_max_seq_len = original_max_seq_len();
    if (yarn.original_max_seq_len <= 0) {
      scaling.fail("original_max_position_embeddings", json(yarn.original_max_seq_len),
                   "a positive number was expected");
    }
    yarn.factor = scaling.real("factor").value_or(static_cast<float>(config.max_seq_len) /
                                                  static_cast<float>(yarn.original_max_seq_len));
    // As in transformers, 0 stands for the default too.
    if (const float beta = scaling.real("beta_fast").value_or(0); beta != 0) yarn.beta_fast = beta;
    if (const float beta = scaling.real("beta_slow").value_or(0); beta != 0) yarn.beta_slow = beta;
    yarn.attention_factor = yarn_attention_factor(scaling, yarn.factor);
    yarn.truncate = scaling.boolean("truncate").value_or(true);
    rope.yarn = yarn;
  } else if (type != "default") {
    scaling.unsupported(type_key, *scaling.find(type_key), "supported are default, linear, llama3 and yarn");
  }
  return rope;
}

/// Layers slide that layer_types names. In files without it all of Mistral's do, and Qwen's from
/// max_window_layers on; Llama ignores the setting.
void parse_sliding_window(const Fields& fields, ModelConfig& config) {
  constexpr std::int64_t kDefaultWindow = 4096;
  const std::optional<std::int64_t> window =
      fields.has("sliding_window") ? fields.integer("sliding_window") : kDefaultWindow;
  const bool is_mistral = config.architecture == Architecture::kMistral;
  const bool is_qwen =
      config.architecture == Architecture::kQwen2 || config.architecture == Architecture::kQwen3;
  const bool asks = is_mistral || (is_qwen && fields.boolean("use_sliding_window").value_or(false));
  const bool slides = asks && window.has_value();

  std::vector<bool> layers;
  if (const json* types = fields.find("layer_types")) {
    if (!types->is_array()) fields.fail("layer_types", *types, "a list was expected");
    if (types->size() != static_cast<std::size_t>(config.num_layers)) {
      fields.fail("layer_types", *types,
                  fmt::format("one for each of the {} layers was expected", config.num_layers));
    }
    for (const json& type : *types) {
      const bool sliding = type == "sliding_attention";
      if (!sliding && type != "full_attention") {
        fields.unsupported("layer_types", type, "supported are full_attention and sliding_attention");
      }
      if (sliding && !is_mistral && !is_qwen) {
        fields.unsupported("layer_types", type, "this architecture has full_attention alone");
      }
      if (sliding && !slides) {
        fields.fail("layer_types", type,
                    fmt::format("{}sliding_window {} expected to be set",
                                is_qwen ? "use_sliding_window and " : "", is_qwen ? "were" : "was"));
      }
      layers.push_back(sliding);
    }
  } else if (slides) {
    const std::int64_t first = is_mistral ? 0 : fields.integer("max_window_layers").value_or(28);
    for (int layer = 0; layer < config.num_layers; ++layer) layers.push_back(layer >= first);
  }
  const auto num_sliding = std::count(layers.begin(), layers.end(), true);
  if (num_sliding == 0) return;
  config.sliding_window = window;
  if (num_sliding < config.num_layers) config.layer_uses_sliding_window = std::move(layers);
}

std::vector<std::int64_t> token_ids(const Fields& fields, const char* key) {
  const json* field = fields.find(key);
  if (field == nullptr) return {};
  if (!field->is_array()) return {fields.as_integer(key, *field)};
  std::vector<std::int64_t> ids;
  for (const json& id : *field) ids.push_back(fields.as_integer(key, id));
  return ids;
}

void parse_special_tokens(const Fields& fields, const Fields* generation,
                          const ArchitectureDefaults& defaults, ModelConfig& config) {
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
  if (!given && defaults.eos_token_id) eos.push_back(*defaults.eos_token_id);
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
  const json document = parse_json_bounded(config_json, source);
  const Fields fields(document, source);
  const ArchitectureDefaults& defaults = find_architecture(fields);
  for (const char* key : {"quantization_config", "per_layer_config"}) {
    if (const json* field = fields.find(key); field != nullptr && !field->empty()) {
      fields.unsupported(key, *field, "only plain F32, F16 and BF16 weights and equal layers are supported");
    }
  }
  // For transformers a null is a false, too.
  if (fields.has("is_causal") && !fields.boolean("is_causal").value_or(false)) {
    fields.unsupported("is_causal", document["is_causal"],
                       "only attention to the tokens before is supported, as models that generate have it");
  }

  ModelConfig config;
  config.architecture = defaults.architecture;
  config.vocab_size = fields.integer("vocab_size").value_or(defaults.vocab_size);
  config.hidden_size = fields.integer("hidden_size").value_or(4096);
  config.intermediate_size = fields.integer("intermediate_size").value_or(defaults.intermediate_size);
  config.num_layers = fields.small_integer("num_hidden_layers", 32);
  config.num_heads = fields.small_integer("num_attention_heads", 32);
  // A null asks for as many as query heads whatever the default is.
  const bool kv_heads_like_heads = fields.has("num_key_value_heads") || defaults.num_kv_heads == 0;
  config.num_kv_heads = fields.small_integer("num_key_value_heads",
                                             kv_heads_like_heads ? config.num_heads : defaults.num_kv_heads);
  const bool head_dim_derived = fields.has("head_dim") || defaults.head_dim == 0;
  if (fields.find("head_dim") == nullptr && head_dim_derived) {
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
  config.rms_norm_eps = fields.real("rms_norm_eps").value_or(1e-6f);
  config.activation = parse_activation(fields);
  config.max_seq_len = fields.integer("max_position_embeddings").value_or(defaults.max_seq_len);
  config.rope = parse_rope(fields, config);
  const bool attention_bias = fields.boolean("attention_bias").value_or(false);
  const bool bias_is_configurable =
      config.architecture == Architecture::kLlama || config.architecture == Architecture::kQwen3;
  config.qkv_bias = config.architecture == Architecture::kQwen2 || (bias_is_configurable && attention_bias);
  config.o_bias = bias_is_configurable && attention_bias;
  config.mlp_bias = config.architecture == Architecture::kLlama && fields.boolean("mlp_bias").value_or(false);
  config.qk_norm = config.architecture == Architecture::kQwen3;
  config.tied_embeddings = fields.boolean("tie_word_embeddings").value_or(false);
  validate(config, source);  // before anything as long as a number in the file

  parse_sliding_window(fields, config);
  if (generation_config_json.empty()) {
    parse_special_tokens(fields, nullptr, defaults, config);
  } else {
    const json generation_document = parse_json_bounded(generation_config_json, generation_source);
    const Fields generation(generation_document, generation_source);
    parse_special_tokens(fields, &generation, defaults, config);
  }
  validate(config, source);
  return config;
}

}  // namespace tessera
