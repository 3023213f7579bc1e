// The list of kernel calls that a plan is, and what each is called with.
#include <fmt/core.h>

#include <optional>
#include <string>
#include <utility>

#include "core/block_format.h"
#include "model/execution_plan.h"

namespace tessera {
namespace {

std::optional<Weight> optional_weight(const Weight& weight) {
  return weight ? std::optional(weight) : std::nullopt;
}

}  // namespace

GatedActivation gated_activation_of(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return GatedActivation::kGeGlu;
    case Activation::kGeluTanh:
      return GatedActivation::kGeGluTanh;
    case Activation::kClampedSilu:
      return GatedActivation::kClampedSwiGlu;
    case Activation::kReluSquared:
      return GatedActivation::kReluSquared;
    case Activation::kSilu:
      break;
  }
  return GatedActivation::kSwiGlu;
}

std::vector<ExecutionPlan::LayerFusion> ExecutionPlan::fusions(const StepShape& shape) const {
  std::vector<LayerFusion> result;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
    LayerFusion fusion;
    // RoPE that a kernel doesn't take, of a cache of another type, say, leaves it the rest.
    const bool norms = may_norm_in_products();
    if (attends(layer)) {
      fusion.rope = norms && config_.qk_norm == QkNorm::kNone && !config_.attention_gate &&
                    takes_normed_qkv(shape, layer, /*with_rope=*/true);
      fusion.qkv = fusion.rope || (norms && takes_normed_qkv(shape, layer, /*with_rope=*/false));
    } else {
      fusion.qkv = norms && weights.recurrent.in && ops_.takes_normed_gemm(normed_in_proj(shape, layer));
    }
    const bool is_mixture = has_experts(config_, layer);
    fusion.gate_up =
        norms && !is_mixture && weights.gate_up && ops_.takes_normed_gemm(normed_gate_up(shape, layer));
    fusion.gated =
        weights.gate_up && !fusion.gate_up &&
        ops_.takes_gated_gemm(gated_product(shape, layer), gated_activation_of(config_.activation));
    if (is_mixture) {
      fusion.experts_gated =
          weights.experts.gate_up && ops_.takes_fused_expert_gemm(gated_expert_product(shape, layer));
      fusion.combined = ops_.takes_fused_expert_gemm(combined_expert_product(shape, layer, false));
    }
    result.push_back(fusion);
  }
  return result;
}

ExecutionPlan::StepList ExecutionPlan::make_steps(const std::vector<LayerFusion>& fusions) {
  StepList list;
  list.push_back({"embedding", -1, [this](const StepShape& shape) {
                    ops_.embedding({tokens(), weights_.embedding, first_rows(residual_, shape.num_tokens)},
                                   ops_.stream());
                  }});
  if (const float scale = embedding_scale(); scale != 1) {
    list.push_back({"embedding_scale", -1, [this, scale](const StepShape& shape) {
                      ops_.scale({first_rows(residual_, shape.num_tokens), scale}, ops_.stream());
                    }});
  }
  if (config_.layer_embedding_size > 0) add_layer_embedding_steps(list);
  for (std::size_t i = 0; i < fusions.size(); ++i) {
    const int layer = static_cast<int>(i);
    if (attends(layer)) {
      add_attention_steps(list, layer, fusions[i]);
    } else {
      add_recurrent_steps(list, layer, fusions[i]);
    }
    // Behind the last layer the head's norm adds what comes out.
    add_mlp_steps(list, layer, fusions[i], i + 1 < fusions.size() && fusions[i + 1].qkv);
  }
  return list;
}

GemmArguments ExecutionPlan::product(const StepShape& shape, const Matrix& x, const Weight& weight,
                                     const Weight& bias, const Matrix& out) const {
  GemmArguments arguments;
  arguments.x = first_rows(x, shape.num_tokens);
  arguments.weight = weight;
  arguments.bias = optional_weight(bias);
  arguments.out = first_rows(out, shape.num_tokens);
  arguments.batch_invariant = options_.batch_invariant;
  return arguments;
}

void ExecutionPlan::add_linear(StepList& list, const std::string& name, int layer, Matrix x,
                               const Weight& weight, const Weight& bias, Matrix out) {
  list.push_back({name, layer, [this, x, &weight, &bias, out](const StepShape& shape) {
                    ops_.gemm(product(shape, x, weight, bias, out), ops_.stream());
                  }});
}

void ExecutionPlan::add_residual_linear(StepList& list, const char* name, int layer, Matrix x,
                                        const Weight& weight, const Weight& bias, bool adds_residual) {
  list.push_back({adds_residual ? fmt::format("{}+residual", name) : std::string(name), layer,
                  [this, x, &weight, &bias, adds_residual](const StepShape& shape) {
                    GemmArguments arguments =
                        product(shape, x, weight, bias, adds_residual ? residual_ : delta_);
                    arguments.accumulate = adds_residual;
                    ops_.gemm(arguments, ops_.stream());
                  }});
}

float ExecutionPlan::embedding_scale() const {
  float scale = config_.embedding_scale;
  if (config_.rounds_embedding_scale) {
    dispatch_activation(options_.activation_dtype, [&]<class T>() { scale = static_cast<float>(T(scale)); });
  }
  return scale / config_.residual_scale;
}

float ExecutionPlan::residual_eps() const {
  return config_.norm_eps / (config_.residual_scale * config_.residual_scale);
}

void ExecutionPlan::norm(const StepShape& shape, const Weight& weight, const Weight& bias,
                         bool add_residual) {
  const Matrix x = first_rows(add_residual ? delta_ : residual_, shape.num_tokens);
  std::optional<Matrix> residual;
  if (add_residual) residual = first_rows(residual_, shape.num_tokens);
  run_norm(x, first_rows(normed_, shape.num_tokens), config_.norms_before ? weight : copy_weights_, bias,
           config_.norms_before ? residual_eps() : kNormCopyEps, residual);
}

void ExecutionPlan::run_norm(const Matrix& x, const Matrix& out, const Weight& weight, const Weight& bias,
                             float eps, const std::optional<Matrix>& residual) {
  const auto filled = [&](auto arguments) {
    arguments.x = x;
    arguments.out = out;
    arguments.weight = weight;
    arguments.eps = eps;
    arguments.residual = residual;
    return arguments;
  };
  if (config_.norm == NormKind::kLayer) {
    LayerNormArguments arguments = filled(LayerNormArguments{});
    arguments.bias = optional_weight(bias);
    ops_.layer_norm(arguments, ops_.stream());
  } else {
    ops_.rms_norm(filled(RmsNormArguments{}), ops_.stream());
  }
}

void ExecutionPlan::add_out_norm(StepList& list, const char* name, int layer, const Weight& weight) {
  list.push_back({name, layer, [this, &weight](const StepShape& shape) {
                    const Matrix delta = first_rows(delta_, shape.num_tokens);
                    run_norm(delta, delta, weight, {}, config_.norm_eps, std::nullopt);
                  }});
}

void ExecutionPlan::add_head_norm(StepList& list, const char* name, int layer, const Weight& weight,
                                  Matrix heads, int num_heads, int head_dim) {
  if (config_.qk_norm == QkNorm::kAllHeads) {
    num_heads = 1;
  } else {
    heads.columns = head_dim;
  }
  const auto run = [this, &weight, heads, num_heads, head_dim](const StepShape& shape) {
    const auto filled = [&](auto arguments) {
      arguments.x = first_rows(heads, shape.num_tokens);
      arguments.out = arguments.x;
      arguments.weight = weight;
      arguments.eps = config_.norm_eps;
      // As if RoPE had multiplied what is normed.
      if (config_.qk_norm_after_rope) arguments.eps /= rope_.attention_factor * rope_.attention_factor;
      arguments.heads = num_heads;
      arguments.head_stride = head_dim;
      return arguments;
    };
    if (config_.qk_norm == QkNorm::kOwnEachHead) {
      ops_.layer_norm(filled(LayerNormArguments{}), ops_.stream());
    } else {
      ops_.rms_norm(filled(RmsNormArguments{}), ops_.stream());
    }
  };
  list.push_back({name, layer, run});
}

NormedGemmArguments ExecutionPlan::normed_qkv(const StepShape& shape, int layer, bool with_rope) const {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  NormedGemmArguments arguments;
  if (weights.qkv) {
    arguments.gemm = product(shape, residual_, weights.qkv, weights.qkv_bias, projections(layer).qkv);
  } else {
    arguments.gemm = product(shape, residual_, weights.qk, weights.qk_bias, projections(layer).qkv);
    arguments.lower = {weights.v, optional_weight(weights.v_bias)};
  }
  arguments.norm_weight = weights.input_norm;
  arguments.eps = residual_eps();
  if (with_rope) arguments.rope = rope_arguments(shape, layer);
  return arguments;
}

bool ExecutionPlan::takes_normed_qkv(const StepShape& shape, int layer, bool with_rope) const {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  return (weights.qkv || (weights.qk && weights.v)) &&
         ops_.takes_normed_gemm(normed_qkv(shape, layer, with_rope));
}

NormedGemmArguments ExecutionPlan::normed_gate_up(const StepShape& shape, int layer) const {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  NormedGemmArguments arguments;
  arguments.gemm = product(shape, residual_, weights.gate_up, weights.gate_up_bias, gate(layer));
  arguments.norm_weight = weights.post_attention_norm;
  arguments.eps = residual_eps();
  arguments.activation = gated_activation_of(config_.activation);
  return arguments;
}

RopeAppendArguments ExecutionPlan::rope_arguments(const StepShape& shape, int layer) const {
  RopeAppendArguments arguments;
  const Projections& made = projections(layer);
  const KvSizes sizes = kv_sizes(config_, layer);
  arguments.q = first_rows(made.q, shape.num_tokens);
  arguments.k = first_rows(made.k, shape.num_tokens);
  arguments.v = first_rows(made.v, shape.num_tokens);
  arguments.num_heads = config_.num_heads;
  arguments.num_kv_heads = sizes.num_kv_heads;
  arguments.head_dim = sizes.head_dim;
  arguments.positions = positions_;
  arguments.sequences = sequences_;
  const std::vector<bool>& uses_rope = config_.layer_uses_rope;
  const bool turns = uses_rope.empty() || uses_rope[static_cast<std::size_t>(layer)];
  const bool is_sliding = slides(config_, layer);
  const RopeFrequencies& rope = is_sliding ? sliding_rope_ : rope_;
  arguments.num_pairs = static_cast<int>(rope.inverse_frequencies.size());
  arguments.inverse_frequencies = frequencies_.as<float>() + (!turns       ? no_frequencies_
                                                              : is_sliding ? sliding_frequencies_
                                                                           : 0);
  arguments.attention_factor = turns ? rope.attention_factor : 1;
  if (config_.qk_norm_after_rope) arguments.attention_factor = 1;  // which norms behind it take away
  arguments.pairing = config_.rope.pairing;
  arguments.cache = cache_[static_cast<std::size_t>(layer)];
  arguments.cache.block_table = descriptors_.block_table;
  arguments.cache.block_table_stride = descriptors_.block_table_stride;
  return arguments;
}

void ExecutionPlan::scale_queries(const StepShape& shape) {
  // The sum of a single slot is a row multiplied by a number of its own.
  CombineExpertsArguments arguments;
  arguments.x = arguments.out = first_rows(usual_.q, shape.num_tokens);
  arguments.weights = query_scales_;
  arguments.num_slots = 1;
  ops_.combine_experts(arguments, ops_.stream());
}

void ExecutionPlan::add_qkv_steps(StepList& list, int layer) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const Projections& made = projections(layer);
  if (weights.qkv)
    return add_linear(list, "qkv_proj", layer, normed_, weights.qkv, weights.qkv_bias, made.qkv);
  if (weights.qk) {
    add_linear(list, "qk_proj", layer, normed_, weights.qk, weights.qk_bias, made.qk);
  } else {
    add_linear(list, "q_proj", layer, normed_, weights.q, weights.q_bias, made.q);
    if (weights.k) add_linear(list, "k_proj", layer, normed_, weights.k, weights.k_bias, made.k);
  }
  if (weights.v) add_linear(list, "v_proj", layer, normed_, weights.v, weights.v_bias, made.v);
  if (config_.attention_gate)
    add_linear(list, "gate_proj", layer, normed_, weights.attention_gate, weights.attention_gate_bias,
               made.gate);
}

void ExecutionPlan::add_rope_steps(StepList& list, int layer, bool is_fused) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const Projections& made = projections(layer);
  const KvSizes sizes = kv_sizes(config_, layer);
  const bool makes_kv = kv_layer(config_, layer) == layer, norms = config_.qk_norm != QkNorm::kNone;
  if (config_.v_norm && makes_kv) {  // first, of values that are the keys before their norm
    list.push_back({"v_norm", layer, [this, layer, &made, sizes](const StepShape& shape) {
                      RmsNormArguments arguments;
                      arguments.x =
                          first_rows(has_keys_as_values(config_, layer) ? made.k : made.v, shape.num_tokens);
                      arguments.out = first_rows(made.v, shape.num_tokens);
                      arguments.x.columns = arguments.out.columns = sizes.head_dim;
                      arguments.weight = v_norm_;
                      arguments.weight.columns = sizes.head_dim;
                      arguments.eps = config_.norm_eps;
                      arguments.heads = sizes.num_kv_heads;
                      arguments.head_stride = sizes.head_dim;
                      ops_.rms_norm(arguments, ops_.stream());
                    }});
  }
  if (norms && !config_.qk_norm_after_rope)
    add_head_norm(list, "q_norm", layer, weights.q_norm, made.q, config_.num_heads, sizes.head_dim);
  if (norms && makes_kv)
    add_head_norm(list, "k_norm", layer, weights.k_norm, made.k, sizes.num_kv_heads, sizes.head_dim);
  if (!makes_kv) {
    list.push_back({"rope", layer, [this, layer](const StepShape& shape) {
                      const RopeAppendArguments of_all = rope_arguments(shape, layer);
                      RopeArguments arguments;
                      arguments.x = of_all.q;
                      arguments.heads = of_all.num_heads;
                      arguments.head_dim = of_all.head_dim;
                      arguments.positions = of_all.positions;
                      arguments.inverse_frequencies = of_all.inverse_frequencies;
                      arguments.num_pairs = of_all.num_pairs;
                      arguments.attention_factor = of_all.attention_factor;
                      arguments.pairing = of_all.pairing;
                      ops_.rope(arguments, ops_.stream());
                    }});
  } else if (!is_fused) {
    list.push_back({"rope_append", layer, [this, layer](const StepShape& shape) {
                      ops_.rope_append(rope_arguments(shape, layer), ops_.stream());
                    }});
  }
  if (config_.qk_norm_after_rope)
    add_head_norm(list, "q_norm", layer, weights.q_norm, made.q, config_.num_heads, sizes.head_dim);
}

void ExecutionPlan::add_attention_steps(StepList& list, int layer, LayerFusion fusion) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  if (config_.latent) {
    add_latent_steps(list, layer);
    return add_residual_linear(list, "o_proj", layer, usual_.attended, weights.o, weights.o_bias,
                               fusion.gate_up);
  }
  if (fusion.qkv) {
    const bool with_rope = fusion.rope;
    list.push_back({with_rope ? "input_norm+qkv_proj+rope_append" : "input_norm+qkv_proj", layer,
                    [this, layer, with_rope](const StepShape& shape) {
                      ops_.normed_gemm(normed_qkv(shape, layer, with_rope), ops_.stream());
                    }});
  } else {
    list.push_back({"input_norm", layer, [this, layer, &weights](const StepShape& shape) {
                      norm(shape, weights.input_norm, weights.input_norm_bias, layer > 0);
                    }});
    add_qkv_steps(list, layer);
  }
  if (config_.parallel_norms) add_mlp_norm(list, layer, false);
  add_rope_steps(list, layer, fusion.rope);
  if (scales_queries())
    list.push_back({"query_scale", layer, [this](const StepShape& shape) { scale_queries(shape); }});
  list.push_back({kAttentionStep, layer, [this, layer](const StepShape& shape) {
                    attention_of(layer).run(attention_call(shape, layer));
                  }});
  const Matrix& attended = projections(layer).attended;
  if (config_.attention_gate) {
    list.push_back(
        {"attention_gate", layer, [this, &attended, &gate = projections(layer).gate](const StepShape& shape) {
           const Matrix rows = first_rows(attended, shape.num_tokens);
           ops_.gated_activation({GatedActivation::kSigmoid, first_rows(gate, shape.num_tokens), rows, rows},
                                 ops_.stream());
         }});
  }
  add_residual_linear(list, "o_proj", layer, attended, weights.o, weights.o_bias,
                      fusion.gate_up || config_.parallel_blocks);
  if (config_.norms_after) add_out_norm(list, "attention_out_norm", layer, weights.attention_out_norm);
}

void ExecutionPlan::add_mlp_norm(StepList& list, int layer, bool add_residual) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  list.push_back({"post_attention_norm", layer, [this, &weights, add_residual](const StepShape& shape) {
                    norm(shape, weights.post_attention_norm, weights.post_attention_norm_bias, add_residual);
                  }});
}

void ExecutionPlan::add_mlp_steps(StepList& list, int layer, LayerFusion fusion, bool adds_residual) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const bool is_mixture = has_experts(config_, layer);
  if (fusion.gate_up) {
    list.push_back(
        {"post_attention_norm+gate_up_proj+activation", layer, [this, layer](const StepShape& shape) {
           ops_.normed_gemm(normed_gate_up(shape, layer), ops_.stream());
         }});
  } else {
    if (!config_.parallel_blocks) add_mlp_norm(list, layer, true);
    if (!is_mixture || shares_expert() || config_.mixture->beside_mlp)
      add_gate_up_steps(list, layer, fusion.gated);
  }
  if (is_mixture && config_.mixture->beside_mlp) {
    add_linear(list, "down_proj", layer, gate(layer), weights.down, weights.down_bias, delta_);
    add_mixture_beside_mlp_steps(list, layer, fusion);
  } else if (!is_mixture) {
    add_residual_linear(list, "down_proj", layer, gate(layer), weights.down, weights.down_bias,
                        adds_residual);
  } else {
    if (shares_expert()) add_shared_expert_steps(list, layer, adds_residual);
    add_expert_steps(list, layer, fusion, adds_residual);
  }
  // That of a mixture beside an MLP normed what it added up.
  if (config_.norms_after && !(is_mixture && config_.mixture->beside_mlp))
    add_out_norm(list, "mlp_out_norm", layer, weights.mlp_out_norm);
  if (config_.layer_embedding_size > 0) add_layer_embedding_steps(list, layer);
  if (weights.layer_scale != 1) add_layer_scale(list, layer);
}

void ExecutionPlan::add_gate_up_steps(StepList& list, int layer, bool is_gated) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const std::string prefix = has_experts(config_, layer) && shares_expert() ? "shared_expert_" : "";
  if (is_gated) {
    list.push_back({prefix + "gate_up_proj+activation", layer, [this, layer](const StepShape& shape) {
                      ops_.gated_gemm(gated_product(shape, layer), gated_activation_of(config_.activation),
                                      ops_.stream());
                    }});
    return;
  }
  if (weights.gate_up) {
    add_linear(list, prefix + "gate_up_proj", layer, normed_, weights.gate_up, weights.gate_up_bias,
               columns_of(gate_up_, 0, 2 * mlp_width(layer)));
  } else if (!config_.gated_mlp) {
    add_linear(list, prefix + "up_proj", layer, normed_, weights.up, weights.up_bias, gate(layer));
  } else {
    add_linear(list, prefix + "gate_proj", layer, normed_, weights.gate, weights.gate_bias, gate(layer));
    add_linear(list, prefix + "up_proj", layer, normed_, weights.up, weights.up_bias, up(layer));
  }
  list.push_back(
      {prefix + "activation", layer, [this, layer](const StepShape& shape) { activate(shape, layer); }});
}

void ExecutionPlan::add_shared_expert_steps(StepList& list, int layer, bool adds_residual) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  if (!weights.shared_gate) {
    add_residual_linear(list, "shared_expert_down_proj", layer, gate(layer), weights.down, weights.down_bias,
                        adds_residual);
    return;
  }
  add_linear(list, "shared_expert_down_proj", layer, gate(layer), weights.down, weights.down_bias, delta_);
  add_linear(list, "shared_expert_gate", layer, normed_, weights.shared_gate, no_bias_, shared_gate_logits_);
  // A gate's sigmoid is the weight of a single expert.
  list.push_back({"shared_expert_sigmoid", layer, [this](const StepShape& shape) {
                    RouteExpertsArguments arguments;
                    arguments.logits = first_rows(shared_gate_logits_, shape.num_tokens);
                    arguments.routing = shared_gating_;
                    arguments.scoring = ExpertScoring::kSigmoid;
                    ops_.route_experts(arguments, ops_.stream());
                  }});
  list.push_back({adds_residual ? "shared_expert_scale+residual" : "shared_expert_scale", layer,
                  [this, adds_residual](const StepShape& shape) {
                    CombineExpertsArguments arguments;
                    arguments.x = first_rows(delta_, shape.num_tokens);
                    arguments.weights = shared_gating_.weights;
                    arguments.out = first_rows(adds_residual ? residual_ : delta_, shape.num_tokens);
                    arguments.num_slots = 1;
                    arguments.accumulate = adds_residual;
                    ops_.combine_experts(arguments, ops_.stream());
                  }});
}

ExpertGemmArguments ExecutionPlan::expert_product(const StepShape& shape, const Matrix& x,
                                                  const Weight& weight, const Weight& bias,
                                                  const Matrix& out) const {
  const std::int64_t slots = shape.num_tokens * routing_.num_slots;
  ExpertGemmArguments arguments;
  // normed_ has a row for each token, what experts gave one for each slot.
  arguments.x = first_rows(x, x.data == normed_.data ? shape.num_tokens : slots);
  arguments.weight = weight;
  arguments.bias = optional_weight(bias);
  arguments.out = first_rows(out, slots);
  arguments.routing = routing_;
  arguments.batch_invariant = options_.batch_invariant;
  return arguments;
}

ExpertGemmArguments ExecutionPlan::gated_expert_product(const StepShape& shape, int layer) const {
  const ExpertWeights& experts = weights_.layers[static_cast<std::size_t>(layer)].experts;
  ExpertGemmArguments arguments =
      expert_product(shape, normed_, experts.gate_up, experts.gate_up_bias, expert_gate_);
  arguments.activation = gated_activation_of(config_.activation);
  return arguments;
}

ExpertGemmArguments ExecutionPlan::combined_expert_product(const StepShape& shape, int layer,
                                                           bool adds_residual) const {
  const ExpertWeights& experts = weights_.layers[static_cast<std::size_t>(layer)].experts;
  ExpertGemmArguments arguments =
      expert_product(shape, expert_gate_, experts.down, experts.down_bias, expert_results_);
  arguments.out = first_rows(adds_residual ? residual_ : delta_, shape.num_tokens);
  arguments.combines = true;
  arguments.accumulate = adds_residual || shares_expert();
  return arguments;
}

void ExecutionPlan::add_expert_product(StepList& list, const char* name, int layer, Matrix x,
                                       const Weight& weight, const Weight& bias, Matrix out) {
  list.push_back({name, layer, [this, x, &weight, &bias, out](const StepShape& shape) {
                    ops_.expert_gemm(expert_product(shape, x, weight, bias, out), ops_.stream());
                  }});
}

void ExecutionPlan::add_expert_steps(StepList& list, int layer, LayerFusion fusion, bool adds_residual) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const ExpertWeights& experts = weights.experts;
  add_linear(list, "router", layer, normed_, weights.router, weights.router_bias, router_logits_);
  list.push_back({"route_experts", layer, [this, layer](const StepShape& shape) {
                    ops_.route_experts(routing_arguments(shape, layer), ops_.stream());
                  }});
  if (config_.mixture->beside_mlp) add_residual_norm(list, "experts_norm", layer, weights.experts_norm);
  if (fusion.experts_gated) {
    list.push_back({"experts_gate_up+activation", layer, [this, layer](const StepShape& shape) {
                      ops_.expert_gemm(gated_expert_product(shape, layer), ops_.stream());
                    }});
  } else {
    if (experts.gate_up) {
      add_expert_product(list, "experts_gate_up", layer, normed_, experts.gate_up, experts.gate_up_bias,
                         expert_gate_up_);
    } else {
      add_expert_product(list, "experts_gate", layer, normed_, experts.gate, experts.gate_bias, expert_gate_);
      add_expert_product(list, "experts_up", layer, normed_, experts.up, experts.up_bias, expert_up_);
    }
    list.push_back({"experts_activation", layer, [this](const StepShape& shape) {
                      const std::int64_t slots = shape.num_tokens * routing_.num_slots;
                      const Matrix gate = first_rows(expert_gate_, slots);
                      ops_.gated_activation({gated_activation_of(config_.activation), gate,
                                             first_rows(expert_up_, slots), gate},
                                            ops_.stream());
                    }});
  }
  const std::string ending = adds_residual ? "+residual" : "";
  if (fusion.combined) {
    list.push_back({"experts_down+combine_experts" + ending, layer,
                    [this, layer, adds_residual](const StepShape& shape) {
                      ops_.expert_gemm(combined_expert_product(shape, layer, adds_residual), ops_.stream());
                    }});
  } else {
    add_expert_product(list, "experts_down", layer, expert_gate_, experts.down, experts.down_bias,
                       expert_results_);
    list.push_back({"combine_experts" + ending, layer, [this, adds_residual](const StepShape& shape) {
                      CombineExpertsArguments arguments;
                      arguments.x = first_rows(expert_results_, shape.num_tokens * routing_.num_slots);
                      arguments.weights = routing_.weights;
                      arguments.out = first_rows(adds_residual ? residual_ : delta_, shape.num_tokens);
                      arguments.num_slots = routing_.num_slots;
                      arguments.accumulate = adds_residual || shares_expert();
                      ops_.combine_experts(arguments, ops_.stream());
                    }});
  }
}

RouteExpertsArguments ExecutionPlan::routing_arguments(const StepShape& shape, int layer) const {
  const MixtureConfig& mixture = *config_.mixture;
  RouteExpertsArguments arguments;
  arguments.logits = first_rows(router_logits_, shape.num_tokens);
  arguments.routing = routing_;
  arguments.normalized = mixture.normalized;
  arguments.scoring = mixture.scoring;
  arguments.score_bias =
      static_cast<const float*>(weights_.layers[static_cast<std::size_t>(layer)].score_bias.data);
  arguments.num_groups = mixture.num_groups;
  arguments.num_groups_used = mixture.num_groups_per_token;
  arguments.num_experts_of_group = mixture.num_experts_of_group;
  arguments.weight_scale = mixture.weight_scale;
  arguments.expert_scales =
      static_cast<const float*>(weights_.layers[static_cast<std::size_t>(layer)].expert_scales.data);
  return arguments;
}

GemmArguments ExecutionPlan::gated_product(const StepShape& shape, int layer) const {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  return product(shape, normed_, weights.gate_up, weights.gate_up_bias, gate(layer));
}

void ExecutionPlan::activate(const StepShape& shape, int layer) {
  const Matrix gate_rows = first_rows(gate(layer), shape.num_tokens);
  std::optional<Matrix> up_rows;
  if (config_.gated_mlp) up_rows = first_rows(up(layer), shape.num_tokens);
  ops_.gated_activation({gated_activation_of(config_.activation), gate_rows, up_rows, gate_rows},
                        ops_.stream());
}

}  // namespace tessera
