// Latent attention in a plan: products of heads, each with a matrix of its own, before and behind attention
// of rows that all heads share.
#include <utility>

#include "model/execution_plan.h"

namespace tessera {
namespace {

/// A row for each head of `matrix`'s rows, of the head's columns [begin, begin + count).
Matrix rows_of_heads(const Matrix& matrix, std::int64_t num_tokens, int num_heads, std::int64_t head_columns,
                     std::int64_t begin, std::int64_t count) {
  Matrix heads = columns_of(matrix, begin, count);
  heads.rows = num_tokens * num_heads;
  heads.row_stride = head_columns;
  return heads;
}

}  // namespace

void ExecutionPlan::allocate_latent_buffers(DType dtype, std::int64_t rows) {
  const LatentAttentionConfig& latent = *config_.latent;
  const std::int64_t heads = config_.num_heads;
  const auto matrix = [&](DeviceBuffer& buffer, const char* what, std::int64_t columns) {
    return allocate_matrix(buffer, what, dtype, rows, columns);
  };
  if (latent.q_rank > 0) q_rank_ = matrix(q_rank_buffer_, "queries' latents", latent.q_rank);
  // RoPE takes rows from where a head's turned part begins, which end as far behind the last.
  latent_q_ = first_rows(
      allocate_matrix(latent_q_buffer_, "queries", dtype, rows + 1, heads * latent.query_dim()), rows);
  latent_kv_ = matrix(latent_kv_buffer_, "keys' and values' latents", config_.head_dim);
  usual_.q = matrix(qkv_buffer_, "queries of latents", heads * config_.head_dim);
  latent_attended_ = matrix(latent_attended_buffer_, "attended latents", heads * latent.kv_rank);
  usual_.attended = matrix(attended_buffer_, "attention output", heads * latent.value_dim);
  const auto slots = static_cast<std::size_t>(rows * heads);
  host_heads_.resize(2 * slots + static_cast<std::size_t>(heads) + 1);
  heads_buffer_ = ops_.allocate(host_heads_.size() * sizeof(std::int32_t), "heads of tokens");
  heads_.num_experts = heads_.num_slots = config_.num_heads;
  heads_.experts = heads_buffer_.as<std::int32_t>();
  heads_.order = heads_.experts + slots;
  heads_.offsets = heads_.order + slots;
  ones_buffer_ = upload_numbers(std::vector<float>(slots, 1.0f), "weights that copy");
  heads_.weights = ones_buffer_.as<float>();
}

void ExecutionPlan::group_heads(std::int64_t num_tokens) {
  if (heads_of_tokens_ == num_tokens) return;
  heads_of_tokens_ = num_tokens;
  const std::int32_t num_heads = config_.num_heads;
  std::int32_t* const experts = host_heads_.data();
  std::int32_t* const order = experts + (heads_.order - heads_.experts);
  std::int32_t* const offsets = experts + (heads_.offsets - heads_.experts);
  const auto tokens = static_cast<std::int32_t>(num_tokens);
  for (std::int32_t token = 0; token < tokens; ++token) {
    for (std::int32_t head = 0; head < num_heads; ++head) {
      experts[token * num_heads + head] = head;
      order[head * tokens + token] = token * num_heads + head;
    }
  }
  for (std::int32_t head = 0; head <= num_heads; ++head) offsets[head] = head * tokens;
  ops_.upload(heads_buffer_.data.get(), host_heads_.data(), host_heads_.size() * sizeof(std::int32_t),
              ops_.stream());
}

ExpertGemmArguments ExecutionPlan::head_product(Matrix x, const Weight& weight, Matrix out) const {
  ExpertGemmArguments arguments;
  arguments.x = x;
  arguments.weight = weight;
  arguments.out = out;
  arguments.routing = heads_;
  arguments.batch_invariant = options_.batch_invariant;
  return arguments;
}

void ExecutionPlan::add_latent_steps(StepList& list, int layer) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const LatentAttentionConfig& latent = *config_.latent;
  const auto norm_rows = [this](const Matrix& rows, const Weight& weight) {
    RmsNormArguments arguments;
    arguments.x = arguments.out = rows;
    arguments.weight = weight;
    arguments.eps = kLatentNormEps;
    ops_.rms_norm(arguments, ops_.stream());
  };
  list.push_back({"input_norm", layer, [this, layer, &weights](const StepShape& shape) {
                    norm(shape, weights.input_norm, weights.input_norm_bias, layer > 0);
                  }});
  if (latent.q_rank > 0) {
    add_linear(list, "q_a_proj", layer, normed_, weights.latent.q_a, no_bias_, q_rank_);
    list.push_back({"q_a_norm", layer, [this, norm_rows, &weights](const StepShape& shape) {
                      norm_rows(first_rows(q_rank_, shape.num_tokens), weights.latent.q_a_norm);
                    }});
  }
  add_linear(list, "q_proj", layer, latent.q_rank > 0 ? q_rank_ : normed_, weights.q, no_bias_, latent_q_);
  add_linear(list, "kv_a_proj", layer, normed_, weights.latent.kv_a, no_bias_, latent_kv_);
  list.push_back({"kv_a_norm", layer, [this, norm_rows, &weights](const StepShape& shape) {
                    norm_rows(
                        columns_of(first_rows(latent_kv_, shape.num_tokens), 0, config_.latent->kv_rank),
                        weights.latent.kv_a_norm);
                  }});
  list.push_back({"rope", layer, [this](const StepShape& shape) { turn_latents(shape); }});
  list.push_back({"append", layer, [this, layer](const StepShape& shape) {
                    RopeAppendArguments arguments = rope_arguments(shape, layer);
                    arguments.k = arguments.v = first_rows(latent_kv_, shape.num_tokens);
                    arguments.num_pairs = 0;  // it is turned already
                    ops_.rope_append(arguments, ops_.stream());
                  }});
  list.push_back({"k_b_proj", layer, [this, &weights](const StepShape& shape) {
                    const LatentAttentionConfig& sizes = *config_.latent;
                    const auto heads_of = [&](const Matrix& matrix, std::int64_t columns, std::int64_t begin,
                                              std::int64_t count) {
                      return rows_of_heads(matrix, shape.num_tokens, config_.num_heads, columns, begin,
                                           count);
                    };
                    ops_.expert_gemm(head_product(heads_of(latent_q_, sizes.query_dim(), 0, sizes.nope_dim),
                                                  weights.latent.k_b,
                                                  heads_of(usual_.q, config_.head_dim, 0, sizes.kv_rank)),
                                     ops_.stream());
                    // What RoPE turned goes behind it as it is: the sum of a single slot, times 1.
                    CombineExpertsArguments copy;
                    copy.x = heads_of(latent_q_, sizes.query_dim(), sizes.nope_dim, sizes.rope_dim);
                    copy.out = heads_of(usual_.q, config_.head_dim, sizes.kv_rank, sizes.rope_dim);
                    copy.weights = heads_.weights;
                    copy.num_slots = 1;
                    ops_.combine_experts(copy, ops_.stream());
                  }});
  list.push_back({kAttentionStep, layer,
                  [this, layer](const StepShape& shape) { attention_.run(attention_call(shape, layer)); }});
  list.push_back({"v_b_proj", layer, [this, &weights](const StepShape& shape) {
                    const LatentAttentionConfig& sizes = *config_.latent;
                    const auto heads_of = [&](const Matrix& matrix, std::int64_t columns) {
                      return rows_of_heads(matrix, shape.num_tokens, config_.num_heads, columns, 0, columns);
                    };
                    ops_.expert_gemm(
                        head_product(heads_of(latent_attended_, sizes.kv_rank), weights.latent.v_b,
                                     heads_of(usual_.attended, sizes.value_dim)),
                        ops_.stream());
                  }});
}

void ExecutionPlan::turn_latents(const StepShape& shape) {
  const LatentAttentionConfig& latent = *config_.latent;
  RopeArguments arguments;
  arguments.positions = positions_;
  arguments.inverse_frequencies = frequencies_.as<float>();
  arguments.num_pairs = static_cast<int>(rope_.inverse_frequencies.size());
  arguments.attention_factor = rope_.attention_factor;
  arguments.pairing = config_.rope.pairing;
  arguments.x = columns_of(first_rows(latent_q_, shape.num_tokens), latent.nope_dim, latent_q_.columns);
  arguments.heads = config_.num_heads;
  arguments.head_dim = latent.query_dim();
  ops_.rope(arguments, ops_.stream());
  arguments.x = columns_of(first_rows(latent_kv_, shape.num_tokens), latent.kv_rank, latent.rope_dim);
  arguments.heads = 1;
  arguments.head_dim = latent.rope_dim;
  ops_.rope(arguments, ops_.stream());
}

}  // namespace tessera
