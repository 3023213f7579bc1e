#pragma once

#include "model/checkpoint/hf_architectures.h"
#include "model/checkpoint/json_fields.h"
#include "model/config.h"

namespace tessera {

/// What a config.json says of its mixture of experts, of a class that may have one, in numbers alone: which
/// layers have experts depends on how many there are, which nobody has looked at yet. `config` has the sizes
/// of layers.
MixtureConfig parse_hf_mixture(const JsonFields& fields, const ModelConfig& config,
                               const HfArchitecture& defaults);

/// Sets which layers have experts; where none has, the model is one without a mixture.
void parse_hf_expert_layers(const JsonFields& fields, ModelConfig& config, const HfArchitecture& defaults);

}  // namespace tessera
