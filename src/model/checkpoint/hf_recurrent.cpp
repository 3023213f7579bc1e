#include "model/checkpoint/hf_recurrent.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tessera {
namespace {

using nlohmann::json;

/// The width of LFM2's MLP: two thirds of the file's, times a factor, up to a multiple, unless it says that
/// the number is meant as it is.
std::int64_t adjusted_width(const JsonFields& fields, std::int64_t width) {
  if (!fields.boolean("block_auto_adjust_ff_dim").value_or(true)) return width;
  constexpr std::int64_t kMost = 1 << 24;
  const std::int64_t multiple = fields.integer("block_multiple_of").value_or(256);
  if (multiple < 1 || multiple > kMost) {
    fields.fail("block_multiple_of", *fields.find("block_multiple_of"),
                fmt::format("1 to {} was expected", kMost));
  }
  if (width < 1 || width > kMost) return width;  // which is refused by its name
  const std::int64_t part = 2 * width / 3;
  // A null leaves the two thirds alone.
  if (fields.has("block_ffn_dim_multiplier") && fields.find("block_ffn_dim_multiplier") == nullptr)
    return part;
  const double scaled = fields.number("block_ffn_dim_multiplier").value_or(1) * static_cast<double>(part);
  if (!(scaled >= 0 && scaled <= static_cast<double>(kMost))) return 0;
  const auto whole = static_cast<std::int64_t>(scaled);
  return (whole + multiple - 1) / multiple * multiple;
}

/// Those that a list of types calls full_attention; the others must be of the other type.
std::vector<bool> parse_types(const JsonFields& fields, const json& types, const char* other,
                              const ModelConfig& config) {
  if (!types.is_array()) fields.fail("layer_types", types, "a list was expected");
  if (types.size() != static_cast<std::size_t>(config.num_layers)) {
    fields.fail("layer_types", types,
                fmt::format("one for each of the {} layers was expected", config.num_layers));
  }
  std::vector<bool> layers;
  for (const json& type : types) {
    layers.push_back(type == "full_attention");
    if (!layers.back() && type != other)
      fields.unsupported("layer_types", type, fmt::format("supported are full_attention and {}", other));
  }
  return layers;
}

/// Those whose numbers full_attn_idxs has; all of a file that has none.
std::vector<bool> parse_indices(const JsonFields& fields, const ModelConfig& config) {
  const json* const indices = fields.find("full_attn_idxs");
  std::vector<bool> layers(static_cast<std::size_t>(config.num_layers), indices == nullptr);
  if (indices == nullptr) return layers;
  if (!indices->is_array()) fields.fail("full_attn_idxs", *indices, "a list of layers was expected");
  for (const json& value : *indices) {
    const std::int64_t layer = fields.as_integer("full_attn_idxs", value);
    if (layer >= 0 && layer < config.num_layers) layers[static_cast<std::size_t>(layer)] = true;
  }
  return layers;
}

std::vector<bool> parse_interval(const JsonFields& fields, const ModelConfig& config) {
  const std::int64_t interval = fields.integer("full_attention_interval").value_or(4);
  if (interval < 1) {
    fields.fail("full_attention_interval", *fields.find("full_attention_interval"),
                "a positive number was expected");
  }
  std::vector<bool> layers = all_but_every(config.num_layers, interval);
  layers.flip();
  return layers;
}

}  // namespace

void parse_hf_recurrent(const JsonFields& fields, RecurrentKeys keys, ModelConfig& config) {
  if (keys == RecurrentKeys::kQwenNext) {
    GatedDeltaConfig& delta = config.gated_delta.emplace();
    delta.num_key_heads = fields.small_integer("linear_num_key_heads", 16);
    delta.num_value_heads = fields.small_integer("linear_num_value_heads", 32);
    delta.key_dim = fields.small_integer("linear_key_head_dim", 128);
    delta.value_dim = fields.small_integer("linear_value_head_dim", 128);
    delta.taps = fields.small_integer("linear_conv_kernel_dim", 4);
    return;
  }
  ShortConvConfig& conv = config.short_conv.emplace();
  conv.taps = fields.small_integer("conv_L_cache", 3);
  conv.bias = fields.boolean("conv_bias").value_or(false);
  if (keys == RecurrentKeys::kLfm2) {
    const std::int64_t width = fields.integer("block_ff_dim").value_or(config.intermediate_size);
    config.intermediate_size = adjusted_width(fields, width);
  }
}

void parse_hf_attention_layers(const JsonFields& fields, RecurrentKeys keys, ModelConfig& config) {
  const json* const types = fields.find("layer_types");
  std::vector<bool> layers;
  if (keys == RecurrentKeys::kQwenNext) {
    layers = types != nullptr ? parse_types(fields, *types, "linear_attention", config)
                              : parse_interval(fields, config);
  } else {
    layers = types != nullptr ? parse_types(fields, *types, "conv", config) : parse_indices(fields, config);
  }
  if (std::ranges::count(layers, false) > 0) {
    config.layer_has_attention = std::move(layers);
  } else {  // no layer has what the sizes are for
    config.short_conv.reset();
    config.gated_delta.reset();
  }
}

}  // namespace tessera
