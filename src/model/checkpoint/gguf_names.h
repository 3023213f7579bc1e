#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config.h"

namespace tessera {

/// The architecture that a GGUF file calls by `name`, none if that is not one of those supported.
std::optional<Architecture> gguf_architecture(std::string_view name) noexcept;

/// All such names, for messages.
std::string gguf_architecture_names();

/// What GGUF files call an architecture; Mistral's files are llama's. Empty: there are none of it.
std::string_view gguf_architecture_name(Architecture architecture) noexcept;

/// Which elements RoPE pairs in GGUF files of an architecture. Where it is kInterleaved and a folder's
/// aren't, the rows of q and k are permuted so that pairs lie side by side.
RopePairing gguf_rope_pairing(Architecture architecture) noexcept;

constexpr bool is_gemma(Architecture architecture) noexcept {
  return architecture == Architecture::kGemma || architecture == Architecture::kGemma2 ||
         architecture == Architecture::kGemma3;
}

/// Whose files have multipliers by the keys of Granite's.
constexpr bool is_granite(Architecture architecture) noexcept {
  return architecture == Architecture::kGranite || architecture == Architecture::kGraniteMoe;
}

/// What files of an architecture whose layers may be mixtures of experts say, and what those mean that don't.
struct GgufMixtureTraits {
  bool normalized = true;  ///< of files that don't say
  ExpertScoring scoring = ExpertScoring::kSoftmax;
  bool has_shared_count = false;  ///< experts that all tokens share, each as wide as the others
  bool has_shared_size = false;   ///< the width of all of them
  bool has_dense_layers = false;  ///< layers before the first with experts
  bool has_interval = false;      ///< and experts in every so many-th only
  bool has_scores = false;        ///< how experts are scored, and the scale of weights
};
GgufMixtureTraits gguf_mixture_traits(Architecture architecture) noexcept;

/// Layers from `num_dense` on, of them each `interval`-th of all.
std::vector<bool> gguf_expert_layers(int num_layers, std::int64_t num_dense, std::int64_t interval);

/// By what scores of Gemma 2 and 3 are multiplied, which their files don't say: readers know it of the size
/// with so many layers that it is another than of all others.
float gguf_gemma_softmax_scale(const ModelConfig& config) noexcept;
/// Files of an architecture whose layers slide but every so many-th may leave that out. 0: in its files all
/// layers slide, or none.
std::int64_t gguf_full_interval(Architecture architecture) noexcept;
/// The softcaps of files of Gemma 2 that don't say.
inline constexpr float kGgufGemma2AttentionSoftcap = 50, kGgufGemma2LogitsSoftcap = 30;
inline constexpr std::int64_t kGgufGemma2Window = 4096;

/// YaRN's own factor of cos and sin, 0.1 ln(factor) + 1, on top of which comes what a GGUF file says. It is
/// divided by 0.1 log_multiplier ln(factor) + 1.
float gguf_yarn_attention_factor(float factor, float log_multiplier = 0) noexcept;

/// The name in Checkpoint's terms of a tensor of a GGUF file; its own for one that is no weight.
std::string gguf_checkpoint_name(std::string_view name, Architecture architecture);

/// The name in a GGUF file of a tensor of Checkpoint's name.
std::string gguf_tensor_name(std::string_view name, Architecture architecture);

/// Divisors of RoPE's frequencies, (rotary_dim / 2).
inline constexpr const char* kGgufRopeDivisors = "rope_freqs.weight";
/// That of pairs that Gemma 4 doesn't turn, and what readers take for one.
inline constexpr float kGgufStillDivisor = 1e30f, kGgufLeastStillDivisor = 1e20f;
/// LongRoPE's two lists.
inline constexpr const char* kGgufLongRopeDivisors = "rope_factors_long.weight";
inline constexpr const char* kGgufShortRopeDivisors = "rope_factors_short.weight";

/// Keys of a GGUF file's metadata.
namespace gguf_keys {

inline constexpr const char* kArchitecture = "general.architecture";
inline constexpr const char* kType = "general.type";
inline constexpr const char* kName = "general.name";
inline constexpr const char* kFileType = "general.file_type";
inline constexpr const char* kQuantizationVersion = "general.quantization_version";
inline constexpr const char* kAlignment = "general.alignment";

// Behind the architecture's name and a dot.
inline constexpr const char* kVocabSize = "vocab_size";
inline constexpr const char* kContextLength = "context_length";
inline constexpr const char* kEmbeddingLength = "embedding_length";
inline constexpr const char* kFeedForwardLength = "feed_forward_length";
inline constexpr const char* kExpertCount = "expert_count";
inline constexpr const char* kExpertUsedCount = "expert_used_count";
inline constexpr const char* kExpertFeedForwardLength = "expert_feed_forward_length";
inline constexpr const char* kExpertWeightsNorm = "expert_weights_norm";
inline constexpr const char* kExpertWeightsScale = "expert_weights_scale";
/// kGatingSoftmax, kGatingSigmoid or kGatingSoftmaxOfChosen.
inline constexpr const char* kExpertGating = "expert_gating_func";
inline constexpr std::int64_t kGatingSoftmax = 1, kGatingSigmoid = 2, kGatingSoftmaxOfChosen = 3;
inline constexpr const char* kExpertGroupCount = "expert_group_count";
inline constexpr const char* kExpertGroupUsedCount = "expert_group_used_count";
inline constexpr const char* kExpertSharedCount = "expert_shared_count";
inline constexpr const char* kExpertSharedFeedForwardLength = "expert_shared_feed_forward_length";
inline constexpr const char* kLeadingDenseBlockCount = "leading_dense_block_count";
inline constexpr const char* kMoeLayerStep = "interleave_moe_layer_step";
inline constexpr const char* kNextnPredictLayers =
    "nextn_predict_layers";  ///< of kBlockCount, behind the model's own
inline constexpr const char* kBlockCount = "block_count";
inline constexpr const char* kHeadCount = "attention.head_count";
inline constexpr const char* kHeadCountKv = "attention.head_count_kv";
inline constexpr const char* kKeyLength = "attention.key_length";
inline constexpr const char* kValueLength = "attention.value_length";
inline constexpr const char* kKeyLengthSliding = "attention.key_length_swa";  ///< of layers that slide
inline constexpr const char* kValueLengthSliding = "attention.value_length_swa";
inline constexpr const char* kSharedKvLayers = "attention.shared_kv_layers";
inline constexpr const char* kLayerEmbeddingLength = "embedding_length_per_layer_input";
inline constexpr const char* kKeyLengthMla = "attention.key_length_mla";  ///< of a head of queries
inline constexpr const char* kValueLengthMla = "attention.value_length_mla";
inline constexpr const char* kQueryRank = "attention.q_lora_rank";
inline constexpr const char* kKeyValueRank = "attention.kv_lora_rank";
inline constexpr const char* kRmsEpsilon = "attention.layer_norm_rms_epsilon";
inline constexpr const char* kLayerNormEpsilon = "attention.layer_norm_epsilon";
inline constexpr const char* kSlidingWindow = "attention.sliding_window";
inline constexpr const char* kSlidingPattern = "attention.sliding_window_pattern";
inline constexpr const char* kSlidingRopeBase = "rope.freq_base_swa";
inline constexpr const char* kSlidingRopeDimension = "rope.dimension_count_swa";
inline constexpr const char* kAttentionSoftcap = "attn_logit_softcapping";
inline constexpr const char* kFinalSoftcap = "final_logit_softcapping";
/// OLMo's clip_qkv.
inline constexpr const char* kClampQkv = "attention.clamp_kqv";
inline constexpr const char* kSoftmaxScale = "attention.scale";
inline constexpr const char* kEmbeddingScale = "embedding_scale";
inline constexpr const char* kResidualScale = "residual_scale";
inline constexpr const char* kLogitScale =
    "logit_scale";  ///< what logits are multiplied by; of Granite and MiniCPM divided
/// Beta of the scaling of queries, of contexts as long as kRopeOriginalLength.
inline constexpr const char* kQueryScale = "attention.temperature_scale";
inline constexpr const char* kConvLength = "shortconv.l_cache";
// Of linear attention: taps, the sizes of heads, numbers of heads of keys and of values, all values' size.
inline constexpr const char* kDeltaTaps = "ssm.conv_kernel";
inline constexpr const char* kDeltaKeyDim = "ssm.state_size";
inline constexpr const char* kDeltaKeyHeads = "ssm.group_count";
inline constexpr const char* kDeltaValueHeads = "ssm.time_step_rank";
inline constexpr const char* kDeltaValues = "ssm.inner_size";
inline constexpr const char* kFullAttentionInterval = "full_attention_interval";
inline constexpr const char* kRecurrentLayers = "attention.recurrent_layers";
inline constexpr const char* kRopeSections = "rope.dimension_sections";  ///< of positions in images
inline constexpr const char* kRopeBase = "rope.freq_base";
inline constexpr const char* kParallelResidual = "use_parallel_residual";
inline constexpr const char* kRopeDimension = "rope.dimension_count";
inline constexpr const char* kRopeScaling = "rope.scaling.type";
inline constexpr const char* kRopeFactor = "rope.scaling.factor";
inline constexpr const char* kRopeAttentionFactor = "rope.scaling.attn_factor";
inline constexpr const char* kRopeOriginalLength = "rope.scaling.original_context_length";
inline constexpr const char* kYarnLogMultiplier = "rope.scaling.yarn_log_multiplier";
inline constexpr const char* kYarnBetaFast = "rope.scaling.yarn_beta_fast";
inline constexpr const char* kYarnBetaSlow = "rope.scaling.yarn_beta_slow";

inline constexpr const char* kTokenizerModel = "tokenizer.ggml.model";
inline constexpr const char* kTokenizerPre = "tokenizer.ggml.pre";
inline constexpr const char* kTokens = "tokenizer.ggml.tokens";
inline constexpr const char* kScores = "tokenizer.ggml.scores";
inline constexpr const char* kTokenTypes = "tokenizer.ggml.token_type";
inline constexpr const char* kMerges = "tokenizer.ggml.merges";
inline constexpr const char* kBosToken = "tokenizer.ggml.bos_token_id";
inline constexpr const char* kEosToken = "tokenizer.ggml.eos_token_id";
inline constexpr const char* kEotToken = "tokenizer.ggml.eot_token_id";
inline constexpr const char* kEomToken = "tokenizer.ggml.eom_token_id";
inline constexpr const char* kUnknownToken = "tokenizer.ggml.unknown_token_id";
inline constexpr const char* kPaddingToken = "tokenizer.ggml.padding_token_id";
inline constexpr const char* kAddBosToken = "tokenizer.ggml.add_bos_token";
inline constexpr const char* kAddEosToken = "tokenizer.ggml.add_eos_token";
inline constexpr const char* kAddSpacePrefix = "tokenizer.ggml.add_space_prefix";
/// Special tokens by the names that chat templates and tokenizer_config.json know them by.
inline constexpr std::array<std::pair<const char*, const char*>, 4> kSpecialTokens = {{
    {"bos_token", kBosToken},
    {"eos_token", kEosToken},
    {"unk_token", kUnknownToken},
    {"pad_token", kPaddingToken},
}};
/// A whole tokenizer.json, which then counts.
inline constexpr const char* kHuggingFaceTokenizer = "tokenizer.huggingface.json";
inline constexpr const char* kChatTemplate = "tokenizer.chat_template";  ///< with ".NAME" one that has a name
inline constexpr const char* kChatTemplates = "tokenizer.chat_templates";  ///< names of the others

}  // namespace gguf_keys

}  // namespace tessera
