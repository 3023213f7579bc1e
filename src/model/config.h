#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/arguments.h"
#include "ops/rope.h"

namespace tessera {

/// Model families whose layers differ in more than sizes.
enum class Architecture {
  kLlama,
  kMistral,
  kMinistral3,
  kQwen2,
  kQwen3,
  kPhi3,
  kSmolLm3,
  kGranite,
  kMiniCpm,
  kOlmo,
  kOlmo2,
  kExaone,
  kExaone4,
  kGlm,
  kGlm4,
  kSeedOss,
  kErnie45,
  kHunYuanDense,
  kCohere,
  kCohere2,
  kGemma,
  kGemma2,
  kGemma3,
  kGemma4,
  kQwen3Moe,
  kMixtral,
  kGptOss,
  kOlmoe,
  kFlexOlmo,
  kGraniteMoe,
  kQwen2Moe,
  kGlm4Moe,
  kErnie45Moe,
  kDots1,
  kDeepSeek,
  kMiniMaxM2,
  kExaoneMoe,
  kHunYuanMoe,
  kStarcoder2,
  kPhi,
  kGptNeoX,
  kStableLm,
  kNemotron,
  kArcee,
  kLfm2,
  kLfm2Moe,
  kQwen3Next,
  kQwen35,
  kQwen35Moe
};

/// "llama", "mistral", "qwen2": the lower-case names without what parts them.
std::string_view architecture_name(Architecture architecture) noexcept;

enum class Activation {
  kSilu,
  kGelu,
  kGeluTanh,
  kClampedSilu,  ///< gpt-oss's (GatedActivation::kClampedSwiGlu)
  kReluSquared,
};

/// Layers whose MLP is many, the experts, of which a router picks some for each token.
struct MixtureConfig {
  int num_experts = 0;
  int num_experts_per_token = 0;
  std::int64_t intermediate_size = 0;  ///< width of each expert
  ExpertScoring scoring = ExpertScoring::kSoftmax;
  bool normalized = true;   ///< the weights of a token's experts, its scores, are divided by their sum
  float weight_scale = 1;   ///< and then multiplied by this
  bool score_bias = false;  ///< numbers that scores are added to where experts are picked
  int num_groups = 1;       ///< of experts, of which a token's experts come from
  int num_groups_per_token = 1;
  int num_experts_of_group = 2;               ///< whose scores together are a group's: 1 or 2
  std::int64_t shared_intermediate_size = 0;  ///< width of the expert that all tokens share; 0: there is none
  bool shared_gate = false;                   ///< what it gives is multiplied by a sigmoid of its own
  bool router_bias = false;
  bool expert_bias = false;  ///< of gate, up and down
  /// Gemma 4's: the layer has an MLP, too. The router, the MLP and the experts read the residual stream each
  /// through a norm of its own, and what the latter two give is normed before it is added up.
  bool beside_mlp = false;
  bool expert_scales = false;  ///< numbers that the weights of experts are multiplied by

  friend bool operator==(const MixtureConfig&, const MixtureConfig&) = default;
};

/// Multi-head latent attention, DeepSeek-AI, "DeepSeek-V2" (2024): all heads' keys and values are products of
/// one short row a token, the latent, which alone is kept, beside a part that RoPE turns. The products are
/// taken into those of queries and of outputs: a score is that of the latent and of a query of its length.
/// num_kv_heads is 1, head_dim that of a row of the cache, kv_rank + rope_dim, whose first kv_rank numbers
/// are the values, too.
struct LatentAttentionConfig {
  int q_rank = 0;   ///< of the row that queries are products of; 0: they are made of the hidden row
  int kv_rank = 0;  ///< of the latent
  int nope_dim = 0, rope_dim = 0;  ///< of a head of queries: what RoPE leaves alone, and what it turns
  int value_dim = 0;               ///< of what a head gives

  int query_dim() const { return nope_dim + rope_dim; }
  friend bool operator==(const LatentAttentionConfig&, const LatentAttentionConfig&) = default;
};
/// Of the norms of latents, whatever that of the others is.
inline constexpr float kLatentNormEps = 1e-6f;

/// Of layers that mix their tokens by a short convolution between two gates instead of by attention.  Liquid
/// AI, "LFM2 Technical Report" (2025).
struct ShortConvConfig {
  int taps = 0;       ///< tokens that a channel sees, its own included
  bool bias = false;  ///< of all three: both products and the convolution

  friend bool operator==(const ShortConvConfig&, const ShortConvConfig&) = default;
};

/// Of layers that mix their tokens by the gated delta rule (GatedDeltaArguments) instead of by attention,
/// behind a short convolution of queries, keys and values.
struct GatedDeltaConfig {
  int num_key_heads = 0, num_value_heads = 0;  ///< the latter a multiple of the former
  bool takes_turns = false;                    ///< as GatedDeltaArguments have it
  int key_dim = 0, value_dim = 0;              ///< of a head
  int taps = 0;                                ///< of the convolution

  std::int64_t key_columns() const { return std::int64_t{num_key_heads} * key_dim; }
  std::int64_t value_columns() const { return std::int64_t{num_value_heads} * value_dim; }
  /// Queries, keys and values.
  std::int64_t conv_columns() const { return 2 * key_columns() + value_columns(); }
  friend bool operator==(const GatedDeltaConfig&, const GatedDeltaConfig&) = default;
};

/// Attention in layers that see all tokens, where those that slide have heads of other sizes.
struct FullAttentionConfig {
  int num_kv_heads = 0;
  int head_dim = 0;
  bool keys_as_values = false;  ///< values are the keys before norm and RoPE, by no matrix of their own

  friend bool operator==(const FullAttentionConfig&, const FullAttentionConfig&) = default;
};

/// How activations are normed.
enum class NormKind { kRms, kLayer };

/// Norms of queries and keys.
enum class QkNorm {
  kNone,
  kEachHead,     ///< RMSNorm over head_dim of each head, all with the same weights
  kAllHeads,     ///< RMSNorm over all of a token's heads
  kOwnEachHead,  ///< LayerNorm over head_dim of each head, each with weights of its own
};

/// Queries beyond the context that a model was first trained on are longer: at position p they are multiplied
/// by 1 + beta ln(1 + floor(p / original_max_seq_len)).
struct QueryScaling {
  float beta = 0;
  std::int64_t original_max_seq_len = 0;
};
float query_scale(const QueryScaling& scaling, std::int64_t position) noexcept;

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
  std::optional<LatentAttentionConfig> latent;
  std::optional<FullAttentionConfig> full_attention;  ///< none: as num_kv_heads and head_dim say
  /// The last so many layers make no keys and values: each reads those of the last layer before them that
  /// slides, or doesn't, as it does.
  int num_shared_kv_layers = 0;
  std::int64_t shared_kv_intermediate_size = 0;  ///< width of the MLP of these layers; 0: intermediate_size
  /// A token's embeddings of each layer, of this width: they are multiplied by what a gate makes of the
  /// residual stream behind the layer's MLP, and the product of that is added to it. 0: there are none.
  std::int64_t layer_embedding_size = 0;
  bool layer_scales = false;  ///< the residual stream is multiplied by a number behind each layer
  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-5f;
  Activation activation = Activation::kSilu;
  RopeConfig rope;
  std::optional<RopeConfig> sliding_rope;       ///< of the layers that slide; none: `rope`
  std::int64_t max_seq_len = 0;                 ///< context length in tokens
  std::optional<std::int64_t> sliding_window;   ///< keys a query sees, itself included; none: all before it
  std::vector<bool> layer_uses_sliding_window;  ///< (num_layers); empty: all layers alike
  std::vector<bool> layer_uses_rope;            ///< (num_layers); empty: all do
  std::optional<QueryScaling> query_scaling;
  std::optional<float> softmax_scale;      ///< what scores are multiplied by; none: 1 / sqrt(head_dim)
  std::optional<float> attention_softcap;  ///< scores s become cap tanh(s / cap) before the softmax
  float embedding_scale = 1;               ///< what embeddings are multiplied by
  bool rounds_embedding_scale = false;     ///< to the type of activations
  float residual_scale = 1;                ///< what attention and MLP give is multiplied by
  float logits_scale = 1;                  ///< what logits are multiplied by
  std::optional<float> logits_softcap;     ///< logits x then become cap tanh(x / cap)
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool norm_bias = false;    ///< of all norms but those of heads
  bool norm_weights = true;  ///< likewise; without them they are as if all were 1
  bool head_bias = false;    ///< of the output head
  QkNorm qk_norm = QkNorm::kNone;
  bool qk_norm_after_rope = false;       ///< of each head; else before
  bool v_norm = false;                   ///< RMSNorm of each head of values, without weights
  float norm_offset = 0;                 ///< what is added to weights of norms as the checkpoint has them
  bool parallel_blocks = false;          ///< the MLP reads what attention reads; what both give is added
  bool parallel_norms = false;           ///< where blocks are parallel, the MLP's norm is one of its own
  bool norms_before = true;              ///< of what attention and MLP read
  bool norms_after = false;              ///< of what they give, before it is added to the residual stream
  bool gated_mlp = true;                 ///< activation(gate) times up; else activation(up)
  bool fused_qkv = false;                ///< q, k and v are one tensor in checkpoints
  bool fused_gate_up = false;            ///< and so are gate and up
  bool transposed_experts = false;       ///< folders have experts' matrices with a column for each output
  std::optional<MixtureConfig> mixture;  ///< none: no layer has experts
  std::vector<bool> layer_has_experts;   ///< (num_layers); empty: all do, if there is a mixture
  bool attention_sinks = false;          ///< a logit for each head that takes part in softmax
  bool attention_gate = false;  ///< what heads give is multiplied by the sigmoid of a product of its own
  /// At most one of these: what layers without attention have.
  std::optional<ShortConvConfig> short_conv;
  std::optional<GatedDeltaConfig> gated_delta;
  std::vector<bool> layer_has_attention;  ///< (num_layers), of one at least; empty: all do
  bool tied_embeddings = false;
  std::optional<std::int32_t> bos_token_id;
  std::vector<std::int32_t> eos_token_ids;  ///< generation ends at any of these
};

/// Whether models of an architecture may be mixtures of experts.
bool may_have_experts(Architecture architecture) noexcept;

/// Whose layers mostly have linear attention, a gated delta net.
constexpr bool has_gated_delta(Architecture architecture) noexcept {
  return architecture == Architecture::kQwen3Next || architecture == Architecture::kQwen35 ||
         architecture == Architecture::kQwen35Moe;
}
/// Whose layers mostly have a short convolution.
constexpr bool has_short_conv(Architecture architecture) noexcept {
  return architecture == Architecture::kLfm2 || architecture == Architecture::kLfm2Moe;
}

/// What all models of an architecture have in common: where loaders begin.
ModelConfig architecture_config(Architecture architecture);

/// Whether a layer's queries see only sliding_window keys.
inline bool slides(const ModelConfig& config, int layer) {
  const std::vector<bool>& layers = config.layer_uses_sliding_window;
  return config.sliding_window && (layers.empty() || layers[static_cast<std::size_t>(layer)]);
}

/// Sizes of a layer's keys and values.
struct KvSizes {
  int num_kv_heads = 0;
  int head_dim = 0;

  friend bool operator==(const KvSizes&, const KvSizes&) = default;
};
inline KvSizes kv_sizes(const ModelConfig& config, int layer) {
  if (!config.full_attention || slides(config, layer)) return {config.num_kv_heads, config.head_dim};
  return {config.full_attention->num_kv_heads, config.full_attention->head_dim};
}

/// Of a head of layers that see all tokens.
inline int full_head_dim(const ModelConfig& config) {
  return config.full_attention ? config.full_attention->head_dim : config.head_dim;
}

/// Whether a layer has no matrix that makes values.
inline bool has_keys_as_values(const ModelConfig& config, int layer) {
  return config.full_attention && config.full_attention->keys_as_values && !slides(config, layer);
}

/// The layer whose keys and values a layer reads: itself, unless it is one of those that share.
int kv_layer(const ModelConfig& config, int layer);

/// Width of the MLP of a layer, whether or not it has experts instead.
inline std::int64_t intermediate_size(const ModelConfig& config, int layer) {
  const bool shares_kv = layer >= config.num_layers - config.num_shared_kv_layers;
  return shares_kv && config.shared_kv_intermediate_size > 0 ? config.shared_kv_intermediate_size
                                                             : config.intermediate_size;
}

/// Whether a layer's MLP is a mixture of experts.
inline bool has_experts(const ModelConfig& config, int layer) {
  const std::vector<bool>& layers = config.layer_has_experts;
  return config.mixture && (layers.empty() || layers[static_cast<std::size_t>(layer)]);
}

/// Whether a layer mixes its tokens by attention; else it carries a state along.
inline bool has_attention(const ModelConfig& config, int layer) {
  const std::vector<bool>& layers = config.layer_has_attention;
  return layers.empty() || layers[static_cast<std::size_t>(layer)];
}

/// Numbers of fp32 that a layer without attention keeps of a sequence.
struct RecurrentStateSize {
  std::int64_t conv = 0;    ///< rows of its convolution
  std::int64_t matrix = 0;  ///< of all heads
};
/// Zeros where all layers have attention.
RecurrentStateSize recurrent_state_size(const ModelConfig& config);

/// Sets the window of the layers that `layers` names, (num_layers).
void set_sliding_window(ModelConfig& config, std::int64_t window, std::vector<bool> layers);

/// All layers but every `interval`-th, as those of SmolLM3 with RoPE for 4 and those of Gemma 3 that slide
/// for 6.
std::vector<bool> all_but_every(int num_layers, std::int64_t interval);
inline constexpr std::int64_t kNoRopeInterval = 4, kOlmo3FullInterval = 4, kExaone4FullInterval = 4,
                              kCohere2FullInterval = 4, kGemma2FullInterval = 2, kGemma3FullInterval = 6,
                              kGemma4FullInterval = 6, kGptOssFullInterval = 2;
/// Of the experts of any real model.
inline constexpr int kMostExperts = 4096;
/// Gemma 3's RoPE base in layers that slide.
inline constexpr float kGemma3SlidingTheta = 10000;  // Gemma 4's, too
inline constexpr float kGemma4Theta = 1e6;

/// Checks every number against the range that any real model stays in (num_layers up to 10,000, hidden_size
/// up to 2^20, ...) and the numbers against each other, so that code behind it multiplies and allocates
/// safely. Throws Error{kCorruptFile} naming `source`, the field, its value and what was expected.
void validate(const ModelConfig& config, const std::string& source);

}  // namespace tessera
