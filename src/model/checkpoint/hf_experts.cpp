#include "model/checkpoint/hf_experts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "ops/arguments.h"

namespace tessera {
namespace {

using nlohmann::json;

/// gpt-oss's own activation has numbers that files may name, but not change.
void check_clamped_activation(const JsonFields& fields) {
  for (const auto& [name, value] :
       {std::pair("swiglu_alpha", kClampedSwiGluAlpha), std::pair("swiglu_limit", kClampedSwiGluLimit)}) {
    if (fields.real(name).value_or(value) != value)
      fields.unsupported(name, *fields.find(name), fmt::format("only {} is supported", value));
  }
}

/// Every so many-th layer, but those that a list names.
std::vector<bool> parse_sparse_layers(const JsonFields& fields, const ModelConfig& config) {
  const std::int64_t step = fields.integer("decoder_sparse_step").value_or(1);
  if (step < 1)
    fields.fail("decoder_sparse_step", *fields.find("decoder_sparse_step"), "a positive number was expected");
  std::vector<bool> layers;
  for (int layer = 0; layer < config.num_layers; ++layer) layers.push_back((layer + 1) % step == 0);
  if (const json* dense = fields.find("mlp_only_layers")) {
    if (!dense->is_array()) fields.fail("mlp_only_layers", *dense, "a list of layers was expected");
    for (const json& value : *dense) {
      const std::int64_t layer = fields.as_integer("mlp_only_layers", value);
      if (layer >= 0 && layer < config.num_layers) layers[static_cast<std::size_t>(layer)] = false;
    }
  }
  return layers;
}

/// Those from moe_layer_start_index to moe_layer_end_index, every so many-th.
std::vector<bool> parse_interval(const JsonFields& fields, const ModelConfig& config,
                                 const HfExpertTraits& traits) {
  const std::int64_t first = fields.integer("moe_layer_start_index").value_or(traits.num_dense_layers);
  const std::int64_t end = fields.integer("moe_layer_end_index").value_or(-1);
  const std::int64_t interval = fields.integer("moe_layer_interval").value_or(1);
  if (interval < 1)
    fields.fail("moe_layer_interval", *fields.find("moe_layer_interval"), "a positive number was expected");
  std::vector<bool> layers;
  for (int layer = 0; layer < config.num_layers; ++layer)
    layers.push_back((layer + 1) % interval == 0 && layer >= first && (end == -1 || layer <= end));
  return layers;
}

/// Of "dense" and "sparse" ones.
std::vector<bool> parse_layer_list(const JsonFields& fields, const ModelConfig& config) {
  const json& types = *fields.find("mlp_layer_types");
  if (!types.is_array() || types.size() != static_cast<std::size_t>(config.num_layers)) {
    fields.fail("mlp_layer_types", types,
                fmt::format("a list of one for each of the {} layers was expected", config.num_layers));
  }
  std::vector<bool> layers;
  for (const json& type : types) {
    layers.push_back(type == "sparse");
    if (!layers.back() && type != "dense")
      fields.unsupported("mlp_layer_types", type, "supported are dense and sparse");
  }
  return layers;
}

std::vector<bool> parse_layers(const JsonFields& fields, const ModelConfig& config,
                               const HfExpertTraits& traits) {
  switch (traits.keys) {
    case ExpertKeys::kQwen:
    case ExpertKeys::kQwenVl:
    case ExpertKeys::kQwen2:
      return parse_sparse_layers(fields, config);
    case ExpertKeys::kErnie:
      return parse_interval(fields, config, traits);
    case ExpertKeys::kGlm:
    case ExpertKeys::kExaone:
    case ExpertKeys::kDeepSeek2:
    case ExpertKeys::kLfm2: {
      const char* const key = traits.keys == ExpertKeys::kLfm2 ? "num_dense_layers" : "first_k_dense_replace";
      if (fields.find("mlp_layer_types") != nullptr) return parse_layer_list(fields, config);
      const std::int64_t dense = fields.integer(key).value_or(traits.num_dense_layers);
      std::vector<bool> layers;
      for (int layer = 0; layer < config.num_layers; ++layer) layers.push_back(layer >= dense);
      return layers;
    }
    default:
      return std::vector<bool>(static_cast<std::size_t>(config.num_layers), true);
  }
}

/// The first of the keys that a file has, else the last.
const char* first_there(const JsonFields& fields, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (fields.find(key) != nullptr) return key;
  return *(keys.end() - 1);
}

/// A number that some files give for each layer; here all layers are alike.
int parse_layer_number(const JsonFields& fields, const char* key, int absent) {
  const json* const values = fields.find(key);
  if (values == nullptr || !values->is_array()) return fields.small_integer(key, absent);
  std::int64_t number = 0;
  for (const json& value : *values) {
    number = fields.as_integer(key, value);
    if (value != values->front()) fields.unsupported(key, *values, "only equal layers are supported");
  }
  if (values->empty() || number < 0 || number > kMostExperts)
    fields.fail(key, *values, fmt::format("numbers from 0 to {} were expected", kMostExperts));
  return static_cast<int>(number);
}

/// Experts that are scored each for itself, in groups, with numbers that keep them equally busy.
void parse_scores(const JsonFields& fields, const HfExpertTraits& traits, MixtureConfig& mixture) {
  mixture.scoring = ExpertScoring::kSigmoid;
  mixture.score_bias = true;
  mixture.normalized = fields.boolean("norm_topk_prob").value_or(traits.normalized);
  mixture.weight_scale = fields.real("routed_scaling_factor").value_or(traits.weight_scale);
  mixture.num_groups = fields.small_integer("n_group", traits.num_groups);
  mixture.num_groups_per_token = fields.small_integer("topk_group", traits.num_groups_per_token);
}

/// Of DeepSeek V2, whose groups are as good as their best expert.
void parse_greedy(const JsonFields& fields, const HfExpertTraits& traits, MixtureConfig& mixture) {
  const std::string method = fields.text("topk_method").value_or("greedy");
  mixture.num_experts_of_group = 1;
  if (method == "group_limited_greedy") {
    mixture.num_groups = fields.small_integer("n_group", traits.num_groups);
    mixture.num_groups_per_token = fields.small_integer("topk_group", traits.num_groups_per_token);
  } else if (method != "greedy") {
    fields.unsupported("topk_method", method,
                       "greedy and group_limited_greedy are supported of this architecture");
  }
  if (fields.boolean("norm_topk_prob").value_or(false))
    fields.unsupported("norm_topk_prob", true, "only false is supported of this architecture");
  mixture.normalized = false;
  mixture.weight_scale = fields.real("routed_scaling_factor").value_or(traits.weight_scale);
}

/// Of experts that all tokens share, of which several are one as wide as all of them.
std::int64_t parse_shared(const JsonFields& fields, const char* key, const HfExpertTraits& traits,
                          const MixtureConfig& mixture) {
  constexpr int kMostShared = 1024;
  const int count = fields.small_integer(key, traits.num_shared_experts);
  if (count > kMostShared)
    fields.fail(key, *fields.find(key), fmt::format("no more than {} were expected", kMostShared));
  return count * std::clamp<std::int64_t>(mixture.intermediate_size, 0, std::int64_t{1} << 40);
}

}  // namespace

MixtureConfig parse_hf_mixture(const JsonFields& fields, const ModelConfig& config,
                               const HfExpertTraits& traits) {
  MixtureConfig mixture;
  const char* const count_key =
      traits.keys == ExpertKeys::kGlm         ? first_there(fields, {"num_local_experts", "n_routed_experts"})
      : traits.keys == ExpertKeys::kDeepSeek2 ? first_there(fields, {"num_experts", "n_routed_experts"})
      : traits.keys == ExpertKeys::kErnie     ? first_there(fields, {"num_experts", "moe_num_experts"})
                                              : first_there(fields, {"num_local_experts", "num_experts"});
  const char* const used_key =
      traits.keys == ExpertKeys::kErnie     ? first_there(fields, {"num_experts_per_tok", "moe_k"})
      : traits.keys == ExpertKeys::kGemma4  ? "top_k_experts"
      : traits.keys == ExpertKeys::kHunYuan ? first_there(fields, {"moe_topk", "num_experts_per_tok"})
                                            : "num_experts_per_tok";
  mixture.num_experts = parse_layer_number(fields, count_key, traits.num_experts);
  mixture.num_experts_per_token = parse_layer_number(fields, used_key, traits.num_experts_per_token);
  mixture.intermediate_size = config.intermediate_size;
  if (traits.intermediate_size != 0 || traits.keys == ExpertKeys::kGemma4)
    mixture.intermediate_size = fields.integer("moe_intermediate_size").value_or(traits.intermediate_size);
  switch (traits.keys) {
    case ExpertKeys::kQwen35:
    case ExpertKeys::kQwen2:
      mixture.shared_intermediate_size =
          fields.integer("shared_expert_intermediate_size").value_or(traits.shared_intermediate_size);
      mixture.shared_gate = mixture.shared_intermediate_size != 0;
      if (traits.keys == ExpertKeys::kQwen35) break;  // whose weights always add up to 1
      [[fallthrough]];
    case ExpertKeys::kQwen:
    case ExpertKeys::kOlmo:
      mixture.normalized = fields.boolean("norm_topk_prob").value_or(traits.normalized);
      break;
    case ExpertKeys::kGptOss:
      mixture.router_bias = mixture.expert_bias = true;
      check_clamped_activation(fields);
      break;
    case ExpertKeys::kGranite:
      mixture.shared_intermediate_size = fields.integer("shared_intermediate_size").value_or(0);
      break;
    case ExpertKeys::kLfm2:
      parse_scores(fields, traits, mixture);
      mixture.score_bias = fields.boolean("use_expert_bias").value_or(true);
      break;
    case ExpertKeys::kGlm:
      parse_scores(fields, traits, mixture);
      mixture.shared_intermediate_size = parse_shared(fields, "n_shared_experts", traits, mixture);
      break;
    case ExpertKeys::kExaone:
      parse_scores(fields, traits, mixture);
      mixture.shared_intermediate_size = parse_shared(fields, "num_shared_experts", traits, mixture);
      break;
    case ExpertKeys::kMiniMax:
      mixture.scoring = ExpertScoring::kSigmoid;
      mixture.score_bias = true;
      break;
    case ExpertKeys::kHunYuan:
      mixture.shared_intermediate_size = config.intermediate_size;
      break;
    case ExpertKeys::kDeepSeek2:
      parse_greedy(fields, traits, mixture);
      mixture.shared_intermediate_size = parse_shared(fields, "n_shared_experts", traits, mixture);
      break;
    case ExpertKeys::kErnie:
      if (fields.boolean("use_bias").value_or(false))
        fields.unsupported("use_bias", true, "only models without biases are supported of this architecture");
      mixture.score_bias = true;
      mixture.shared_intermediate_size = parse_shared(fields, "moe_num_shared_experts", traits, mixture);
      break;
    case ExpertKeys::kGemma4:
      mixture.beside_mlp = mixture.expert_scales = true;
      break;
    case ExpertKeys::kQwenVl:
    case ExpertKeys::kMixtral:
    case ExpertKeys::kNone:
      break;
  }
  return mixture;
}

void parse_hf_expert_layers(const JsonFields& fields, ModelConfig& config, const HfExpertTraits& traits) {
  std::vector<bool> layers = parse_layers(fields, config, traits);
  const auto count = std::count(layers.begin(), layers.end(), true);
  if (count == 0) config.mixture.reset();
  if (count > 0 && count < std::ssize(layers)) config.layer_has_experts = std::move(layers);
}

}  // namespace tessera
