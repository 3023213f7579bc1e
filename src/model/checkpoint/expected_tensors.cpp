#include "model/checkpoint/expected_tensors.h"

#include <fmt/core.h>

namespace tessera {

bool is_matrix(std::string_view name, std::size_t num_dimensions) {
  return num_dimensions > 1 && !name.ends_with(".bias") && !name.ends_with("_norm.weight");
}
bool is_router(std::string_view name) { return name.ends_with(".mlp.router.weight"); }
bool is_of_experts(std::string_view name) { return name.find(".mlp.experts.") != name.npos; }

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q_size = std::int64_t{config.num_heads} * config.head_dim;
  const std::int64_t kv_size = std::int64_t{config.num_kv_heads} * config.head_dim;
  const std::int64_t mlp = config.intermediate_size;

  std::vector<ExpectedTensor> tensors;
  tensors.push_back({"embed_tokens.weight", {config.vocab_size, hidden}, SplitAxis::kRows});
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    const auto vector = [&](const char* name, std::int64_t size) {
      tensors.push_back({prefix + name + ".weight", {size}});
    };
    const auto norm = [&](const char* name) {
      if (config.norm_weights) vector(name, hidden);
      if (config.norm_bias) tensors.push_back({prefix + name + ".bias", {hidden}});
    };
    const auto linear = [&](const char* name, std::int64_t out, std::int64_t in, SplitAxis split, bool bias) {
      tensors.push_back({prefix + name + ".weight", {out, in}, split});
      // What sums of parts are added to must be added once.
      const SplitAxis bias_split = split == SplitAxis::kRows ? SplitAxis::kRows : SplitAxis::kNone;
      if (bias) tensors.push_back({prefix + name + ".bias", {out}, bias_split});
    };
    const auto experts = [&](const char* name, std::int64_t out, std::int64_t in) {
      const MixtureConfig& mixture = *config.mixture;
      const std::string whole = fmt::format("{}mlp.experts.{}", prefix, name);
      tensors.push_back({whole + ".weight", {mixture.num_experts, out, in}, SplitAxis::kExperts});
      if (mixture.expert_bias)
        tensors.push_back({whole + ".bias", {mixture.num_experts, out}, SplitAxis::kExperts});
    };
    if (config.norms_before) norm("input_layernorm");
    if (config.latent) {
      const LatentAttentionConfig& latent = *config.latent;
      const std::int64_t queries = std::int64_t{config.num_heads} * latent.query_dim();
      if (latent.q_rank > 0) {
        linear("self_attn.q_a_proj", latent.q_rank, hidden, SplitAxis::kNone, false);
        vector("self_attn.q_a_layernorm", latent.q_rank);
        linear("self_attn.q_b_proj", queries, latent.q_rank, SplitAxis::kRows, false);
      } else {
        linear("self_attn.q_proj", queries, hidden, SplitAxis::kRows, false);
      }
      linear("self_attn.kv_a_proj_with_mqa", config.head_dim, hidden, SplitAxis::kNone, false);
      vector("self_attn.kv_a_layernorm", latent.kv_rank);
      const auto heads = [&](const char* name, std::int64_t out, std::int64_t in) {
        tensors.push_back({prefix + name + ".weight", {config.num_heads, out, in}, SplitAxis::kRows});
      };
      heads("self_attn.k_b_proj", latent.kv_rank, latent.nope_dim);
      heads("self_attn.v_b_proj", latent.value_dim, latent.kv_rank);
    } else if (config.fused_qkv) {
      linear("self_attn.qkv_proj", q_size + 2 * kv_size, hidden, SplitAxis::kRows, config.qkv_bias);
    } else {
      linear("self_attn.q_proj", q_size, hidden, SplitAxis::kRows, config.qkv_bias);
      linear("self_attn.k_proj", kv_size, hidden, SplitAxis::kRows, config.qkv_bias);
      linear("self_attn.v_proj", kv_size, hidden, SplitAxis::kRows, config.qkv_bias);
    }
    const std::int64_t attended =
        config.latent ? std::int64_t{config.num_heads} * config.latent->value_dim : q_size;
    linear("self_attn.o_proj", hidden, attended, SplitAxis::kColumns, config.o_bias);
    if (config.qk_norm == QkNorm::kOwnEachHead) {
      tensors.push_back(
          {prefix + "self_attn.q_norm.weight", {config.num_heads, config.head_dim}, SplitAxis::kRows});
      tensors.push_back(
          {prefix + "self_attn.k_norm.weight", {config.num_kv_heads, config.head_dim}, SplitAxis::kRows});
    } else if (config.qk_norm != QkNorm::kNone) {
      const bool is_each = config.qk_norm == QkNorm::kEachHead;
      vector("self_attn.q_norm", is_each ? config.head_dim : q_size);
      vector("self_attn.k_norm", is_each ? config.head_dim : kv_size);
    }
    if (config.attention_sinks) vector("self_attn.sinks", config.num_heads);
    // transformers calls the norm before the MLP by the same name where there is none after attention.
    if (!config.parallel_blocks || config.parallel_norms) norm("post_attention_layernorm");
    if (config.norms_before && config.norms_after) norm("pre_feedforward_layernorm");
    if (config.norms_after) norm("post_feedforward_layernorm");
    if (has_experts(config, layer)) {
      const MixtureConfig& mixture = *config.mixture;
      const std::int64_t width = mixture.intermediate_size, shared = mixture.shared_intermediate_size;
      linear("mlp.router", mixture.num_experts, hidden, SplitAxis::kNone, mixture.router_bias);
      if (mixture.score_bias)
        tensors.push_back({prefix + "mlp.e_score_correction.bias", {mixture.num_experts}});
      experts("gate_proj", width, hidden);
      experts("up_proj", width, hidden);
      experts("down_proj", hidden, width);
      if (shared == 0) continue;
      linear("mlp.shared_expert.gate_proj", shared, hidden, SplitAxis::kRows, false);
      linear("mlp.shared_expert.up_proj", shared, hidden, SplitAxis::kRows, false);
      linear("mlp.shared_expert.down_proj", hidden, shared, SplitAxis::kColumns, false);
      if (mixture.shared_gate) vector("mlp.shared_expert_gate", hidden);
      continue;
    }
    if (config.fused_gate_up) {
      linear("mlp.gate_up_proj", 2 * mlp, hidden, SplitAxis::kRows, config.mlp_bias);
    } else {
      if (config.gated_mlp) linear("mlp.gate_proj", mlp, hidden, SplitAxis::kRows, config.mlp_bias);
      linear("mlp.up_proj", mlp, hidden, SplitAxis::kRows, config.mlp_bias);
    }
    linear("mlp.down_proj", hidden, mlp, SplitAxis::kColumns, config.mlp_bias);
  }
  if (config.norm_weights) tensors.push_back({"norm.weight", {hidden}});
  if (config.norm_bias) tensors.push_back({"norm.bias", {hidden}});
  if (!config.tied_embeddings) {
    tensors.push_back({"lm_head.weight", {config.vocab_size, hidden}, SplitAxis::kRows});
  }
  if (config.head_bias) tensors.push_back({"lm_head.bias", {config.vocab_size}, SplitAxis::kRows});
  return tensors;
}

}  // namespace tessera
