// What Gemma 4's layers have in a plan beside what other models' have: experts beside an MLP, embeddings of
// each layer, and numbers that the residual stream is multiplied by.
#include <cmath>

#include "model/execution_plan.h"

namespace tessera {

void ExecutionPlan::add_residual_norm(StepList& list, const char* name, int layer, const Weight& weight) {
  list.push_back({name, layer, [this, &weight](const StepShape& shape) {
                    run_norm(first_rows(residual_, shape.num_tokens), first_rows(normed_, shape.num_tokens),
                             weight, {}, residual_eps(), std::nullopt);
                  }});
}

void ExecutionPlan::add_mixture_beside_mlp_steps(StepList& list, int layer, LayerFusion fusion) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  list.push_back({"mlp_alone_out_norm", layer, [this, &weights](const StepShape& shape) {
                    run_norm(first_rows(delta_, shape.num_tokens), first_rows(mlp_sum_, shape.num_tokens),
                             weights.mlp_alone_out_norm, {}, config_.norm_eps, std::nullopt);
                  }});
  add_residual_norm(list, "router_norm", layer, weights.router_norm);
  add_expert_steps(list, layer, fusion, /*adds_residual=*/false);
  add_out_norm(list, "experts_out_norm", layer, weights.experts_out_norm);
  // Adds what the experts give to what the MLP gave, and norms the sum.
  list.push_back({"mlp_out_norm", layer, [this, &weights](const StepShape& shape) {
                    const Matrix delta = first_rows(delta_, shape.num_tokens);
                    run_norm(delta, delta, weights.mlp_out_norm, {}, config_.norm_eps,
                             first_rows(mlp_sum_, shape.num_tokens));
                  }});
}

void ExecutionPlan::copy_residual(const StepShape& shape, bool add_residual) {
  std::optional<Matrix> residual;
  if (add_residual) residual = first_rows(residual_, shape.num_tokens);
  run_norm(first_rows(add_residual ? delta_ : residual_, shape.num_tokens),
           first_rows(normed_, shape.num_tokens), copy_weights_, {}, kNormCopyEps, residual);
}

void ExecutionPlan::add_layer_embedding_steps(StepList& list) {
  const std::int64_t width = config_.layer_embedding_size;
  list.push_back({"layer_embeddings", -1, [this](const StepShape& shape) {
                    ops_.embedding({tokens(), weights_.layer_embeddings,
                                    first_rows(layer_embeddings_, shape.num_tokens)},
                                   ops_.stream());
                  }});
  // The mean of two, of which these are multiplied by the root of their length, has the variance of one.
  const float scale = std::sqrt(0.5f * static_cast<float>(width));
  list.push_back({"layer_embeddings_scale", -1, [this, scale](const StepShape& shape) {
                    ops_.scale({first_rows(layer_embeddings_, shape.num_tokens), scale}, ops_.stream());
                  }});
  list.push_back({"layer_embeddings_copy", -1,
                  [this](const StepShape& shape) { copy_residual(shape, /*add_residual=*/false); }});
  add_linear(list, "layer_embeddings_proj", -1, normed_, weights_.layer_embeddings_projection, no_bias_,
             layer_embeddings_projected_);
  list.push_back({"layer_embeddings_norm", -1, [this, width](const StepShape& shape) {
                    RmsNormArguments arguments;
                    arguments.x = first_rows(layer_embeddings_projected_, shape.num_tokens);
                    arguments.x.columns = width;
                    arguments.out = arguments.x;
                    arguments.weight = weights_.layer_embeddings_norm;
                    // As if what is normed had been divided by the root of hidden_size.
                    arguments.eps = config_.norm_eps * static_cast<float>(config_.hidden_size);
                    arguments.heads = config_.num_layers;
                    arguments.head_stride = width;
                    ops_.rms_norm(arguments, ops_.stream());
                  }});
  list.push_back({"layer_embeddings_add", -1, [this](const StepShape& shape) {
                    // The sum of a single slot, onto what is there.
                    CombineExpertsArguments arguments;
                    arguments.x = first_rows(layer_embeddings_projected_, shape.num_tokens);
                    arguments.weights = ones_buffer_.as<float>();
                    arguments.out = first_rows(layer_embeddings_, shape.num_tokens);
                    arguments.num_slots = 1;
                    arguments.accumulate = true;
                    ops_.combine_experts(arguments, ops_.stream());
                  }});
}

void ExecutionPlan::add_layer_embedding_steps(StepList& list, int layer) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const std::int64_t width = config_.layer_embedding_size;
  list.push_back({"layer_embedding_copy", layer,
                  [this](const StepShape& shape) { copy_residual(shape, /*add_residual=*/true); }});
  add_linear(list, "layer_embedding_gate", layer, normed_, weights.layer_gate, no_bias_, layer_gate_);
  list.push_back({"layer_embedding_activation", layer, [this, layer, width](const StepShape& shape) {
                    const Matrix gate = first_rows(layer_gate_, shape.num_tokens);
                    const Matrix embeddings =
                        columns_of(first_rows(layer_embeddings_, shape.num_tokens), layer * width, width);
                    ops_.gated_activation({gated_activation_of(config_.activation), gate, embeddings, gate},
                                          ops_.stream());
                  }});
  add_linear(list, "layer_embedding_proj", layer, layer_gate_, weights.layer_projection, no_bias_, delta_);
  add_out_norm(list, "layer_embedding_out_norm", layer, weights.layer_out_norm);
}

void ExecutionPlan::add_layer_scale(StepList& list, int layer) {
  const float scale = weights_.layers[static_cast<std::size_t>(layer)].layer_scale;
  list.push_back({"layer_scale", layer, [this, scale](const StepShape& shape) {
                    ops_.scale({first_rows(residual_, shape.num_tokens), scale}, ops_.stream());
                  }});
}

}  // namespace tessera
