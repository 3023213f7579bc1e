#pragma once

#include "model/checkpoint/json_fields.h"
#include "model/config.h"

namespace tessera {

/// What Gemma 4's config.json says beside what other architectures' do: sizes of layers that see all tokens,
/// layers that share keys and values, embeddings of layers. Numbers alone, of which RoPE's settings need the
/// first. `has_layer_embeddings`: of a file that says nothing, which the unified models' don't.
void parse_hf_gemma4(const JsonFields& fields, bool has_layer_embeddings, ModelConfig& config);

/// Whether per_layer_config, where transformers writes the sizes of layers that see all tokens, has just
/// these. Throws Error{kUnsupported} for sizes that other layers have.
void check_hf_gemma4_layers(const JsonFields& fields, const ModelConfig& config);

}  // namespace tessera
