#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "model/checkpoint/hf_experts.h"
#include "model/checkpoint/hf_recurrent.h"
#include "model/checkpoint/hf_rope.h"
#include "model/checkpoint/json_fields.h"
#include "model/config.h"

namespace tessera {

/// Where config.json says which linear layers have a bias.
enum class BiasKeys {
  kNone,             ///< nowhere: none has
  kAttention,        ///< attention_bias: q, k, v and o
  kAttentionAndMlp,  ///< and mlp_bias: gate, up and down
  kOnlyQkv,          ///< nowhere: q, k and v have
  kQkv,              ///< attention_bias, true where left out: q, k and v
  kEachPart,         ///< likewise, and attention_out_bias: o, and mlp_bias
  kQkvAndMlp,        ///< attention_bias: q, k and v; mlp_bias: gate, up and down
  kInternLm,         ///< qkv_bias; bias: the others; or by transformers' usual names
  kAll,              ///< use_bias
  kAllUnlessSaid,    ///< use_bias, true where left out
  kAlways,           ///< nowhere: all have
  kUseQkv,           ///< use_qkv_bias: q, k and v
  kAlwaysMlp,        ///< attention_bias, true where left out: q, k, v and o; gate, up and down always
  kUnlessSaid,       ///< attention_bias, true where left out: q, k, v and o
  kQkvIfAsked,       ///< attention_bias: q, k and v
  kQkvOfQwen,        ///< qkv_bias, true where left out: q, k and v
};

/// Where it says which layers slide.
enum class WindowKeys {
  kNone,         ///< nowhere: none does
  kAllLayers,    ///< all do if sliding_window is set
  kAllIfAsked,   ///< likewise, and if use_sliding_window says so
  kLayerTypes,   ///< likewise, or those that layer_types names
  kWithoutRope,  ///< if use_sliding_window says so, those that layer_types names, or that have no RoPE
  kAllBut,       ///< those that layer_types names, or all but every full_interval-th
  kPattern,      ///< likewise, but of sliding_window_pattern, where it is there, instead of full_interval
  kFromLayer,    ///< those from max_window_layers on or that layer_types names
  kQwen,         ///< if use_sliding_window says so, those from max_window_layers on or that layer_types names
};

inline constexpr std::int64_t kMiniMaxM2HeadDim = 128;

/// A class of transformers: what it takes for a key that config.json leaves out, and which keys it reads.
struct HfArchitecture {
  std::string_view class_name;
  std::string_view model_type;
  const char* text_model_type = nullptr;  // of what takes images, too: that of text_config, the part for text
  Architecture architecture;
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  std::int64_t num_kv_heads = 0;  // 0: as many as query heads
  std::int64_t head_dim = 0;      // 0: hidden_size / num_heads
  int num_layers = 32;
  int num_heads = 32;
  const char* norm_eps_key = "rms_norm_eps";
  float norm_eps = 1e-6f;
  std::int64_t max_seq_len = 2048;
  std::optional<std::int32_t> bos_token_id = 1, eos_token_id = 2;
  std::array<std::int32_t, 2> more_eos_token_ids = {-1, -1};  // -1: none
  BiasKeys biases = BiasKeys::kNone;
  WindowKeys windows = WindowKeys::kNone;
  std::optional<std::int64_t> sliding_window = 4096;
  std::int64_t full_interval = 0;
  bool tied_embeddings = false;
  HfExpertTraits experts = {};
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool is_gemma = false;  // norms of weights with 1 added, embeddings times the root of their length
  std::optional<float> attention_softcap = {}, logits_softcap = {};  // of files that leave them out
  bool has_depth_scales = false;  // MiniCPM's names and definitions of those of has_multipliers
  const char* intermediate_size_key = "intermediate_size";
  bool has_multipliers = false;  // of embeddings, scores, what is added to the residual stream, and logits
  std::optional<float> logit_scale = {};  // what logits are multiplied by, of files that leave it out
  std::optional<LatentAttentionConfig> latent = {};  // of files that leave its sizes out
  std::optional<bool> parallel_residual =
      {};                               ///< use_parallel_residual of files that leave it out; none: no key
  const char* head_norm_key = nullptr;  ///< that says whether each head of q and k has a LayerNorm
  bool has_no_rope_layers = false;
  bool has_layer_embeddings = false;   // Gemma 4's
  bool turns_where_it_slides = false;  // where sliding_window is set, layers that see all have no RoPE
  RecurrentKeys recurrent = RecurrentKeys::kNone;
  HfRopeTraits rope = {};
};

/// The one that config.json's `architectures` or, without it, `model_type` names. Throws Error{kUnsupported}
/// with the names of all that there are.
const HfArchitecture& find_hf_architecture(const JsonFields& fields);

/// config.json, with what a model of more than text has in its text_config beside the rest.
struct HfDocument {
  nlohmann::json settings;
  const HfArchitecture& architecture;
};

/// Throws as find_hf_architecture() does, and Error{kCorruptFile} naming `source` for what is no JSON.
HfDocument parse_hf_document(std::string_view config_json, const std::string& source);

}  // namespace tessera
