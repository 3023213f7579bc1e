#pragma once

#include <cstdint>

#include "model/checkpoint/json_fields.h"
#include "model/config.h"

namespace tessera {

/// What config.json says of mixtures of experts.
enum class ExpertKeys {
  kNone,
  kMixtral,    ///< all layers, of intermediate_size
  kOlmo,       ///< likewise, norm_topk_prob
  kGptOss,     ///< as kMixtral, with biases
  kGranite,    ///< as kMixtral, and shared_intermediate_size
  kQwen,       ///< decoder_sparse_step, mlp_only_layers, moe_intermediate_size, norm_topk_prob
  kQwenVl,     ///< likewise, always as if norm_topk_prob were set, outputs in columns
  kQwen2,      ///< likewise, and shared_expert_intermediate_size
  kGlm,        ///< first_k_dense_replace, n_routed_experts, n_shared_experts, n_group, routed_scaling_factor
  kDeepSeek2,  ///< likewise, of softmax, with topk_method
  kMiniMax,    ///< as kMixtral, of sigmoid scores with a bias each
  kExaone,     ///< as kGlm, num_experts, num_shared_experts
  kHunYuan,    ///< as kMixtral, moe_topk, a shared expert as wide as the others
  kQwen35,     ///< all layers, moe_intermediate_size, shared_expert_intermediate_size
  kLfm2,       ///< those from num_dense_layers on, use_expert_bias, norm_topk_prob, routed_scaling_factor
  kGemma4,     ///< enable_moe_block: all layers, of num_experts, top_k_experts, moe_intermediate_size
  kErnie,      ///< moe_layer_start_index, moe_num_experts, moe_k, moe_num_shared_experts
};

/// Which of them an architecture has, and its defaults.
struct HfExpertTraits {
  ExpertKeys keys = ExpertKeys::kNone;
  int num_experts = 0, num_experts_per_token = 0;
  std::int64_t intermediate_size = 0;         // moe_intermediate_size
  std::int64_t shared_intermediate_size = 0;  // of all experts that tokens share together
  int num_shared_experts = 0;                 // as wide as the others; what files say instead
  int num_dense_layers = 0;                   // before the first with experts
  int num_groups = 1, num_groups_per_token = 1;
  float weight_scale = 1;
  bool normalized = false;  // norm_topk_prob
};

/// What a config.json says of its mixture of experts, of an architecture that may have one, in numbers alone:
/// which layers have experts depends on how many there are, which nobody has looked at yet. `config` has the
/// sizes of layers.
MixtureConfig parse_hf_mixture(const JsonFields& fields, const ModelConfig& config,
                               const HfExpertTraits& traits);

/// Sets which layers have experts; where none has, the model is one without a mixture.
void parse_hf_expert_layers(const JsonFields& fields, ModelConfig& config, const HfExpertTraits& traits);

}  // namespace tessera
