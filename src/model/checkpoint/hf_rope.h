#pragma once

#include <cstdint>
#include <optional>

#include "model/checkpoint/json_fields.h"
#include "model/config.h"

namespace tessera {

/// What an architecture's class in transformers makes of RoPE's settings.
struct HfRopeTraits {
  float theta = 10000;                      ///< of files that don't say
  std::optional<float> sliding_theta = {};  ///< that of layers that slide, if they have settings of their own
  const char* sliding_theta_key = "rope_local_base_freq";  ///< where files say; null: nowhere
  RopePairing pairing = RopePairing::kHalves;
  bool partial = false;              ///< whether partial_rotary_factor counts
  double partial_factor = 1;         ///< that of files that don't say
  bool has_image_positions = false;  ///< "mrope" is a type, which texts see nothing of
  bool has_ntk_alpha = false;        ///< "dynamic" with alpha is a base stretched once for all positions
  bool only_longrope = false;        ///< of scalings it has LongRoPE alone, by all of its names
  std::optional<std::int64_t> original_max_seq_len = {};  ///< of files that don't say outside rope_scaling
};

/// transformers 5 keeps everything in rope_parameters; 4 has rope_theta and rope_scaling beside each other.
/// As there, rope_scaling comes before rope_parameters and what the object holds comes before the fields
/// around it.
RopeConfig parse_hf_rope(const JsonFields& fields, const ModelConfig& config, const HfRopeTraits& traits);

/// What RoPE's settings say of the lengths of queries (llama_4_scaling_beta), none if nothing.
std::optional<QueryScaling> parse_hf_query_scaling(const JsonFields& fields);

/// Of an architecture whose layers that slide have RoPE settings of their own: rope_parameters has both as
/// objects, or the settings around them are rope_theta, rope_scaling and sliding_theta_key. Sets
/// config.rope and config.sliding_rope.
void parse_hf_sliding_rope(const JsonFields& fields, ModelConfig& config, const HfRopeTraits& traits);

}  // namespace tessera
