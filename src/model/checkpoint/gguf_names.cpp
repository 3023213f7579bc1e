#include "model/checkpoint/gguf_names.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <span>
#include <utility>

namespace tessera {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;  // in GGUF files, in Checkpoint

constexpr std::array<NamePair, 6> kOuter = {{
    {"token_embd", "embed_tokens"},
    {"output_norm", "norm"},
    {"output", "lm_head"},
    {"per_layer_token_embd", "embed_tokens_per_layer"},
    {"per_layer_model_proj", "per_layer_model_projection"},
    {"per_layer_proj_norm", "per_layer_projection_norm"},
}};
constexpr std::array<NamePair, 30> kInner = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.router"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
    {"exp_probs_b", "mlp.e_score_correction"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"attn_sinks", "self_attn.sinks"},
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"attn_k_b", "self_attn.k_b_proj"},
    {"attn_v_b", "self_attn.v_b_proj"},
}};
/// Before kInner, of an architecture whose layers differ from Llama's.
constexpr std::array<NamePair, 1> kFusedGateUp = {{{"ffn_up", "mlp.gate_up_proj"}}};
constexpr std::array<NamePair, 3> kNormsAfter = {{
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
}};
constexpr std::array<NamePair, 1> kGptOssNames = {{
    {"post_attention_norm", "post_attention_layernorm"},
}};
constexpr std::array<NamePair, 4> kGlm4 = {{kNormsAfter[0], kNormsAfter[1], kNormsAfter[2], kFusedGateUp[0]}};
constexpr std::array<NamePair, 11> kGemma4 = {{
    kNormsAfter[0],
    kNormsAfter[1],
    kNormsAfter[2],
    {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
    {"ffn_gate_up_exps", "mlp.experts.gate_up_proj"},
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm"},
    {"layer_output_scale", "layer_scalar"},
}};
constexpr std::array<NamePair, 1> kSeedOss = {{{"post_attention_norm", "post_attention_layernorm"}}};
constexpr std::array<NamePair, 3> kLfm2 = {{
    {"shortconv.in_proj", "short_conv.in_proj"},
    {"shortconv.conv", "short_conv.conv"},
    {"shortconv.out_proj", "short_conv.out_proj"},
}};
constexpr std::array<NamePair, 11> kGatedDelta = {{
    {"post_attention_norm", "post_attention_layernorm"},
    {"attn_qkv", "linear_attn.qkv_proj"},
    {"attn_gate", "linear_attn.z_proj"},
    {"ssm_in", "linear_attn.in_proj_qkvz"},
    {"ssm_beta", "linear_attn.b_proj"},
    {"ssm_alpha", "linear_attn.a_proj"},
    {"ssm_ba", "linear_attn.in_proj_ba"},
    {"ssm_conv1d", "linear_attn.conv"},
    {"ssm_dt", "linear_attn.dt"},
    {"ssm_norm", "linear_attn.norm"},
    {"ssm_out", "linear_attn.out_proj"},
}};
// Of architectures that call the last norm by the place where others norm embeddings.
constexpr std::array<NamePair, 1> kLfm2Outer = {{{"token_embd_norm", "norm"}}};
constexpr std::string_view kBlock = "blk.", kLayer = "layers.";
// What a tensor without an ending is called.
constexpr std::string_view kDecayRate = ".ssm_a", kDecayRateOfLayer = ".linear_attn.decay_rate.weight";

// A name that stands there twice is written as the first says.
constexpr std::array<std::pair<std::string_view, Architecture>, 51> kArchitectureNames = {{
    {"llama", Architecture::kLlama},
    {"mistral3", Architecture::kMinistral3},
    {"qwen2", Architecture::kQwen2},
    {"qwen3", Architecture::kQwen3},
    {"phi3", Architecture::kPhi3},
    {"smollm3", Architecture::kSmolLm3},
    {"granite", Architecture::kGranite},
    {"minicpm", Architecture::kMiniCpm},
    {"olmo", Architecture::kOlmo},
    {"olmo2", Architecture::kOlmo2},
    {"exaone", Architecture::kExaone},
    {"exaone4", Architecture::kExaone4},
    {"chatglm", Architecture::kGlm},
    {"glm4", Architecture::kGlm4},
    {"seed_oss", Architecture::kSeedOss},
    {"ernie4_5", Architecture::kErnie45},
    {"hunyuan-dense", Architecture::kHunYuanDense},
    {"command-r", Architecture::kCohere},
    {"cohere2", Architecture::kCohere2},
    {"starcoder2", Architecture::kStarcoder2},
    {"phi2", Architecture::kPhi},
    {"gptneox", Architecture::kGptNeoX},
    {"stablelm", Architecture::kStableLm},
    {"nemotron", Architecture::kNemotron},
    {"arcee", Architecture::kArcee},
    {"gemma", Architecture::kGemma},
    {"gemma2", Architecture::kGemma2},
    {"gemma3", Architecture::kGemma3},
    {"gemma4", Architecture::kGemma4},
    {"llama", Architecture::kMistral},
    {"qwen3moe", Architecture::kQwen3Moe},
    {"gpt-oss", Architecture::kGptOss},
    {"llama", Architecture::kMixtral},
    {"olmoe", Architecture::kOlmoe},
    {"granitemoe", Architecture::kGraniteMoe},
    {"qwen2moe", Architecture::kQwen2Moe},
    {"glm4moe", Architecture::kGlm4Moe},
    {"ernie4_5-moe", Architecture::kErnie45Moe},
    {"dots1", Architecture::kDots1},
    {"deepseek2", Architecture::kDeepSeek},
    {"lfm2", Architecture::kLfm2},
    {"lfm2moe", Architecture::kLfm2Moe},
    {"qwen3next", Architecture::kQwen3Next},
    {"qwen35", Architecture::kQwen35},
    {"qwen35moe", Architecture::kQwen35Moe},
    {"minimax-m2", Architecture::kMiniMaxM2},
    {"exaone-moe", Architecture::kExaoneMoe},
    {"hunyuan-moe", Architecture::kHunYuanMoe},
    {"qwen2vl", Architecture::kQwen2},  // the part for text of models that take images, too
    {"qwen3vl", Architecture::kQwen3},
    {"qwen3vlmoe", Architecture::kQwen3Moe},
}};

std::span<const NamePair> own_names(Architecture architecture) {
  switch (architecture) {
    case Architecture::kPhi3:
    case Architecture::kGlm:
      return kFusedGateUp;
    case Architecture::kGlm4:
      return kGlm4;
    case Architecture::kSeedOss:
    case Architecture::kGlm4Moe:
      return kSeedOss;
    case Architecture::kOlmo2:
    case Architecture::kExaone4:
    case Architecture::kGemma2:
    case Architecture::kGemma3:
      return kNormsAfter;
    case Architecture::kGemma4:
      return kGemma4;
    case Architecture::kGptOss:
      return kGptOssNames;
    case Architecture::kLfm2:
    case Architecture::kLfm2Moe:
      return kLfm2;
    case Architecture::kQwen3Next:
    case Architecture::kQwen35:
    case Architecture::kQwen35Moe:
      return kGatedDelta;
    default:
      return {};
  }
}

std::span<const NamePair> own_outer_names(Architecture architecture) {
  return has_short_conv(architecture) ? std::span<const NamePair>(kLfm2Outer) : std::span<const NamePair>();
}

/// From one of a NamePair's names to the other.
struct Direction {
  std::string_view NamePair::*from;
  std::string_view NamePair::*to;
  std::string_view from_prefix, to_prefix;  // of what is in a layer
};
constexpr Direction kFromGguf = {&NamePair::first, &NamePair::second, kBlock, kLayer};
constexpr Direction kToGguf = {&NamePair::second, &NamePair::first, kLayer, kBlock};

/// The other name of the first entry that has `stem`, else itself.
std::string_view renamed(std::initializer_list<std::span<const NamePair>> tables, const Direction& direction,
                         std::string_view stem) {
  for (const std::span<const NamePair> table : tables) {
    for (const NamePair& entry : table)
      if (entry.*direction.from == stem) return entry.*direction.to;
  }
  return stem;
}

/// "PREFIXn.STEM.ENDING" or "STEM.ENDING" with another prefix and stem.
std::string rename(std::string_view name, const Direction& direction, Architecture architecture) {
  const std::size_t dot = name.rfind('.'), prefix_size = direction.from_prefix.size();
  if (dot == name.npos) return std::string(name);
  const std::string_view stem = name.substr(0, dot), ending = name.substr(dot);
  if (!stem.starts_with(direction.from_prefix))
    return fmt::format("{}{}", renamed({own_outer_names(architecture), kOuter}, direction, stem), ending);
  const std::size_t number_end = stem.find('.', prefix_size);
  if (number_end == stem.npos) return std::string(name);
  // What the tables don't know keeps its name within the layer, so that it is found left over there.
  return fmt::format("{}{}.{}{}", direction.to_prefix, stem.substr(prefix_size, number_end - prefix_size),
                     renamed({own_names(architecture), kInner}, direction, stem.substr(number_end + 1)),
                     ending);
}

}  // namespace

std::optional<Architecture> gguf_architecture(std::string_view name) noexcept {
  const auto found = std::find_if(kArchitectureNames.begin(), kArchitectureNames.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (found == kArchitectureNames.end()) return std::nullopt;
  return found->second;
}

std::string gguf_architecture_names() {
  std::string names;
  for (const auto& [name, architecture] : kArchitectureNames) {
    if (architecture == Architecture::kMistral || architecture == Architecture::kMixtral) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
    if (architecture == Architecture::kLlama) names += " (which files of Mistral and Mixtral use too)";
  }
  return names;
}

std::string_view gguf_architecture_name(Architecture architecture) noexcept {
  const auto found = std::find_if(kArchitectureNames.begin(), kArchitectureNames.end(),
                                  [&](const auto& entry) { return entry.second == architecture; });
  return found == kArchitectureNames.end() ? std::string_view() : found->first;
}

RopePairing gguf_rope_pairing(Architecture architecture) noexcept {
  switch (architecture) {
    case Architecture::kLlama:
    case Architecture::kMistral:
    case Architecture::kMinistral3:
    case Architecture::kMixtral:
    case Architecture::kSmolLm3:
    case Architecture::kGranite:
    case Architecture::kGraniteMoe:
    case Architecture::kMiniCpm:
    case Architecture::kGlm:
    case Architecture::kGlm4:
    case Architecture::kErnie45:
    case Architecture::kErnie45Moe:
    case Architecture::kDeepSeek:
    case Architecture::kCohere:
    case Architecture::kCohere2:
    case Architecture::kArcee:
    case Architecture::kOlmo:
      return RopePairing::kInterleaved;
    default:
      return RopePairing::kHalves;
  }
}

std::int64_t gguf_full_interval(Architecture architecture) noexcept {
  switch (architecture) {
    case Architecture::kOlmo2:
      return kOlmo3FullInterval;
    case Architecture::kExaone4:
    case Architecture::kExaoneMoe:
      return kExaone4FullInterval;
    case Architecture::kCohere2:
      return kCohere2FullInterval;
    case Architecture::kGemma2:
      return kGemma2FullInterval;
    case Architecture::kGemma3:
      return kGemma3FullInterval;
    case Architecture::kGemma4:
      return kGemma4FullInterval;
    case Architecture::kGptOss:
      return kGptOssFullInterval;
    default:
      return 0;
  }
}

GgufMixtureTraits gguf_mixture_traits(Architecture architecture) noexcept {
  switch (architecture) {
    case Architecture::kOlmoe:
      return {.normalized = false};
    case Architecture::kQwen2Moe:
      return {.normalized = false, .has_shared_size = true};
    case Architecture::kQwen3Next:
    case Architecture::kQwen35Moe:
      return {.has_shared_size = true};
    case Architecture::kLfm2Moe:
      return {.scoring = ExpertScoring::kSigmoid, .has_dense_layers = true, .has_scores = true};
    case Architecture::kGraniteMoe:
      return {.has_shared_size = true};
    case Architecture::kErnie45Moe:
      return {
          .has_shared_count = true, .has_shared_size = true, .has_dense_layers = true, .has_interval = true};
    case Architecture::kDeepSeek:
      return {.normalized = false, .has_shared_count = true, .has_dense_layers = true, .has_scores = true};
    case Architecture::kHunYuanMoe:
      return {.has_shared_count = true, .has_shared_size = true};
    case Architecture::kMiniMaxM2:
      return {.scoring = ExpertScoring::kSigmoid, .has_scores = true};
    case Architecture::kExaoneMoe:
    case Architecture::kGlm4Moe:
    case Architecture::kDots1:
      return {.normalized = false,
              .scoring = ExpertScoring::kSigmoid,
              .has_shared_count = true,
              .has_dense_layers = true,
              .has_scores = true};
    default:
      return {};
  }
}

std::vector<bool> gguf_expert_layers(int num_layers, std::int64_t num_dense, std::int64_t interval) {
  std::vector<bool> layers;
  for (int layer = 0; layer < num_layers; ++layer)
    layers.push_back(layer >= num_dense && (layer + 1) % interval == 0);
  return layers;
}

float gguf_gemma_softmax_scale(const ModelConfig& config) noexcept {
  const int layers_of_27b = config.architecture == Architecture::kGemma2 ? 46 : 62;
  const float size = config.num_layers == layers_of_27b
                         ? static_cast<float>(config.hidden_size) / static_cast<float>(config.num_heads)
                         : static_cast<float>(config.head_dim);
  return 1 / std::sqrt(size);
}

float gguf_yarn_attention_factor(float factor, float log_multiplier) noexcept {
  const double step = factor <= 1 ? 0.0 : 0.1 * std::log(static_cast<double>(factor));
  return static_cast<float>((step + 1) / (step * static_cast<double>(log_multiplier) + 1));
}

std::string gguf_checkpoint_name(std::string_view name, Architecture architecture) {
  if (name.starts_with(kBlock) && name.ends_with(kDecayRate)) {
    name.remove_prefix(kBlock.size());
    name.remove_suffix(kDecayRate.size());
    return fmt::format("{}{}{}", kLayer, name, kDecayRateOfLayer);
  }
  const std::string renamed_whole = rename(name, kFromGguf, architecture);
  // The first files of Mixtral had a tensor for each expert: "blk.3.ffn_gate.7.weight".
  constexpr NamePair kApart[] = {
      {".ffn_gate.", "gate_proj"}, {".ffn_up.", "up_proj"}, {".ffn_down.", "down_proj"}};
  for (const auto& [part, matrix] : kApart) {
    const std::size_t at = renamed_whole.find(part), number = at + part.size();
    if (at == renamed_whole.npos) continue;
    const std::size_t end = renamed_whole.find_first_not_of("0123456789", number);
    if (end == renamed_whole.npos || end == number) continue;
    return fmt::format("{}.mlp.experts.{}.{}{}", renamed_whole.substr(0, at),
                       renamed_whole.substr(number, end - number), matrix, renamed_whole.substr(end));
  }
  return renamed_whole;
}

std::string gguf_tensor_name(std::string_view name, Architecture architecture) {
  if (name.starts_with(kLayer) && name.ends_with(kDecayRateOfLayer)) {
    name.remove_prefix(kLayer.size());
    name.remove_suffix(kDecayRateOfLayer.size());
    return fmt::format("{}{}{}", kBlock, name, kDecayRate);
  }
  return rename(name, kToGguf, architecture);
}

}  // namespace tessera
