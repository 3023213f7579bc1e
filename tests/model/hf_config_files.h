#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/checkpoint/hf_config.h"

namespace tessera::testing_files {

using nlohmann::json;

inline ModelConfig parse(const json& config, const json& generation = nullptr) {
  return parse_hf_config(config.dump(), "config.json", generation.is_null() ? "" : generation.dump(),
                         "generation_config.json");
}

/// `config` with some of its fields replaced or added.
inline json with(json config, const json& fields) {
  config.update(fields);
  return config;
}

// As transformers 4 writes it.
inline const json kLlama = json::parse(R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0",
  "use_cache": true, "vocab_size": 128256})");

/// A file that leaves out all that it can.
inline json minimal(const char* architecture) {
  return {{"architectures", {architecture}}, {"num_hidden_layers", 4}};
}

}  // namespace tessera::testing_files
