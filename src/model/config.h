#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/rope.h"

namespace tessera {

/// Model families whose layers differ in more than sizes.
enum class Architecture { kLlama, kMistral, kQwen2, kQwen3, kPhi3 };

/// "llama", "mistral", "qwen2", "qwen3", "phi3".
std::string_view architecture_name(Architecture architecture) noexcept;

enum class Activation { kSilu, kGelu, kGeluTanh };

/// Everything about a decoder-only transformer that its weights' values don't say.
/// Filled by the loaders, which check that every number is in range and that the tensors' shapes agree.
struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  ///< width of the MLP
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float rms_norm_eps = 1e-5f;
  Activation activation = Activation::kSilu;
  RopeConfig rope;
  std::int64_t max_seq_len = 0;                 ///< context length in tokens
  std::optional<std::int64_t> sliding_window;   ///< keys a query sees, itself included; none: all before it
  std::vector<bool> layer_uses_sliding_window;  ///< (num_layers); empty: all layers alike
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;            ///< RMSNorm over head_dim of each query and key head before RoPE
  bool fused_projections = false;  ///< q, k and v are one tensor in checkpoints, and so are gate and up
  bool tied_embeddings = false;
  std::optional<std::int32_t> bos_token_id;
  std::vector<std::int32_t> eos_token_ids;  ///< generation ends at any of these
};

/// What all models of an architecture have in common: where loaders begin.
ModelConfig architecture_config(Architecture architecture);

/// Checks every number against the range that any real model stays in (num_layers up to 10,000, hidden_size
/// up to 2^20, ...) and the numbers against each other, so that code behind it multiplies and allocates
/// safely. Throws Error{kCorruptFile} naming `source`, the field, its value and what was expected.
void validate(const ModelConfig& config, const std::string& source);

}  // namespace tessera
