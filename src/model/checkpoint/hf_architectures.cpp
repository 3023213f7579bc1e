#include "model/checkpoint/hf_architectures.h"

#include <fmt/core.h>

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/json_parse.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr HfArchitecture kMistralClass = {.class_name = "MistralForCausalLM",
                                          .model_type = "mistral",
                                          .architecture = Architecture::kMistral,
                                          .intermediate_size = 14336,
                                          .num_kv_heads = 8,
                                          .max_seq_len = 131072,
                                          .windows = WindowKeys::kLayerTypes};

/// What transformers calls a Mistral whose file has layer_types.
constexpr HfArchitecture ministral_class() {
  HfArchitecture ministral = kMistralClass;
  ministral.class_name = "MinistralForCausalLM";
  ministral.model_type = "ministral";
  return ministral;
}

constexpr HfArchitecture kMinistral3Class = {.class_name = "Ministral3ForCausalLM",
                                             .model_type = "ministral3",
                                             .architecture = Architecture::kMinistral3,
                                             .vocab_size = 131072,
                                             .intermediate_size = 14336,
                                             .num_kv_heads = 8,
                                             .head_dim = 128,
                                             .num_layers = 34,
                                             .norm_eps = 1e-5f,
                                             .max_seq_len = 262144,
                                             .windows = WindowKeys::kAllLayers,
                                             .sliding_window = std::nullopt};

constexpr HfArchitecture kGemmaClass = {.class_name = "GemmaForCausalLM",
                                        .model_type = "gemma",
                                        .architecture = Architecture::kGemma,
                                        .vocab_size = 256000,
                                        .hidden_size = 3072,
                                        .intermediate_size = 24576,
                                        .num_kv_heads = 16,
                                        .head_dim = 256,
                                        .num_layers = 28,
                                        .num_heads = 16,
                                        .max_seq_len = 8192,
                                        .bos_token_id = 2,
                                        .eos_token_id = 1,
                                        .biases = BiasKeys::kAttention,
                                        .tied_embeddings = true,
                                        .activation = "gelu_pytorch_tanh",
                                        .is_gemma = true};

constexpr HfArchitecture kGemma2Class = {.class_name = "Gemma2ForCausalLM",
                                         .model_type = "gemma2",
                                         .architecture = Architecture::kGemma2,
                                         .vocab_size = 256000,
                                         .hidden_size = 2304,
                                         .intermediate_size = 9216,
                                         .num_kv_heads = 4,
                                         .head_dim = 256,
                                         .num_layers = 26,
                                         .num_heads = 8,
                                         .max_seq_len = 8192,
                                         .bos_token_id = 2,
                                         .eos_token_id = 1,
                                         .biases = BiasKeys::kAttention,
                                         .windows = WindowKeys::kAllBut,
                                         .full_interval = kGemma2FullInterval,
                                         .tied_embeddings = true,
                                         .activation_key = "hidden_activation",
                                         .activation = "gelu_pytorch_tanh",
                                         .is_gemma = true,
                                         .attention_softcap = 50.0f,
                                         .logits_softcap = 30.0f};

constexpr HfArchitecture kGlm4Class = {
    .class_name = "Glm4ForCausalLM",
    .model_type = "glm4",
    .architecture = Architecture::kGlm4,
    .vocab_size = 151552,
    .intermediate_size = 13696,
    .num_kv_heads = 2,
    .head_dim = 128,
    .num_layers = 40,
    .norm_eps = 1.5625e-7f,
    .max_seq_len = 131072,
    .bos_token_id = std::nullopt,
    .eos_token_id = 151329,
    .more_eos_token_ids = {151336, 151338},
    .biases = BiasKeys::kQkv,
    .rope = {.pairing = RopePairing::kInterleaved, .partial = true, .partial_factor = 0.5}};

/// What came before, without norms behind attention and MLP.
constexpr HfArchitecture glm_class() {
  HfArchitecture glm = kGlm4Class;
  glm.class_name = "GlmForCausalLM";
  glm.model_type = "glm";
  glm.architecture = Architecture::kGlm;
  return glm;
}

constexpr HfArchitecture kCohereClass = {.class_name = "CohereForCausalLM",
                                         .model_type = "cohere",
                                         .architecture = Architecture::kCohere,
                                         .vocab_size = 256000,
                                         .hidden_size = 8192,
                                         .intermediate_size = 22528,
                                         .num_layers = 40,
                                         .num_heads = 64,
                                         .norm_eps_key = "layer_norm_eps",
                                         .norm_eps = 1e-5f,
                                         .max_seq_len = 8192,
                                         .bos_token_id = 5,
                                         .eos_token_id = 255001,
                                         .biases = BiasKeys::kAttention,
                                         .tied_embeddings = true,
                                         .logit_scale = 0.0625f,
                                         .head_norm_key = "use_qk_norm",
                                         .rope = {.theta = 500000, .pairing = RopePairing::kInterleaved}};

/// Command R7B and the like, three of four of whose layers slide, those alone with RoPE.
constexpr HfArchitecture cohere2_class() {
  HfArchitecture cohere2 = kCohereClass;
  cohere2.class_name = "Cohere2ForCausalLM";
  cohere2.model_type = "cohere2";
  cohere2.architecture = Architecture::kCohere2;
  cohere2.windows = WindowKeys::kPattern;
  cohere2.full_interval = kCohere2FullInterval;
  cohere2.turns_where_it_slides = true;
  cohere2.head_norm_key = nullptr;
  cohere2.rope.theta = 10000;
  return cohere2;
}

/// What takes images, too, of which the part for text is a Mistral or a Ministral 3.
constexpr HfArchitecture mistral3_class(const HfArchitecture& text) {
  HfArchitecture mistral3 = text;
  mistral3.class_name = "Mistral3ForConditionalGeneration";
  mistral3.model_type = "mistral3";
  mistral3.text_model_type = text.model_type.data();
  return mistral3;
}

/// What takes images, too, of which the part for text is a Qwen 2. Its RoPE turns some pairs by the rows and
/// columns of images, which a text's tokens have equal to their positions.
constexpr HfArchitecture qwen2_vl_class(std::string_view class_name, std::string_view model_type,
                                        const char* text_model_type) {
  return {.class_name = class_name,
          .model_type = model_type,
          .text_model_type = text_model_type,
          .architecture = Architecture::kQwen2,
          .vocab_size = 152064,
          .hidden_size = 8192,
          .intermediate_size = 29568,
          .num_kv_heads = 8,
          .num_layers = 80,
          .num_heads = 64,
          .norm_eps = 1e-5f,
          .max_seq_len = 32768,
          .bos_token_id = 151643,
          .eos_token_id = 151645,
          .biases = BiasKeys::kOnlyQkv,
          .windows = WindowKeys::kQwen,
          .rope = {.theta = 1000000, .has_image_positions = true}};
}

/// Of text, or what takes images, too, whose text_config describes the part for text.
constexpr HfArchitecture gemma3_class(std::string_view class_name, std::string_view model_type) {
  return {.class_name = class_name,
          .model_type = model_type,
          .text_model_type = "gemma3_text",
          .architecture = Architecture::kGemma3,
          .vocab_size = 262208,
          .hidden_size = 2304,
          .intermediate_size = 9216,
          .num_kv_heads = 4,
          .head_dim = 256,
          .num_layers = 26,
          .num_heads = 8,
          .max_seq_len = 131072,
          .bos_token_id = 2,
          .eos_token_id = 1,
          .biases = BiasKeys::kAttention,
          .windows = WindowKeys::kPattern,
          .full_interval = kGemma3FullInterval,
          .tied_embeddings = true,
          .activation_key = "hidden_activation",
          .activation = "gelu_pytorch_tanh",
          .is_gemma = true,
          .rope = {.theta = 1000000, .sliding_theta = kGemma3SlidingTheta}};
}

/// Likewise, of the models with towers for images and sound, and of those without.
constexpr HfArchitecture gemma4_class(std::string_view class_name, std::string_view model_type,
                                      bool is_unified) {
  return {
      .class_name = class_name,
      .model_type = model_type,
      .text_model_type = is_unified ? "gemma4_unified_text" : "gemma4_text",
      .architecture = Architecture::kGemma4,
      .vocab_size = 262144,
      .hidden_size = 2304,
      .intermediate_size = 9216,
      .num_kv_heads = 4,
      .head_dim = 256,
      .num_layers = 30,
      .num_heads = 8,
      .max_seq_len = is_unified ? 262144 : 131072,
      .bos_token_id = 2,
      .eos_token_id = 1,
      .biases = BiasKeys::kAttention,
      .windows = WindowKeys::kAllBut,
      .sliding_window = is_unified ? 1024 : 512,
      .full_interval = kGemma4FullInterval,
      .tied_embeddings = true,
      .experts = {.keys = is_unified ? ExpertKeys::kNone : ExpertKeys::kGemma4},
      .activation_key = "hidden_activation",
      .activation = "gelu_pytorch_tanh",
      .has_layer_embeddings = !is_unified,
      .rope = {.theta = kGemma4Theta, .sliding_theta = kGemma3SlidingTheta, .sliding_theta_key = nullptr}};
}

constexpr LatentAttentionConfig kDeepSeekLatent = {
    .q_rank = 1536, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};

/// K-EXAONE, whose published files have another spelling of the class than transformers.
constexpr HfArchitecture exaone_moe_class(std::string_view class_name) {
  return {.class_name = class_name,
          .model_type = "exaone_moe",
          .architecture = Architecture::kExaoneMoe,
          .vocab_size = 102400,
          .intermediate_size = 16384,
          .num_kv_heads = 32,
          .norm_eps = 1e-5f,
          .eos_token_id = 53,
          .windows = WindowKeys::kPattern,
          .full_interval = kExaone4FullInterval,
          .experts = {.keys = ExpertKeys::kExaone,
                      .num_experts = 64,
                      .num_experts_per_token = 8,
                      .intermediate_size = 1024,
                      .num_shared_experts = 1,
                      .num_dense_layers = 1,
                      .weight_scale = 2.5f,
                      .normalized = true},
          .turns_where_it_slides = true};
}

/// Without an expert that all tokens share, or with one.
constexpr HfArchitecture granite_moe_class(std::string_view class_name, std::string_view model_type,
                                           ExpertKeys keys) {
  return {.class_name = class_name,
          .model_type = model_type,
          .architecture = Architecture::kGraniteMoe,
          .biases = BiasKeys::kAttention,
          .experts = {.keys = keys, .num_experts = 8, .num_experts_per_token = 2},
          .has_multipliers = true};
}

/// Of text, or what takes images, too.
constexpr HfArchitecture lfm2_class(std::string_view class_name, std::string_view model_type,
                                    const char* text_model_type) {
  return {.class_name = class_name,
          .model_type = model_type,
          .text_model_type = text_model_type,
          .architecture = Architecture::kLfm2,
          .vocab_size = 65536,
          .hidden_size = 2560,
          .intermediate_size = 12288,
          .num_kv_heads = 8,
          .norm_eps_key = "norm_eps",
          .norm_eps = 1e-5f,
          .max_seq_len = 128000,
          .tied_embeddings = true,
          .recurrent = RecurrentKeys::kLfm2,
          .rope = {.theta = 1000000}};
}

constexpr HfArchitecture kQwen35Class = {
    .class_name = "Qwen3_5ForCausalLM",
    .model_type = "qwen3_5_text",
    .architecture = Architecture::kQwen35,
    .vocab_size = 248320,
    .intermediate_size = 12288,
    .num_kv_heads = 4,
    .head_dim = 256,
    .num_heads = 16,
    .max_seq_len = 32768,
    .bos_token_id = std::nullopt,
    .eos_token_id = std::nullopt,
    .biases = BiasKeys::kAttention,
    .recurrent = RecurrentKeys::kQwenNext,
    .rope = {.partial = true, .partial_factor = 0.25, .has_image_positions = true}};

constexpr HfArchitecture qwen35_moe_class() {
  HfArchitecture mixture = kQwen35Class;
  mixture.class_name = "Qwen3_5MoeForCausalLM";
  mixture.model_type = "qwen3_5_moe_text";
  mixture.architecture = Architecture::kQwen35Moe;
  mixture.hidden_size = 2048;
  mixture.num_kv_heads = 2;
  mixture.num_layers = 40;
  mixture.experts = {.keys = ExpertKeys::kQwen35,
                     .num_experts = 256,
                     .num_experts_per_token = 8,
                     .intermediate_size = 512,
                     .shared_intermediate_size = 512};
  return mixture;
}

constexpr HfArchitecture qwen3_next_class() {
  HfArchitecture next = qwen35_moe_class();
  next.class_name = "Qwen3NextForCausalLM";
  next.model_type = "qwen3_next";
  next.architecture = Architecture::kQwen3Next;
  next.vocab_size = 151936;
  next.intermediate_size = 5632;
  next.num_layers = 48;
  next.experts.keys = ExpertKeys::kQwen2;
  next.experts.num_experts = 512;
  next.experts.num_experts_per_token = 10;
  next.experts.normalized = true;
  next.rope.has_image_positions = false;
  return next;
}

/// What takes images, too, with a part for text.
constexpr HfArchitecture with_images(HfArchitecture text, std::string_view class_name,
                                     std::string_view model_type) {
  text.text_model_type = text.model_type.data();
  text.class_name = class_name;
  text.model_type = model_type;
  return text;
}

constexpr std::array kArchitectures = {
    HfArchitecture{.class_name = "LlamaForCausalLM",
                   .model_type = "llama",
                   .architecture = Architecture::kLlama,
                   .biases = BiasKeys::kAttentionAndMlp},
    kMistralClass,
    ministral_class(),
    kMinistral3Class,
    mistral3_class(kMistralClass),
    mistral3_class(kMinistral3Class),
    qwen2_vl_class("Qwen2VLForConditionalGeneration", "qwen2_vl", "qwen2_vl_text"),
    qwen2_vl_class("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "qwen2_5_vl_text"),
    HfArchitecture{.class_name = "Qwen3VLForConditionalGeneration",
                   .model_type = "qwen3_vl",
                   .text_model_type = "qwen3_vl_text",
                   .architecture = Architecture::kQwen3,
                   .vocab_size = 151936,
                   .intermediate_size = 22016,
                   .num_kv_heads = 32,
                   .head_dim = 128,
                   .max_seq_len = 128000,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = std::nullopt,
                   .biases = BiasKeys::kAttention,
                   .rope = {.theta = 500000, .has_image_positions = true}},
    HfArchitecture{.class_name = "Qwen2ForCausalLM",
                   .model_type = "qwen2",
                   .architecture = Architecture::kQwen2,
                   .vocab_size = 151936,
                   .intermediate_size = 22016,
                   .num_kv_heads = 32,
                   .max_seq_len = 32768,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = std::nullopt,
                   .biases = BiasKeys::kOnlyQkv,
                   .windows = WindowKeys::kQwen},
    HfArchitecture{.class_name = "Qwen3ForCausalLM",
                   .model_type = "qwen3",
                   .architecture = Architecture::kQwen3,
                   .vocab_size = 151936,
                   .intermediate_size = 22016,
                   .num_kv_heads = 32,
                   .head_dim = 128,
                   .max_seq_len = 32768,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = std::nullopt,
                   .biases = BiasKeys::kAttention,
                   .windows = WindowKeys::kQwen},
    HfArchitecture{.class_name = "Qwen3MoeForCausalLM",
                   .model_type = "qwen3_moe",
                   .architecture = Architecture::kQwen3Moe,
                   .vocab_size = 151936,
                   .hidden_size = 2048,
                   .intermediate_size = 6144,
                   .num_kv_heads = 4,
                   .num_layers = 24,
                   .max_seq_len = 32768,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = std::nullopt,
                   .biases = BiasKeys::kAttention,
                   .windows = WindowKeys::kAllIfAsked,
                   .experts = {.keys = ExpertKeys::kQwen,
                               .num_experts = 128,
                               .num_experts_per_token = 8,
                               .intermediate_size = 768}},
    HfArchitecture{.class_name = "Qwen3VLMoeForConditionalGeneration",
                   .model_type = "qwen3_vl_moe",
                   .text_model_type = "qwen3_vl_moe_text",
                   .architecture = Architecture::kQwen3Moe,
                   .vocab_size = 151936,
                   .hidden_size = 2048,
                   .intermediate_size = 5632,
                   .num_kv_heads = 16,
                   .num_layers = 24,
                   .num_heads = 16,
                   .max_seq_len = 128000,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = std::nullopt,
                   .biases = BiasKeys::kAttention,
                   .experts = {.keys = ExpertKeys::kQwenVl,
                               .num_experts = 60,
                               .num_experts_per_token = 4,
                               .intermediate_size = 1408},
                   .rope = {.theta = 500000, .has_image_positions = true}},
    HfArchitecture{.class_name = "Qwen2MoeForCausalLM",
                   .model_type = "qwen2_moe",
                   .architecture = Architecture::kQwen2Moe,
                   .vocab_size = 151936,
                   .hidden_size = 2048,
                   .intermediate_size = 5632,
                   .num_kv_heads = 16,
                   .num_layers = 24,
                   .num_heads = 16,
                   .max_seq_len = 32768,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = std::nullopt,
                   .biases = BiasKeys::kQkvOfQwen,
                   .experts = {.keys = ExpertKeys::kQwen2,
                               .num_experts = 60,
                               .num_experts_per_token = 4,
                               .intermediate_size = 1408,
                               .shared_intermediate_size = 5632}},
    HfArchitecture{.class_name = "MixtralForCausalLM",
                   .model_type = "mixtral",
                   .architecture = Architecture::kMixtral,
                   .intermediate_size = 14336,
                   .num_kv_heads = 8,
                   .norm_eps = 1e-5f,
                   .max_seq_len = 131072,
                   .windows = WindowKeys::kAllLayers,
                   .sliding_window = std::nullopt,
                   .experts = {.keys = ExpertKeys::kMixtral, .num_experts = 8, .num_experts_per_token = 2},
                   .rope = {.theta = 1000000}},
    HfArchitecture{.class_name = "GptOssForCausalLM",
                   .model_type = "gpt_oss",
                   .architecture = Architecture::kGptOss,
                   .vocab_size = 201088,
                   .hidden_size = 2880,
                   .intermediate_size = 2880,
                   .num_kv_heads = 8,
                   .head_dim = 64,
                   .num_layers = 36,
                   .num_heads = 64,
                   .norm_eps = 1e-5f,
                   .max_seq_len = 131072,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = std::nullopt,
                   .biases = BiasKeys::kUnlessSaid,
                   .windows = WindowKeys::kAllBut,
                   .sliding_window = 128,
                   .full_interval = kGptOssFullInterval,
                   .experts = {.keys = ExpertKeys::kGptOss, .num_experts = 128, .num_experts_per_token = 4},
                   .rope = {.theta = 150000}},
    HfArchitecture{.class_name = "OlmoeForCausalLM",
                   .model_type = "olmoe",
                   .architecture = Architecture::kOlmoe,
                   .vocab_size = 50304,
                   .hidden_size = 2048,
                   .intermediate_size = 2048,
                   .num_layers = 16,
                   .num_heads = 16,
                   .norm_eps = 1e-5f,
                   .max_seq_len = 4096,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = 50279,
                   .biases = BiasKeys::kAttention,
                   .experts = {.keys = ExpertKeys::kOlmo, .num_experts = 64, .num_experts_per_token = 8}},
    HfArchitecture{.class_name = "FlexOlmoForCausalLM",
                   .model_type = "flex_olmo",
                   .architecture = Architecture::kFlexOlmo,
                   .vocab_size = 100352,
                   .max_seq_len = 4096,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = 100257,
                   .biases = BiasKeys::kAttention,
                   .experts = {.keys = ExpertKeys::kOlmo, .num_experts = 7, .num_experts_per_token = 5},
                   .rope = {.theta = 500000}},
    granite_moe_class("GraniteMoeForCausalLM", "granitemoe", ExpertKeys::kMixtral),
    granite_moe_class("GraniteMoeSharedForCausalLM", "granitemoeshared", ExpertKeys::kGranite),
    HfArchitecture{.class_name = "Phi3ForCausalLM",
                   .model_type = "phi3",
                   .architecture = Architecture::kPhi3,
                   .vocab_size = 32064,
                   .hidden_size = 3072,
                   .intermediate_size = 8192,
                   .norm_eps = 1e-5f,
                   .max_seq_len = 4096,
                   .eos_token_id = 32000,
                   .windows = WindowKeys::kAllLayers,
                   .sliding_window = std::nullopt,
                   .rope = {.partial = true, .only_longrope = true, .original_max_seq_len = 4096}},
    HfArchitecture{.class_name = "SmolLM3ForCausalLM",
                   .model_type = "smollm3",
                   .architecture = Architecture::kSmolLm3,
                   .vocab_size = 128256,
                   .hidden_size = 2048,
                   .num_kv_heads = 4,
                   .num_layers = 36,
                   .num_heads = 16,
                   .max_seq_len = 32768,
                   .bos_token_id = 128000,
                   .eos_token_id = 128001,
                   .biases = BiasKeys::kAttentionAndMlp,
                   .windows = WindowKeys::kWithoutRope,
                   .sliding_window = std::nullopt,
                   .tied_embeddings = true,
                   .has_no_rope_layers = true,
                   .rope = {.theta = 2000000}},
    HfArchitecture{.class_name = "GraniteForCausalLM",
                   .model_type = "granite",
                   .architecture = Architecture::kGranite,
                   .biases = BiasKeys::kAttentionAndMlp,
                   .has_multipliers = true},
    HfArchitecture{.class_name = "GraniteMoeHybridForCausalLM",
                   .model_type = "granitemoehybrid",
                   .architecture = Architecture::kGranite,
                   .intermediate_size = 1024,
                   .biases = BiasKeys::kAttention,
                   .intermediate_size_key = "shared_intermediate_size",
                   .has_multipliers = true},
    HfArchitecture{.class_name = "MiniCPMForCausalLM",
                   .model_type = "minicpm",
                   .architecture = Architecture::kMiniCpm,
                   .biases = BiasKeys::kAttention,
                   .tied_embeddings = true,
                   .has_depth_scales = true},
    HfArchitecture{.class_name = "OlmoForCausalLM",
                   .model_type = "olmo",
                   .architecture = Architecture::kOlmo,
                   .vocab_size = 50304,
                   .norm_eps_key = "",  // which files can't change
                   .norm_eps = 1e-5f,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = 50279,
                   .biases = BiasKeys::kAttention},
    HfArchitecture{.class_name = "Olmo2ForCausalLM",
                   .model_type = "olmo2",
                   .architecture = Architecture::kOlmo2,
                   .vocab_size = 50304,
                   .norm_eps = 1e-5f,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = 50279,
                   .biases = BiasKeys::kAttention},
    HfArchitecture{.class_name = "Olmo3ForCausalLM",
                   .model_type = "olmo3",
                   .architecture = Architecture::kOlmo2,
                   .vocab_size = 50304,
                   .norm_eps = 1e-5f,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = 50279,
                   .biases = BiasKeys::kAttention,
                   .windows = WindowKeys::kAllBut,
                   .full_interval = kOlmo3FullInterval,
                   .rope = {.theta = 500000, .sliding_theta = 500000, .sliding_theta_key = nullptr}},
    HfArchitecture{.class_name = "InternLM3ForCausalLM",
                   .model_type = "internlm3",
                   .architecture = Architecture::kLlama,
                   .vocab_size = 128512,
                   .intermediate_size = 10240,
                   .num_kv_heads = 2,
                   .head_dim = 128,
                   .num_layers = 48,
                   .norm_eps = 1e-5f,
                   .max_seq_len = 32768,
                   .biases = BiasKeys::kInternLm},
    HfArchitecture{.class_name = "HeliumForCausalLM",
                   .model_type = "helium",
                   .architecture = Architecture::kLlama,
                   .vocab_size = 48000,
                   .hidden_size = 2560,
                   .intermediate_size = 7040,
                   .num_kv_heads = 20,
                   .head_dim = 128,
                   .num_layers = 24,
                   .num_heads = 20,
                   .norm_eps = 1e-8f,
                   .max_seq_len = 4096,
                   .biases = BiasKeys::kQkvAndMlp,
                   .rope = {.theta = 100000, .pairing = RopePairing::kInterleaved}},
    HfArchitecture{.class_name = "ExaoneForCausalLM",
                   .model_type = "exaone",
                   .architecture = Architecture::kExaone,
                   .vocab_size = 102400,
                   .intermediate_size = 14336,
                   .num_kv_heads = 8,
                   .norm_eps = 1e-5f,
                   .max_seq_len = 4096,
                   .eos_token_id = 361,
                   .biases = BiasKeys::kAttentionAndMlp,
                   .rope = {.theta = 500000}},
    HfArchitecture{.class_name = "Exaone4ForCausalLM",
                   .model_type = "exaone4",
                   .architecture = Architecture::kExaone4,
                   .vocab_size = 102400,
                   .intermediate_size = 16384,
                   .num_kv_heads = 32,
                   .norm_eps = 1e-5f,
                   .bos_token_id = 0,
                   .windows = WindowKeys::kPattern,
                   .full_interval = kExaone4FullInterval,
                   .turns_where_it_slides = true},
    kGlm4Class,
    glm_class(),
    HfArchitecture{.class_name = "Glm4MoeForCausalLM",
                   .model_type = "glm4_moe",
                   .architecture = Architecture::kGlm4Moe,
                   .vocab_size = 151552,
                   .intermediate_size = 10944,
                   .num_kv_heads = 8,
                   .num_layers = 46,
                   .num_heads = 96,
                   .norm_eps = 1e-5f,
                   .max_seq_len = 131072,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = std::nullopt,
                   .biases = BiasKeys::kQkvIfAsked,
                   .experts = {.keys = ExpertKeys::kGlm,
                               .num_experts = 128,
                               .num_experts_per_token = 8,
                               .intermediate_size = 1408,
                               .num_shared_experts = 1,
                               .num_dense_layers = 1,
                               .normalized = true},
                   .rope = {.partial = true, .partial_factor = 0.5}},
    HfArchitecture{.class_name = "DeepseekV2ForCausalLM",
                   .model_type = "deepseek_v2",
                   .architecture = Architecture::kDeepSeek,
                   .vocab_size = 102400,
                   .experts = {.keys = ExpertKeys::kDeepSeek2,
                               .num_experts = 64,
                               .intermediate_size = 1407,
                               .num_shared_experts = 2},
                   .latent = kDeepSeekLatent,
                   .rope = {.pairing = RopePairing::kInterleaved}},
    HfArchitecture{.class_name = "DeepseekV3ForCausalLM",
                   .model_type = "deepseek_v3",
                   .architecture = Architecture::kDeepSeek,
                   .vocab_size = 129280,
                   .hidden_size = 7168,
                   .intermediate_size = 18432,
                   .num_layers = 61,
                   .num_heads = 128,
                   .max_seq_len = 4096,
                   .bos_token_id = 0,
                   .eos_token_id = 1,
                   .experts = {.keys = ExpertKeys::kGlm,
                               .num_experts = 256,
                               .num_experts_per_token = 8,
                               .intermediate_size = 2048,
                               .num_shared_experts = 1,
                               .num_dense_layers = 3,
                               .num_groups = 8,
                               .num_groups_per_token = 4,
                               .weight_scale = 2.5f,
                               .normalized = true},
                   .latent = kDeepSeekLatent,
                   .rope = {.pairing = RopePairing::kInterleaved}},
    HfArchitecture{.class_name = "Glm4MoeLiteForCausalLM",
                   .model_type = "glm4_moe_lite",
                   .architecture = Architecture::kDeepSeek,
                   .vocab_size = 154880,
                   .hidden_size = 2048,
                   .intermediate_size = 10240,
                   .num_layers = 47,
                   .num_heads = 20,
                   .norm_eps = 1e-5f,
                   .max_seq_len = 202752,
                   .bos_token_id = 0,
                   .eos_token_id = 1,
                   .experts = {.keys = ExpertKeys::kGlm,
                               .num_experts = 64,
                               .num_experts_per_token = 4,
                               .intermediate_size = 1536,
                               .num_shared_experts = 1,
                               .num_dense_layers = 1,
                               .weight_scale = 1.8f,
                               .normalized = true},
                   .latent =
                       LatentAttentionConfig{
                           .q_rank = 768, .kv_rank = 512, .nope_dim = 192, .rope_dim = 64, .value_dim = 256},
                   .rope = {.pairing = RopePairing::kInterleaved}},
    HfArchitecture{.class_name = "Dots1ForCausalLM",
                   .model_type = "dots1",
                   .architecture = Architecture::kDots1,
                   .vocab_size = 152064,
                   .hidden_size = 4608,
                   .intermediate_size = 10944,
                   .num_kv_heads = 32,
                   .num_layers = 62,
                   .bos_token_id = std::nullopt,
                   .eos_token_id = std::nullopt,
                   .biases = BiasKeys::kAttention,
                   .windows = WindowKeys::kFromLayer,
                   .experts = {.keys = ExpertKeys::kGlm, .intermediate_size = 1408}},
    HfArchitecture{.class_name = "MiniMaxM2ForCausalLM",
                   .model_type = "minimax_m2",
                   .architecture = Architecture::kMiniMaxM2,
                   .vocab_size = 200064,
                   .hidden_size = 3072,
                   .intermediate_size = 1536,
                   .num_kv_heads = 8,
                   .head_dim = kMiniMaxM2HeadDim,
                   .num_layers = 62,
                   .num_heads = 48,
                   .max_seq_len = 196608,
                   .bos_token_id = 200034,
                   .eos_token_id = 200020,
                   .experts = {.keys = ExpertKeys::kMiniMax, .num_experts = 256, .num_experts_per_token = 8},
                   .rope = {.theta = 5000000, .partial = true}},
    exaone_moe_class("ExaoneMoeForCausalLM"),
    exaone_moe_class("ExaoneMoEForCausalLM"),
    HfArchitecture{.class_name = "HunYuanMoEV1ForCausalLM",
                   .model_type = "hunyuan_v1_moe",
                   .architecture = Architecture::kHunYuanMoe,
                   .vocab_size = 290943,
                   .norm_eps = 1e-5f,
                   .biases = BiasKeys::kAttention,
                   .experts = {.keys = ExpertKeys::kHunYuan, .num_experts = 1, .num_experts_per_token = 1},
                   .rope = {.has_ntk_alpha = true}},
    HfArchitecture{.class_name = "SeedOssForCausalLM",
                   .model_type = "seed_oss",
                   .architecture = Architecture::kSeedOss,
                   .vocab_size = 155136,
                   .intermediate_size = 27648,
                   .num_kv_heads = 8,
                   .head_dim = 128,
                   .num_layers = 64,
                   .num_heads = 80,
                   .max_seq_len = 524288,
                   .bos_token_id = 0,
                   .biases = BiasKeys::kEachPart},
    HfArchitecture{.class_name = "Ernie4_5ForCausalLM",
                   .model_type = "ernie4_5",
                   .architecture = Architecture::kErnie45,
                   .vocab_size = 103424,
                   .hidden_size = 1024,
                   .intermediate_size = 3072,
                   .num_kv_heads = 2,
                   .head_dim = 128,
                   .num_layers = 18,
                   .num_heads = 16,
                   .norm_eps = 1e-5f,
                   .max_seq_len = 131072,
                   .biases = BiasKeys::kAll,
                   .tied_embeddings = true,
                   .rope = {.theta = 500000, .pairing = RopePairing::kInterleaved}},
    HfArchitecture{.class_name = "Ernie4_5_MoeForCausalLM",
                   .model_type = "ernie4_5_moe",
                   .architecture = Architecture::kErnie45Moe,
                   .vocab_size = 103424,
                   .hidden_size = 2560,
                   .intermediate_size = 12288,
                   .num_kv_heads = 4,
                   .num_layers = 28,
                   .num_heads = 20,
                   .norm_eps = 1e-5f,
                   .max_seq_len = 131072,
                   .tied_embeddings = true,
                   .experts = {.keys = ExpertKeys::kErnie,
                               .num_experts = 64,
                               .num_experts_per_token = 6,
                               .intermediate_size = 1536,
                               .num_shared_experts = 2,
                               .num_dense_layers = 1},
                   .rope = {.theta = 500000, .pairing = RopePairing::kInterleaved}},
    HfArchitecture{.class_name = "HunYuanDenseV1ForCausalLM",
                   .model_type = "hunyuan_v1_dense",
                   .architecture = Architecture::kHunYuanDense,
                   .vocab_size = 290943,
                   .norm_eps = 1e-5f,
                   .biases = BiasKeys::kAttention,
                   .rope = {.has_ntk_alpha = true}},
    kCohereClass,
    cohere2_class(),
    HfArchitecture{.class_name = "Starcoder2ForCausalLM",
                   .model_type = "starcoder2",
                   .architecture = Architecture::kStarcoder2,
                   .vocab_size = 49152,
                   .hidden_size = 3072,
                   .intermediate_size = 12288,
                   .num_kv_heads = 2,
                   .num_layers = 30,
                   .num_heads = 24,
                   .norm_eps_key = "norm_epsilon",
                   .norm_eps = 1e-5f,
                   .max_seq_len = 4096,
                   .bos_token_id = 50256,
                   .eos_token_id = 50256,
                   .biases = BiasKeys::kAllUnlessSaid,
                   .windows = WindowKeys::kAllLayers,
                   .sliding_window = std::nullopt,
                   .tied_embeddings = true,
                   .activation = "gelu_pytorch_tanh"},
    HfArchitecture{.class_name = "PhiForCausalLM",
                   .model_type = "phi",
                   .architecture = Architecture::kPhi,
                   .vocab_size = 51200,
                   .hidden_size = 2048,
                   .intermediate_size = 8192,
                   .num_layers = 24,
                   .norm_eps_key = "layer_norm_eps",
                   .norm_eps = 1e-5f,
                   .biases = BiasKeys::kAlways,
                   .activation = "gelu_new",
                   .rope = {.partial = true, .partial_factor = 0.5}},
    HfArchitecture{.class_name = "GPTNeoXForCausalLM",
                   .model_type = "gpt_neox",
                   .architecture = Architecture::kGptNeoX,
                   .vocab_size = 50432,
                   .hidden_size = 6144,
                   .intermediate_size = 24576,
                   .num_layers = 44,
                   .num_heads = 64,
                   .norm_eps_key = "layer_norm_eps",
                   .norm_eps = 1e-5f,
                   .bos_token_id = 0,
                   .biases = BiasKeys::kAlwaysMlp,
                   .activation = "gelu",
                   .parallel_residual = true,
                   .rope = {.partial = true, .partial_factor = 0.25}},
    HfArchitecture{.class_name = "StableLmForCausalLM",
                   .model_type = "stablelm",
                   .architecture = Architecture::kStableLm,
                   .vocab_size = 50304,
                   .hidden_size = 2560,
                   .intermediate_size = 6912,
                   .num_kv_heads = 32,
                   .norm_eps_key = "layer_norm_eps",
                   .norm_eps = 1e-5f,
                   .max_seq_len = 4096,
                   .bos_token_id = 0,
                   .eos_token_id = 0,
                   .biases = BiasKeys::kUseQkv,
                   .parallel_residual = false,
                   .head_norm_key = "qk_layernorm",
                   .rope = {.partial = true, .partial_factor = 0.25}},
    HfArchitecture{.class_name = "NemotronForCausalLM",
                   .model_type = "nemotron",
                   .architecture = Architecture::kNemotron,
                   .vocab_size = 256000,
                   .hidden_size = 6144,
                   .intermediate_size = 24576,
                   .num_heads = 48,
                   .norm_eps_key = "norm_eps",
                   .norm_eps = 1e-5f,
                   .max_seq_len = 4096,
                   .bos_token_id = 2,
                   .eos_token_id = 3,
                   .biases = BiasKeys::kAttentionAndMlp,
                   .activation = "relu2",
                   .rope = {.partial = true, .partial_factor = 0.5}},
    HfArchitecture{.class_name = "ArceeForCausalLM",
                   .model_type = "arcee",
                   .architecture = Architecture::kArcee,
                   .hidden_size = 2560,
                   .intermediate_size = 18432,
                   .norm_eps = 1e-5f,
                   .max_seq_len = 4096,
                   .bos_token_id = 128000,
                   .eos_token_id = 128001,
                   .biases = BiasKeys::kAttentionAndMlp,
                   .activation = "relu2"},
    kGemmaClass,
    kGemma2Class,
    gemma3_class("Gemma3ForCausalLM", "gemma3_text"),
    gemma3_class("Gemma3ForConditionalGeneration", "gemma3"),
    lfm2_class("Lfm2ForCausalLM", "lfm2", nullptr),
    lfm2_class("Lfm2VlForConditionalGeneration", "lfm2_vl", "lfm2"),
    HfArchitecture{.class_name = "Lfm2MoeForCausalLM",
                   .model_type = "lfm2_moe",
                   .architecture = Architecture::kLfm2Moe,
                   .vocab_size = 65536,
                   .hidden_size = 2048,
                   .intermediate_size = 7168,
                   .num_kv_heads = 8,
                   .norm_eps_key = "norm_eps",
                   .norm_eps = 1e-5f,
                   .max_seq_len = 128000,
                   .tied_embeddings = true,
                   .experts = {.keys = ExpertKeys::kLfm2,
                               .num_experts = 32,
                               .num_experts_per_token = 4,
                               .intermediate_size = 1792,
                               .num_dense_layers = 2,
                               .normalized = true},
                   .recurrent = RecurrentKeys::kLfm2Moe,
                   .rope = {.theta = 1000000}},
    qwen3_next_class(),
    kQwen35Class,
    with_images(kQwen35Class, "Qwen3_5ForConditionalGeneration", "qwen3_5"),
    qwen35_moe_class(),
    with_images(qwen35_moe_class(), "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe"),
    gemma4_class("Gemma4ForCausalLM", "gemma4_text", /*is_unified=*/false),
    gemma4_class("Gemma4ForConditionalGeneration", "gemma4", /*is_unified=*/false),
    gemma4_class("Gemma4UnifiedForCausalLM", "gemma4_unified_text", /*is_unified=*/true),
    gemma4_class("Gemma4UnifiedForConditionalGeneration", "gemma4_unified", /*is_unified=*/true),
};

std::string supported_architectures() {
  std::string names;
  for (std::size_t i = 0; i < kArchitectures.size(); ++i) {
    if (i > 0 && kArchitectures[i].class_name == kArchitectures[i - 1].class_name) continue;
    names += i == 0 ? "supported are " : i + 1 == kArchitectures.size() ? " and " : ", ";
    names += kArchitectures[i].class_name;
  }
  return names;
}

/// Of the rows of a class, one for each kind of part for text, the one that text_config names; the first of a
/// file that names none.
const HfArchitecture& row_of_text(const HfArchitecture& first, const JsonFields& fields) {
  if (first.text_model_type == nullptr) return first;
  const json* text = fields.find("text_config");
  if (text == nullptr) return first;
  if (!text->is_object()) fields.fail("text_config", *text, "an object was expected");
  const JsonFields part(*text, fields.where() + ": text_config");
  const auto type = part.text("model_type");
  if (!type) return first;
  std::string names;
  for (const HfArchitecture& known : kArchitectures) {
    if (known.class_name != first.class_name) continue;
    if (*type == known.text_model_type) return known;
    names += fmt::format("{}{}", names.empty() ? "" : " and ", known.text_model_type);
  }
  part.unsupported("model_type", *type, fmt::format("of {} only {} is supported", first.class_name, names));
}

}  // namespace

const HfArchitecture& find_hf_architecture(const JsonFields& fields) {
  if (const json* classes = fields.find("architectures")) {
    if (!classes->is_array()) fields.fail("architectures", *classes, "a list of class names was expected");
    for (const json& name : *classes) {
      for (const HfArchitecture& known : kArchitectures) {
        if (name.is_string() && name.get_ref<const std::string&>() == known.class_name)
          return row_of_text(known, fields);
      }
    }
    if (!classes->empty()) fields.unsupported("architectures", classes->front(), supported_architectures());
  }
  const json* model_type = fields.find("model_type");
  if (model_type == nullptr) fields.missing("architectures");
  for (const HfArchitecture& known : kArchitectures) {
    if (model_type->is_string() && model_type->get_ref<const std::string&>() == known.model_type)
      return row_of_text(known, fields);
  }
  fields.unsupported("model_type", *model_type, supported_architectures());
}

HfDocument parse_hf_document(std::string_view config_json, const std::string& source) {
  nlohmann::json document = parse_json_bounded(config_json, source);
  const HfArchitecture& architecture = find_hf_architecture(JsonFields(document, source));
  if (const auto text = document.find("text_config");
      architecture.text_model_type != nullptr && text != document.end()) {
    nlohmann::json part = *text;
    // Which is the whole model's to say: the part for text has no output head.
    if (document.contains("tie_word_embeddings") && part.is_object()) part.erase("tie_word_embeddings");
    document.update(part);
  }
  return {std::move(document), architecture};
}

}  // namespace tessera
