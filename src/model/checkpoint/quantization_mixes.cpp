#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "core/block_format.h"
#include "model/checkpoint/expected_tensors.h"
#include "model/checkpoint/quantize_gguf.h"
#include "tessera/error.h"

namespace tessera {
namespace {

/// Where a matrix stands.
enum class Role {
  kEmbedding,
  kLayerEmbedding,
  kHead,
  kQuery,
  kKey,
  kValue,
  kQkv,
  kOutput,
  kGate,
  kUp,
  kDown
};

struct Place {
  Role role;
  int layer;
  bool is_of_experts = false;
};

struct Mix {
  std::string_view name;
  DType base;
};

constexpr std::array<Mix, 22> kMixes = {{
    {"f32", DType::kF32},       {"f16", DType::kF16},     {"bf16", DType::kBF16},
    {"q4_0", DType::kQ4_0},     {"q4_1", DType::kQ4_1},   {"q5_0", DType::kQ5_0},
    {"q5_1", DType::kQ5_1},     {"q8_0", DType::kQ8_0},   {"q2_k", DType::kQ2_K},
    {"q3_k_s", DType::kQ3_K},   {"q3_k_m", DType::kQ3_K}, {"q3_k_l", DType::kQ3_K},
    {"q4_k_s", DType::kQ4_K},   {"q4_k_m", DType::kQ4_K}, {"q5_k_s", DType::kQ5_K},
    {"q5_k_m", DType::kQ5_K},   {"q6_k", DType::kQ6_K},   {"iq4_nl", DType::kIQ4_NL},
    {"iq4_xs", DType::kIQ4_XS}, {"mxfp4", DType::kMXFP4}, {"tq1_0", DType::kTQ1_0},
    {"tq2_0", DType::kTQ2_0},
}};

Place place_of(std::string_view tensor) {
  if (tensor == "embed_tokens.weight") return {Role::kEmbedding, 0};
  // What looks up and makes embeddings of layers, of models that have them.
  if (tensor == "embed_tokens_per_layer.weight") return {Role::kLayerEmbedding, 0};
  if (tensor == "per_layer_model_projection.weight") return {Role::kUp, 0};
  if (tensor == "lm_head.weight") return {Role::kHead, 0};
  constexpr std::string_view kLayers = "layers.";
  constexpr std::array<std::pair<std::string_view, Role>, 23> kRoles = {
      {{".q_proj.weight", Role::kQuery},           {".q_a_proj.weight", Role::kQuery},
       {".q_b_proj.weight", Role::kQuery},         {".kv_a_proj_with_mqa.weight", Role::kQuery},
       {".k_b_proj.weight", Role::kQuery},         {".v_b_proj.weight", Role::kQuery},
       {".qkv_proj.weight", Role::kQkv},           {".z_proj.weight", Role::kQuery},
       {".b_proj.weight", Role::kQuery},           {".a_proj.weight", Role::kQuery},
       {".in_proj_ba.weight", Role::kQuery},       {".in_proj_qkvz.weight", Role::kQuery},
       {".in_proj.weight", Role::kQuery},          {".out_proj.weight", Role::kQuery},
       {".gate_up_proj.weight", Role::kUp},        {".k_proj.weight", Role::kKey},
       {".v_proj.weight", Role::kValue},           {".o_proj.weight", Role::kOutput},
       {".gate_proj.weight", Role::kGate},         {".up_proj.weight", Role::kUp},
       {".down_proj.weight", Role::kDown},         {".per_layer_input_gate.weight", Role::kGate},
       {".per_layer_projection.weight", Role::kUp}}};
  const auto role = std::find_if(kRoles.begin(), kRoles.end(),
                                 [&](const auto& entry) { return tensor.ends_with(entry.first); });
  int layer = 0;
  if (!tensor.starts_with(kLayers) || role == kRoles.end() ||
      std::from_chars(tensor.data() + kLayers.size(), tensor.data() + tensor.size(), layer).ec !=
          std::errc()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is no matrix of a model", tensor));
  }
  return {role->second, layer, is_of_experts(tensor)};
}

/// The layers at both ends, and every third between them.
bool gets_more_bits(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

DType output_beside_eight_experts(const Mix& mix) {
  for (const std::string_view name : {"q2_k", "q3_k_s", "q3_k_m", "iq4_nl", "iq4_xs", "q4_k_s", "q4_k_m"}) {
    if (mix.name == name) return DType::kQ5_K;
  }
  return mix.base;
}

/// Before rows that are not whole blocks are thought of.
DType wanted_dtype(const Mix& mix, const Place& place, const ModelConfig& config) {
  const std::string_view name = mix.name;
  const bool is_ternary = mix.base == DType::kTQ1_0 || mix.base == DType::kTQ2_0;
  const bool is_iq4 = mix.base == DType::kIQ4_NL || mix.base == DType::kIQ4_XS;
  const int layers = config.num_layers;
  const bool is_grouped = config.num_heads / config.num_kv_heads >= 4;
  if (block_format(mix.base).elements == 1) return mix.base;
  // What attention has is little beside eight experts.
  const bool has_eight_experts = config.mixture && config.mixture->num_experts == 8;
  if (config.mixture && mix.base == DType::kMXFP4) return place.is_of_experts ? DType::kMXFP4 : DType::kQ8_0;
  if (has_eight_experts && (place.role == Role::kKey || place.role == Role::kValue)) return DType::kQ8_0;
  if (has_eight_experts && place.role == Role::kOutput) return output_beside_eight_experts(mix);
  switch (place.role) {
    case Role::kHead:
      return mix.base == DType::kQ8_0 || mix.base == DType::kMXFP4 ? DType::kQ8_0 : DType::kQ6_K;
    case Role::kEmbedding:
      // Without a head of its own it is the head.
      if (config.tied_embeddings) return wanted_dtype(mix, {Role::kHead, 0}, config);
      [[fallthrough]];
    case Role::kLayerEmbedding:
      return is_ternary ? DType::kQ4_K : mix.base;
    case Role::kValue:
      if (name == "q2_k") return is_grouped ? DType::kQ4_K : DType::kQ3_K;
      if (name == "q3_k_m") return place.layer < 2 ? DType::kQ5_K : DType::kQ4_K;
      if (name == "q3_k_l") return DType::kQ5_K;
      if (name == "q4_k_s" && place.layer < 4) return DType::kQ5_K;
      if (is_iq4 && is_grouped) return DType::kQ5_K;
      break;
    case Role::kDown:
      if (name == "q2_k") return DType::kQ3_K;
      if (name == "q3_k_m") return place.layer < layers / 16 ? DType::kQ5_K : DType::kQ4_K;
      if (name == "q3_k_l") return DType::kQ5_K;
      if ((name == "q4_k_s" || is_iq4) && place.layer < layers / 8) return DType::kQ5_K;
      break;
    case Role::kQkv:
      if (name == "q3_k_m" || name == "q3_k_l") return DType::kQ4_K;
      if (name == "q4_k_m") return DType::kQ5_K;
      if (name == "q5_k_m") return DType::kQ6_K;
      return mix.base;
    case Role::kOutput:
      if (name == "q2_k") return DType::kQ3_K;
      if (name == "q3_k_m") return DType::kQ4_K;
      if (name == "q3_k_l") return DType::kQ5_K;
      return mix.base;
    case Role::kQuery:
    case Role::kKey:
    case Role::kGate:
    case Role::kUp:
      return mix.base;
  }
  const bool is_medium = name == "q4_k_m" || name == "q5_k_m";
  return is_medium && gets_more_bits(place.layer, layers) ? DType::kQ6_K : mix.base;
}

/// Of blocks of 32, with about as many bits.
DType smaller_blocks(DType dtype) {
  switch (dtype) {
    case DType::kIQ4_XS:
      return DType::kIQ4_NL;
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kTQ1_0:
    case DType::kTQ2_0:
      return DType::kQ4_0;
    case DType::kQ4_K:
      return DType::kQ5_0;
    case DType::kQ5_K:
      return DType::kQ5_1;
    default:
      return DType::kQ8_0;
  }
}

}  // namespace

std::vector<std::string> quantization_mixes() {
  std::vector<std::string> names;
  for (const Mix& mix : kMixes) names.emplace_back(mix.name);
  return names;
}

std::string mix_problem(std::string_view name) {
  std::string known;
  for (const Mix& mix : kMixes) {
    if (mix.name == name) return {};
    known += fmt::format("{}{}", known.empty() ? "" : ", ", mix.name);
  }
  for (const std::string_view prefix : {"iq1_", "iq2_", "iq3_"}) {
    if (!name.starts_with(prefix)) continue;
    return fmt::format(
        "files of {} can be read, not made: so few bits are worth having only with an importance "
        "matrix, which quantize does not take; expected one of {}",
        name, known);
  }
  return fmt::format("there is no mix of formats called '{}'; expected one of {}", name, known);
}

DType mixed_dtype(std::string_view name, std::string_view tensor, std::int64_t columns,
                  const ModelConfig& config) {
  const auto mix = std::find_if(kMixes.begin(), kMixes.end(), [&](const Mix& m) { return m.name == name; });
  if (mix == kMixes.end()) throw Error(ErrorCode::kInvalidArgument, mix_problem(name));
  DType dtype = wanted_dtype(*mix, place_of(tensor), config);
  if (block_format(dtype).elements == 256 && columns % 256 != 0) dtype = smaller_blocks(dtype);
  return columns % block_format(dtype).elements == 0 ? dtype : DType::kF16;
}

}  // namespace tessera
