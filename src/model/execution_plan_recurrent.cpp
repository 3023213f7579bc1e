// Layers without attention in a plan: short convolutions and gated delta nets, whose sequences keep a state.
#include <algorithm>

#include "model/execution_plan.h"

namespace tessera {

void ExecutionPlan::allocate_recurrent_buffers(DType dtype, std::int64_t rows) {
  const auto matrix = [&](DeviceBuffer& buffer, const char* what, std::int64_t columns) {
    return allocate_matrix(buffer, what, dtype, rows, columns);
  };
  if (config_.short_conv) {
    mix_ = matrix(mix_buffer_, "a convolution's input and gates", 3 * config_.hidden_size);
    mixed_ = matrix(mixed_buffer_, "a convolution's output", config_.hidden_size);
    return;
  }
  const GatedDeltaConfig& delta = *config_.gated_delta;
  mix_ = matrix(mix_buffer_, "a delta net's input",
                delta.conv_columns() + delta.value_columns() + 2 * delta.num_value_heads);
  conv_ = matrix(conv_buffer_, "a delta net's queries, keys and values", delta.conv_columns());
  mixed_ = matrix(mixed_buffer_, "a delta net's output", delta.value_columns());
}

SequenceRows ExecutionPlan::sequence_rows(const StepShape& shape) const {
  return {descriptors_.cu_seqlens, descriptors_.seq_lens_kv, state_slots_, shape.batch,
          shape.seq_len_q,         options_.max_batch};
}

NormedGemmArguments ExecutionPlan::normed_in_proj(const StepShape& shape, int layer) const {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  NormedGemmArguments arguments;
  arguments.gemm = product(shape, residual_, weights.recurrent.in, weights.recurrent.in_bias, mix_);
  arguments.norm_weight = weights.input_norm;
  arguments.eps = residual_eps();
  return arguments;
}

void ExecutionPlan::short_conv(const StepShape& shape, int layer) {
  const RecurrentWeights& weights = weights_.layers[static_cast<std::size_t>(layer)].recurrent;
  const Matrix mix = first_rows(mix_, shape.num_tokens);
  CausalConvArguments arguments;
  arguments.x_gate = columns_of(mix, 0, config_.hidden_size);
  arguments.out_gate = columns_of(mix, config_.hidden_size, config_.hidden_size);
  arguments.x = columns_of(mix, 2 * config_.hidden_size, config_.hidden_size);
  arguments.weight = weights.conv;
  if (weights.conv_bias) arguments.bias = weights.conv_bias;
  arguments.out = first_rows(mixed_, shape.num_tokens);
  arguments.state = states_[static_cast<std::size_t>(layer)].conv;
  arguments.sequences = sequence_rows(shape);
  ops_.causal_conv(arguments, ops_.stream());
}

void ExecutionPlan::delta_conv(const StepShape& shape, int layer) {
  CausalConvArguments arguments;
  arguments.x = columns_of(first_rows(mix_, shape.num_tokens), 0, config_.gated_delta->conv_columns());
  arguments.weight = weights_.layers[static_cast<std::size_t>(layer)].recurrent.conv;
  arguments.is_activated = true;
  arguments.out = first_rows(conv_, shape.num_tokens);
  arguments.state = states_[static_cast<std::size_t>(layer)].conv;
  arguments.sequences = sequence_rows(shape);
  ops_.causal_conv(arguments, ops_.stream());
}

void ExecutionPlan::gated_delta(const StepShape& shape, int layer) {
  const RecurrentWeights& weights = weights_.layers[static_cast<std::size_t>(layer)].recurrent;
  const GatedDeltaConfig& delta = *config_.gated_delta;
  const Matrix qkv = first_rows(conv_, shape.num_tokens), mix = first_rows(mix_, shape.num_tokens);
  const std::int64_t keys = delta.key_columns(), values = delta.value_columns();
  const std::int64_t first_number = delta.conv_columns() + values;
  GatedDeltaArguments arguments;
  arguments.q = columns_of(qkv, 0, keys);
  arguments.k = columns_of(qkv, keys, keys);
  arguments.v = columns_of(qkv, 2 * keys, values);
  arguments.b = columns_of(mix, first_number, delta.num_value_heads);
  arguments.a = columns_of(mix, first_number + delta.num_value_heads, delta.num_value_heads);
  arguments.a_log = weights.a_log;
  arguments.dt_bias = weights.dt_bias;
  arguments.num_key_heads = delta.num_key_heads;
  arguments.num_value_heads = delta.num_value_heads;
  arguments.takes_turns = delta.takes_turns;
  arguments.key_dim = delta.key_dim;
  arguments.value_dim = delta.value_dim;
  arguments.out = first_rows(mixed_, shape.num_tokens);
  arguments.state = states_[static_cast<std::size_t>(layer)].matrix;
  arguments.sequences = sequence_rows(shape);
  ops_.gated_delta(arguments, ops_.stream());
}

void ExecutionPlan::add_recurrent_steps(StepList& list, int layer, LayerFusion fusion) {
  const LayerWeights& layer_weights = weights_.layers[static_cast<std::size_t>(layer)];
  const RecurrentWeights& weights = layer_weights.recurrent;
  if (fusion.qkv) {
    list.push_back({"input_norm+in_proj", layer, [this, layer](const StepShape& shape) {
                      ops_.normed_gemm(normed_in_proj(shape, layer), ops_.stream());
                    }});
  } else {
    list.push_back({"input_norm", layer, [this, layer, &layer_weights](const StepShape& shape) {
                      norm(shape, layer_weights.input_norm, layer_weights.input_norm_bias, layer > 0);
                    }});
    if (weights.in) add_linear(list, "in_proj", layer, normed_, weights.in, weights.in_bias, mix_);
  }
  if (config_.short_conv) {
    list.push_back(
        {"short_conv", layer, [this, layer](const StepShape& shape) { short_conv(shape, layer); }});
  } else {
    const GatedDeltaConfig& delta = *config_.gated_delta;
    const Matrix z = columns_of(mix_, delta.conv_columns(), delta.value_columns());
    if (!weights.in) {
      const std::int64_t heads = delta.num_value_heads, first_number = z.columns;
      const Matrix zba = columns_of(mix_, delta.conv_columns(), first_number + 2 * heads);
      add_linear(list, "qkv_proj", layer, normed_, weights.qkv, no_bias_,
                 columns_of(mix_, 0, delta.conv_columns()));
      if (weights.zba) {
        add_linear(list, "zba_proj", layer, normed_, weights.zba, no_bias_, zba);
      } else {
        add_linear(list, "z_proj", layer, normed_, weights.z, no_bias_, z);
        add_linear(list, "b_proj", layer, normed_, weights.b, no_bias_, columns_of(zba, first_number, heads));
        add_linear(list, "a_proj", layer, normed_, weights.a, no_bias_,
                   columns_of(zba, first_number + heads, heads));
      }
    }
    list.push_back(
        {"short_conv", layer, [this, layer](const StepShape& shape) { delta_conv(shape, layer); }});
    list.push_back(
        {"gated_delta", layer, [this, layer](const StepShape& shape) { gated_delta(shape, layer); }});
    list.push_back({"values_norm", layer, [this, &weights, &delta](const StepShape& shape) {
                      RmsNormArguments arguments;
                      arguments.x = first_rows(mixed_, shape.num_tokens);
                      arguments.x.columns = delta.value_dim;
                      arguments.out = arguments.x;
                      arguments.weight = weights.norm;
                      arguments.eps = config_.norm_eps;
                      arguments.heads = delta.num_value_heads;
                      arguments.head_stride = delta.value_dim;
                      ops_.rms_norm(arguments, ops_.stream());
                    }});
    list.push_back({"values_gate", layer, [this, z](const StepShape& shape) {
                      const Matrix mixed = first_rows(mixed_, shape.num_tokens);
                      ops_.gated_activation(
                          {GatedActivation::kSwiGlu, first_rows(z, shape.num_tokens), mixed, mixed},
                          ops_.stream());
                    }});
  }
  add_residual_linear(list, "out_proj", layer, mixed_, weights.out, weights.out_bias, fusion.gate_up);
  if (config_.norms_after) add_out_norm(list, "mixer_out_norm", layer, layer_weights.attention_out_norm);
}

}  // namespace tessera
