#include "model/checkpoint/hf_gemma4.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera {
namespace {

using nlohmann::json;

constexpr int kGlobalHeadDim = 512;
constexpr std::int64_t kLayerEmbeddingSize = 256;

/// per_layer_config, null of a file that has none. Where it is there and empty all layers have the same
/// sizes.
const json* find_layers(const JsonFields& fields) {
  static const json none = json::object();
  if (!fields.has("per_layer_config")) return nullptr;
  const json* layers = fields.find("per_layer_config");
  if (layers == nullptr) return &none;
  if (!layers->is_object()) fields.fail("per_layer_config", *layers, "an object was expected");
  return layers;
}

JsonFields layer_fields(const JsonFields& fields, const std::string& layer, const json& sizes) {
  if (!sizes.is_object()) fields.fail("per_layer_config", sizes, "an object for each layer was expected");
  return JsonFields(sizes, fmt::format("{}: per_layer_config: {}", fields.where(), layer));
}

/// As transformers 5 writes them, whichever way it read them.
FullAttentionConfig parse_layers(const JsonFields& fields, const json& layers, const ModelConfig& config) {
  if (layers.empty()) return {.num_kv_heads = config.num_kv_heads, .head_dim = config.head_dim};
  const auto first = layers.begin();
  const JsonFields sizes = layer_fields(fields, first.key(), *first);
  FullAttentionConfig full;
  full.head_dim = sizes.small_integer("head_dim", config.head_dim);
  full.num_kv_heads = sizes.small_integer("num_key_value_heads", config.num_kv_heads);
  return full;
}

}  // namespace

void parse_hf_gemma4(const JsonFields& fields, bool has_layer_embeddings, ModelConfig& config) {
  // With images some attention is to later tokens, too; with texts "vision" is none.
  if (const json* field = fields.find("use_bidirectional_attention");
      field != nullptr && *field != "vision" && *field != false) {
    fields.unsupported("use_bidirectional_attention", *field,
                       "only attention to the tokens before is supported");
  }
  const bool keys_as_values = fields.boolean("attention_k_eq_v").value_or(false);
  FullAttentionConfig& full = config.full_attention.emplace();
  if (const json* layers = find_layers(fields)) {
    full = parse_layers(fields, *layers, config);
  } else {
    full.head_dim = fields.small_integer("global_head_dim", kGlobalHeadDim);
    full.num_kv_heads = keys_as_values
                            ? fields.small_integer("num_global_key_value_heads", config.num_kv_heads)
                            : config.num_kv_heads;
  }
  full.keys_as_values = keys_as_values;

  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  config.softmax_scale = 1.0f;
  config.logits_softcap = fields.real("final_logit_softcapping");
  config.num_shared_kv_layers = fields.small_integer("num_kv_shared_layers", 0);
  if (fields.boolean("use_double_wide_mlp").value_or(false))
    config.shared_kv_intermediate_size =
        2 * std::clamp<std::int64_t>(config.intermediate_size, 0, std::int64_t{1} << 40);
  if (!has_layer_embeddings) return;
  const bool is_null =
      fields.has("hidden_size_per_layer_input") && fields.find("hidden_size_per_layer_input") == nullptr;
  config.layer_embedding_size =
      is_null ? 0 : fields.integer("hidden_size_per_layer_input").value_or(kLayerEmbeddingSize);
  const std::int64_t rows = fields.integer("vocab_size_per_layer_input").value_or(config.vocab_size);
  if (config.layer_embedding_size != 0 && rows != config.vocab_size) {
    fields.unsupported("vocab_size_per_layer_input", *fields.find("vocab_size_per_layer_input"),
                       fmt::format("only that of vocab_size, {}, is supported", config.vocab_size));
  }
}

void check_hf_gemma4_layers(const JsonFields& fields, const ModelConfig& config) {
  const json* layers = find_layers(fields);
  if (layers == nullptr || layers->empty()) return;
  std::size_t num_full = 0;
  for (int layer = 0; layer < config.num_layers; ++layer) num_full += slides(config, layer) ? 0 : 1;
  for (const auto& [name, value] : layers->items()) {
    const JsonFields sizes = layer_fields(fields, name, value);
    int layer = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
    const bool is_number = error == std::errc() && end == name.data() + name.size();
    if (!is_number || layer < 0 || layer >= config.num_layers || slides(config, layer)) {
      fields.unsupported("per_layer_config", name,
                         "only sizes of the layers with full_attention are supported");
    }
    for (const auto& [key, unused] : value.items()) {
      if (key != "head_dim" && key != "num_key_value_heads")
        sizes.unsupported(key.c_str(), unused, "only head_dim and num_key_value_heads are supported");
    }
    if (kv_sizes(config, layer) != KvSizes{sizes.small_integer("num_key_value_heads", config.num_kv_heads),
                                           sizes.small_integer("head_dim", config.head_dim)}) {
      fields.unsupported("per_layer_config", value,
                         "only equal sizes of all layers with full_attention are supported");
    }
  }
  if (layers->size() != num_full) {
    fields.unsupported(
        "per_layer_config", *layers,
        fmt::format("only sizes of all {} layers with full_attention are supported", num_full));
  }
}

}  // namespace tessera
