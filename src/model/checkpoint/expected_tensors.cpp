#include "model/checkpoint/expected_tensors.h"

#include <fmt/core.h>

#include <utility>

namespace tessera {
namespace {

/// The list as it grows, of one layer's tensors after the other's.
class TensorList {
 public:
  explicit TensorList(const ModelConfig& config) : config_(config) {}

  void add(std::string name, std::vector<std::int64_t> shape, SplitAxis split = SplitAxis::kNone) {
    tensors_.push_back({std::move(name), std::move(shape), split});
  }

  void add_layer(int layer) {
    layer_ = layer;
    prefix_ = fmt::format("layers.{}.", layer);
    if (config_.norms_before) norm("input_layernorm");
    if (has_attention(config_, layer)) {
      add_attention();
    } else if (config_.short_conv) {
      add_short_conv();
    } else {
      add_gated_delta();
    }
    // transformers calls the norm before the MLP by the same name where there is none after attention.
    if (!config_.parallel_blocks || config_.parallel_norms) norm("post_attention_layernorm");
    if (config_.norms_before && config_.norms_after) norm("pre_feedforward_layernorm");
    if (config_.norms_after) norm("post_feedforward_layernorm");
    if (config_.layer_embedding_size > 0) add_layer_embedding();
    if (config_.layer_scales) vector("layer_scalar", 1);
    const bool is_mixture = has_experts(config_, layer);
    if (is_mixture) add_mixture();
    if (!is_mixture || config_.mixture->beside_mlp) add_mlp();
  }

  std::vector<ExpectedTensor> take() { return std::move(tensors_); }

 private:
  std::int64_t q_size() const { return std::int64_t{config_.num_heads} * kv_sizes(config_, layer_).head_dim; }
  std::int64_t kv_size() const {
    const KvSizes sizes = kv_sizes(config_, layer_);
    return std::int64_t{sizes.num_kv_heads} * sizes.head_dim;
  }
  bool makes_kv() const { return kv_layer(config_, layer_) == layer_; }

  void vector(const char* name, std::int64_t size) { add(prefix_ + name + ".weight", {size}); }
  void norm(const char* name) {
    if (config_.norm_weights) vector(name, config_.hidden_size);
    if (config_.norm_bias) add(prefix_ + name + ".bias", {config_.hidden_size});
  }
  void scale(const char* name, std::int64_t size) { add(fmt::format("{}{}.scale", prefix_, name), {size}); }
  void linear(const char* name, std::int64_t out, std::int64_t in, SplitAxis split, bool bias) {
    add(prefix_ + name + ".weight", {out, in}, split);
    // What sums of parts are added to must be added once.
    if (bias)
      add(prefix_ + name + ".bias", {out}, split == SplitAxis::kRows ? SplitAxis::kRows : SplitAxis::kNone);
  }
  void experts(const char* name, std::int64_t out, std::int64_t in) {
    const MixtureConfig& mixture = *config_.mixture;
    const std::string whole = fmt::format("{}mlp.experts.{}", prefix_, name);
    add(whole + ".weight", {mixture.num_experts, out, in}, SplitAxis::kExperts);
    if (mixture.expert_bias) add(whole + ".bias", {mixture.num_experts, out}, SplitAxis::kExperts);
  }

  void add_attention() {
    const std::int64_t hidden = config_.hidden_size;
    if (config_.latent) {
      add_latents();
    } else if (config_.fused_qkv) {
      linear("self_attn.qkv_proj", q_size() + 2 * kv_size(), hidden, SplitAxis::kRows, config_.qkv_bias);
    } else {
      linear("self_attn.q_proj", q_size(), hidden, SplitAxis::kRows, config_.qkv_bias);
      if (makes_kv()) linear("self_attn.k_proj", kv_size(), hidden, SplitAxis::kRows, config_.qkv_bias);
      if (makes_kv() && !has_keys_as_values(config_, layer_))
        linear("self_attn.v_proj", kv_size(), hidden, SplitAxis::kRows, config_.qkv_bias);
    }
    if (config_.attention_gate)
      linear("self_attn.gate_proj", q_size(), hidden, SplitAxis::kRows, config_.qkv_bias);
    const std::int64_t attended =
        config_.latent ? std::int64_t{config_.num_heads} * config_.latent->value_dim : q_size();
    linear("self_attn.o_proj", hidden, attended, SplitAxis::kColumns, config_.o_bias);
    if (config_.qk_norm == QkNorm::kOwnEachHead) {
      add(prefix_ + "self_attn.q_norm.weight", {config_.num_heads, config_.head_dim}, SplitAxis::kRows);
      add(prefix_ + "self_attn.k_norm.weight", {config_.num_kv_heads, config_.head_dim}, SplitAxis::kRows);
    } else if (config_.qk_norm != QkNorm::kNone) {
      const bool is_each = config_.qk_norm == QkNorm::kEachHead;
      const std::int64_t head_dim = kv_sizes(config_, layer_).head_dim;
      vector("self_attn.q_norm", is_each ? head_dim : q_size());
      if (makes_kv()) vector("self_attn.k_norm", is_each ? head_dim : kv_size());
    }
    if (config_.attention_sinks) vector("self_attn.sinks", config_.num_heads);
  }

  void add_latents() {
    const LatentAttentionConfig& latent = *config_.latent;
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t queries = std::int64_t{config_.num_heads} * latent.query_dim();
    if (latent.q_rank > 0) {
      linear("self_attn.q_a_proj", latent.q_rank, hidden, SplitAxis::kNone, false);
      vector("self_attn.q_a_layernorm", latent.q_rank);
      linear("self_attn.q_b_proj", queries, latent.q_rank, SplitAxis::kRows, false);
    } else {
      linear("self_attn.q_proj", queries, hidden, SplitAxis::kRows, false);
    }
    linear("self_attn.kv_a_proj_with_mqa", config_.head_dim, hidden, SplitAxis::kNone, false);
    vector("self_attn.kv_a_layernorm", latent.kv_rank);
    const auto heads = [&](const char* name, std::int64_t out, std::int64_t in) {
      add(prefix_ + name + ".weight", {config_.num_heads, out, in}, SplitAxis::kRows);
    };
    heads("self_attn.k_b_proj", latent.kv_rank, latent.nope_dim);
    heads("self_attn.v_b_proj", latent.value_dim, latent.kv_rank);
  }

  void add_short_conv() {
    const std::int64_t hidden = config_.hidden_size;
    const bool bias = config_.short_conv->bias;
    linear("short_conv.in_proj", 3 * hidden, hidden, SplitAxis::kNone, bias);
    linear("short_conv.conv", hidden, config_.short_conv->taps, SplitAxis::kNone, bias);
    linear("short_conv.out_proj", hidden, hidden, SplitAxis::kNone, bias);
  }

  void add_gated_delta() {
    const GatedDeltaConfig& delta = *config_.gated_delta;
    const std::int64_t hidden = config_.hidden_size;
    linear("linear_attn.qkv_proj", delta.conv_columns(), hidden, SplitAxis::kNone, false);
    linear("linear_attn.z_proj", delta.value_columns(), hidden, SplitAxis::kNone, false);
    linear("linear_attn.b_proj", delta.num_value_heads, hidden, SplitAxis::kNone, false);
    linear("linear_attn.a_proj", delta.num_value_heads, hidden, SplitAxis::kNone, false);
    linear("linear_attn.conv", delta.conv_columns(), delta.taps, SplitAxis::kNone, false);
    vector("linear_attn.a_log", delta.num_value_heads);
    add(prefix_ + "linear_attn.dt.bias", {delta.num_value_heads});
    vector("linear_attn.norm", delta.value_dim);
    linear("linear_attn.out_proj", hidden, delta.value_columns(), SplitAxis::kNone, false);
  }

  void add_layer_embedding() {
    const std::int64_t hidden = config_.hidden_size, width = config_.layer_embedding_size;
    linear("per_layer_input_gate", width, hidden, SplitAxis::kRows, false);
    linear("per_layer_projection", hidden, width, SplitAxis::kColumns, false);
    norm("post_per_layer_input_norm");
  }

  void add_mixture() {
    const MixtureConfig& mixture = *config_.mixture;
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t width = mixture.intermediate_size, shared = mixture.shared_intermediate_size;
    linear("mlp.router", mixture.num_experts, hidden, SplitAxis::kNone, mixture.router_bias);
    if (mixture.score_bias) add(prefix_ + "mlp.e_score_correction.bias", {mixture.num_experts});
    experts("gate_proj", width, hidden);
    experts("up_proj", width, hidden);
    experts("down_proj", hidden, width);
    if (mixture.expert_scales) scale("mlp.experts.down_proj", mixture.num_experts);
    if (mixture.beside_mlp) {
      scale("mlp.router", hidden);
      norm("post_feedforward_layernorm_1");
      norm("pre_feedforward_layernorm_2");
      norm("post_feedforward_layernorm_2");
    }
    if (shared == 0) return;
    linear("mlp.shared_expert.gate_proj", shared, hidden, SplitAxis::kRows, false);
    linear("mlp.shared_expert.up_proj", shared, hidden, SplitAxis::kRows, false);
    linear("mlp.shared_expert.down_proj", hidden, shared, SplitAxis::kColumns, false);
    if (mixture.shared_gate) vector("mlp.shared_expert_gate", hidden);
  }

  void add_mlp() {
    const std::int64_t hidden = config_.hidden_size, mlp = intermediate_size(config_, layer_);
    if (config_.fused_gate_up) {
      linear("mlp.gate_up_proj", 2 * mlp, hidden, SplitAxis::kRows, config_.mlp_bias);
    } else {
      if (config_.gated_mlp) linear("mlp.gate_proj", mlp, hidden, SplitAxis::kRows, config_.mlp_bias);
      linear("mlp.up_proj", mlp, hidden, SplitAxis::kRows, config_.mlp_bias);
    }
    linear("mlp.down_proj", hidden, mlp, SplitAxis::kColumns, config_.mlp_bias);
  }

  const ModelConfig& config_;
  std::vector<ExpectedTensor> tensors_;
  int layer_ = 0;
  std::string prefix_;  // of the layer
};

}  // namespace

bool is_matrix(std::string_view name, std::size_t num_dimensions) {
  return num_dimensions > 1 && !name.ends_with(".bias") && !name.ends_with("_norm.weight") &&
         !name.ends_with(".conv.weight");
}
bool is_router(std::string_view name) { return name.ends_with(".mlp.router.weight"); }
bool is_of_experts(std::string_view name) { return name.find(".mlp.experts.") != name.npos; }

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  TensorList list(config);
  list.add("embed_tokens.weight", {config.vocab_size, config.hidden_size}, SplitAxis::kRows);
  if (const std::int64_t width = config.layer_embedding_size; width > 0) {
    const std::int64_t all = config.num_layers * width;
    list.add("embed_tokens_per_layer.weight", {config.vocab_size, all}, SplitAxis::kRows);
    list.add("per_layer_model_projection.weight", {all, config.hidden_size}, SplitAxis::kRows);
    list.add("per_layer_projection_norm.weight", {width});
  }
  for (int layer = 0; layer < config.num_layers; ++layer) list.add_layer(layer);
  if (config.norm_weights) list.add("norm.weight", {config.hidden_size});
  if (config.norm_bias) list.add("norm.bias", {config.hidden_size});
  if (!config.tied_embeddings)
    list.add("lm_head.weight", {config.vocab_size, config.hidden_size}, SplitAxis::kRows);
  if (config.head_bias) list.add("lm_head.bias", {config.vocab_size}, SplitAxis::kRows);
  return list.take();
}

}  // namespace tessera
