#include "model/checkpoint/hf_experts.h"

#include <fmt/core.h>

#include <algorithm>
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

}  // namespace

MixtureConfig parse_hf_mixture(const JsonFields& fields, const ModelConfig& config,
                               const HfArchitecture& defaults) {
  MixtureConfig mixture;
  const char* const key = fields.find("num_local_experts") != nullptr ? "num_local_experts" : "num_experts";
  mixture.num_experts = fields.small_integer(key, defaults.num_experts);
  mixture.num_experts_per_token = fields.small_integer("num_experts_per_tok", defaults.num_experts_per_token);
  mixture.intermediate_size = config.intermediate_size;
  switch (defaults.experts) {
    case ExpertKeys::kQwen:
      mixture.intermediate_size = fields.integer("moe_intermediate_size").value_or(768);
      [[fallthrough]];
    case ExpertKeys::kOlmo:
      mixture.normalized = fields.boolean("norm_topk_prob").value_or(false);
      break;
    case ExpertKeys::kGptOss:
      mixture.router_bias = mixture.expert_bias = true;
      check_clamped_activation(fields);
      break;
    case ExpertKeys::kMixtral:
    case ExpertKeys::kNone:
      break;
  }
  return mixture;
}

void parse_hf_expert_layers(const JsonFields& fields, ModelConfig& config, const HfArchitecture& defaults) {
  if (defaults.experts != ExpertKeys::kQwen) return;
  std::vector<bool> layers = parse_sparse_layers(fields, config);
  const auto count = std::count(layers.begin(), layers.end(), true);
  if (count == 0) config.mixture.reset();
  if (count > 0 && count < std::ssize(layers)) config.layer_has_experts = std::move(layers);
}

}  // namespace tessera
