#include "model/checkpoint/hf_names.h"

#include <array>
#include <span>
#include <utility>

namespace tessera {
namespace {

// The latter of models that take images, too, by transformers 4 and 5.
constexpr std::string_view kPrefixes[] = {"model.language_model.", "model.", "language_model.model.",
                                          "language_model."};

using NamePair = std::pair<std::string_view, std::string_view>;  // in the folder, in Checkpoint

constexpr std::array<NamePair, 3> kGlm4Norms = {{
    {"post_self_attn_layernorm", "post_attention_layernorm"},
    {"post_attention_layernorm", "pre_feedforward_layernorm"},
    {"post_mlp_layernorm", "post_feedforward_layernorm"},
}};

constexpr std::array<NamePair, 2> kHunYuanNorms = {{
    {"query_layernorm", "q_norm"},
    {"key_layernorm", "k_norm"},
}};

// Parts of names, in the order in which they are replaced.
constexpr std::array<NamePair, 10> kExaone = {{
    {"transformer.wte.", "embed_tokens."},
    {"transformer.h.", "layers."},
    {"transformer.ln_f.", "norm."},
    {".attn.attention.", ".self_attn."},
    {".self_attn.out_proj.", ".self_attn.o_proj."},
    {".ln_1.", ".input_layernorm."},
    {".ln_2.", ".post_attention_layernorm."},
    {".mlp.c_fc_0.", ".mlp.gate_proj."},
    {".mlp.c_fc_1.", ".mlp.up_proj."},
    {".mlp.c_proj.", ".mlp.down_proj."},
}};

constexpr std::array<NamePair, 2> kStarcoder2 = {
    {{".mlp.c_fc.", ".mlp.up_proj."}, {".mlp.c_proj.", ".mlp.down_proj."}}};

constexpr std::array<NamePair, 4> kPhi = {{
    {".self_attn.dense.", ".self_attn.o_proj."},
    {".mlp.fc1.", ".mlp.up_proj."},
    {".mlp.fc2.", ".mlp.down_proj."},
    {"final_layernorm.", "norm."},
}};

constexpr std::array<NamePair, 8> kGptNeoX = {{
    {"gpt_neox.", ""},
    {"embed_in.", "embed_tokens."},
    {"embed_out.", "lm_head."},
    {"final_layer_norm.", "norm."},
    {".attention.query_key_value.", ".self_attn.qkv_proj."},
    {".attention.dense.", ".self_attn.o_proj."},
    {".mlp.dense_h_to_4h.", ".mlp.up_proj."},
    {".mlp.dense_4h_to_h.", ".mlp.down_proj."},
}};

// Of a layer, behind its number: routers, and what some call otherwise.
constexpr std::array<NamePair, 17> kRouters = {{
    {".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction.bias"},
    {".mlp.gate.moe_statics.e_score_correction_bias", ".mlp.e_score_correction.bias"},
    {".mlp.moe_statics.e_score_correction_bias", ".mlp.e_score_correction.bias"},
    {".mlp.e_score_correction_bias", ".mlp.e_score_correction.bias"},
    {".block_sparse_moe.e_score_correction_bias", ".mlp.e_score_correction.bias"},
    {".mlp.gate.wg.", ".mlp.router."},
    {".mlp.gate.", ".mlp.router."},
    {".mlp.shared_mlp.", ".mlp.shared_expert."},
    {".mlp.shared_experts.", ".mlp.shared_expert."},
    {".block_sparse_moe.gate.", ".mlp.router."},
    {".block_sparse_moe.router.layer.", ".mlp.router."},
    {".block_sparse_moe.router.", ".mlp.router."},
    {".block_sparse_moe.experts.", ".mlp.experts."},
    {".block_sparse_moe.input_linear.weight", ".mlp.experts.gate_up_proj"},
    {".block_sparse_moe.output_linear.weight", ".mlp.experts.down_proj"},
    {".shared_mlp.input_linear.weight", ".mlp.shared_expert.gate_up_proj.weight"},
    {".shared_mlp.output_linear.weight", ".mlp.shared_expert.down_proj.weight"},
}};
constexpr std::array<NamePair, 3> kMixtralMatrices = {{
    {".w1.", ".gate_proj."},
    {".w3.", ".up_proj."},
    {".w2.", ".down_proj."},
}};

constexpr std::array<NamePair, 4> kGemma4 = {{
    {".layer_scalar", ".layer_scalar.weight"},
    {".router.proj.", ".mlp.router."},
    {".router.scale", ".mlp.router.scale"},
    {".router.per_expert_scale", ".mlp.experts.down_proj.scale"},
}};
constexpr std::array<NamePair, 1> kGemma4Experts = {{{".experts.", ".mlp.experts."}}};

// Of Granite 4 without experts, whose MLP is what the others' tokens share.
constexpr std::array<NamePair, 2> kGranite4 = {{
    {".shared_mlp.input_linear.", ".mlp.gate_up_proj."},
    {".shared_mlp.output_linear.", ".mlp.down_proj."},
}};

constexpr std::array<NamePair, 15> kLfm2 = {{
    {"embedding_norm.", "norm."},
    {".operator_norm.", ".input_layernorm."},
    {".ffn_norm.", ".post_attention_layernorm."},
    {".self_attn.out_proj.", ".self_attn.o_proj."},
    {".self_attn.q_layernorm.", ".self_attn.q_norm."},
    {".self_attn.k_layernorm.", ".self_attn.k_norm."},
    {".conv.in_proj.", ".short_conv.in_proj."},
    {".conv.out_proj.", ".short_conv.out_proj."},
    {".conv.conv.", ".short_conv.conv."},
    {".feed_forward.expert_bias", ".mlp.e_score_correction.bias"},
    {".feed_forward.gate.", ".mlp.router."},
    {".feed_forward.", ".mlp."},
    {".w1.", ".gate_proj."},
    {".w3.", ".up_proj."},
    {".w2.", ".down_proj."},
}};

constexpr std::array<NamePair, 7> kGatedDelta = {{
    {".linear_attn.in_proj_qkv.", ".linear_attn.qkv_proj."},
    {".linear_attn.in_proj_z.", ".linear_attn.z_proj."},
    {".linear_attn.in_proj_b.", ".linear_attn.b_proj."},
    {".linear_attn.in_proj_a.", ".linear_attn.a_proj."},
    {".linear_attn.conv1d.", ".linear_attn.conv."},
    {".linear_attn.A_log", ".linear_attn.a_log.weight"},
    {".linear_attn.dt_bias", ".linear_attn.dt.bias"},
}};

std::string with_parts_replaced(std::string name, std::span<const NamePair> parts) {
  for (const auto& [from, to] : parts) {
    if (const std::size_t at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
  }
  return name;
}

/// Of a mixture of experts; parts of experts keep the names that WeightCollector::gather_experts knows.
std::string name_in_mixture(std::string name) {
  if (name.ends_with(".self_attn.sinks")) return name + ".weight";
  const bool is_mixtral = name.find(".block_sparse_moe.") != name.npos;
  name = with_parts_replaced(std::move(name), kRouters);
  return is_mixtral ? with_parts_replaced(std::move(name), kMixtralMatrices) : name;
}

/// "layers.N.STEM.weight" with the other name of the first entry that has the stem.
std::string with_renamed_stem(std::string name, std::span<const NamePair> stems) {
  const std::size_t end = name.rfind('.');
  if (end == name.npos || end == 0) return name;
  const std::size_t begin = name.rfind('.', end - 1) + 1;
  for (const auto& [from, to] : stems) {
    if (std::string_view(name).substr(begin, end - begin) == from)
      return name.replace(begin, end - begin, to);
  }
  return name;
}

std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

/// Of Gemma 4, whose experts lie beside the MLP.
std::string name_in_gemma4(std::string name) {
  if (!name.starts_with("layers.")) return name;
  const bool is_of_experts = name.find(".experts.") != name.npos;
  name = with_parts_replaced(std::move(name), kGemma4);
  return is_of_experts ? with_parts_replaced(std::move(name), kGemma4Experts) : name;
}

}  // namespace

std::string hf_checkpoint_name(std::string_view name, Architecture architecture) {
  std::string result(without_prefix(name));
  if (has_short_conv(architecture)) return with_parts_replaced(std::move(result), kLfm2);
  if (has_gated_delta(architecture)) result = with_parts_replaced(std::move(result), kGatedDelta);
  if (architecture == Architecture::kGemma4) return name_in_gemma4(std::move(result));
  if (may_have_experts(architecture)) result = name_in_mixture(std::move(result));
  if (architecture == Architecture::kGranite) return with_parts_replaced(std::move(result), kGranite4);
  if (architecture == Architecture::kExaone) return with_parts_replaced(std::move(result), kExaone);
  if (architecture == Architecture::kStarcoder2) return with_parts_replaced(std::move(result), kStarcoder2);
  if (architecture == Architecture::kPhi) return with_parts_replaced(std::move(result), kPhi);
  if (architecture == Architecture::kGptNeoX) return with_parts_replaced(std::move(result), kGptNeoX);
  std::span<const NamePair> stems;
  if (architecture == Architecture::kGlm4) stems = kGlm4Norms;
  if (architecture == Architecture::kHunYuanDense || architecture == Architecture::kHunYuanMoe)
    stems = kHunYuanNorms;
  return with_renamed_stem(std::move(result), stems);
}

}  // namespace tessera
