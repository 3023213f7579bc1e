#pragma once

#include "model/checkpoint/json_fields.h"
#include "model/config.h"

namespace tessera {

/// What config.json says of layers without attention.
enum class RecurrentKeys {
  kNone,      ///< nothing: all layers have attention
  kLfm2,      ///< conv_L_cache, conv_bias, layer_types or full_attn_idxs; block_ff_dim and what adjusts it
  kLfm2Moe,   ///< likewise, but of the MLP's width
  kQwenNext,  ///< linear_num_key_heads and the like, layer_types or full_attention_interval
};

/// Sizes of an architecture's layers without attention; of LFM2 the MLP's, too, whose file has another.
void parse_hf_recurrent(const JsonFields& fields, RecurrentKeys keys, ModelConfig& config);

/// Sets which layers have attention, of a configuration whose number of layers was checked.
void parse_hf_attention_layers(const JsonFields& fields, RecurrentKeys keys, ModelConfig& config);

}  // namespace tessera
