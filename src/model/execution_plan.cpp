#include "model/execution_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <utility>

#include "tessera/error.h"

namespace tessera {
namespace {

// Steps whose sequences are shorter than this share a plan, and so do those between powers of two above it.
constexpr std::int64_t kShortestKvBound = 256;

PagedAttentionOptions attention_options(const ModelConfig& config, const KvSizes& sizes,
                                        const ExecutionPlanOptions& options) {
  PagedAttentionOptions result;
  result.backend = options.attention_backend;
  result.dtype = options.activation_dtype;
  result.num_heads = config.num_heads;
  result.num_kv_heads = sizes.num_kv_heads;
  result.head_dim = sizes.head_dim;
  if (config.latent) result.head_dim_v = config.latent->kv_rank;
  result.softmax_scale = config.softmax_scale;
  result.softcap = config.attention_softcap;
  result.batch_invariant = options.batch_invariant;
  return result;
}

}  // namespace

ExecutionPlan::ExecutionPlan(const ModelConfig& config, const ModelWeights& weights,
                             std::vector<KvCacheView> cache, std::vector<RecurrentStateView> states,
                             const ExecutionPlanOptions& options, OpsBackend& ops)
    : config_(config),
      weights_(weights),
      cache_(std::move(cache)),
      states_(std::move(states)),
      options_(options),
      ops_(ops),
      rope_(rope_frequencies(config.rope, full_head_dim(config), options.max_seq_len)),
      sliding_rope_(
          rope_frequencies(config.sliding_rope.value_or(config.rope), config.head_dim, options.max_seq_len)),
      attention_(attention_options(config, {config.num_kv_heads, config.head_dim}, options), ops) {
  if (const auto& full = config.full_attention)
    full_attention_.emplace(attention_options(config, {full->num_kv_heads, full->head_dim}, options), ops);
  allocate_buffers();
  reserve_attention();
}

Matrix ExecutionPlan::allocate_matrix(DeviceBuffer& buffer, const char* what, DType dtype, std::int64_t rows,
                                      std::int64_t columns) {
  buffer = ops_.allocate(dtype_bytes(dtype, static_cast<std::size_t>(rows * columns)), what);
  return {buffer.data.get(), dtype, rows, columns, columns};
}

DeviceBuffer ExecutionPlan::upload_numbers(const std::vector<float>& numbers, const char* what) {
  DeviceBuffer buffer = ops_.allocate(numbers.size() * sizeof(float), what);
  ops_.upload(buffer.data.get(), numbers.data(), numbers.size() * sizeof(float), ops_.stream());
  return buffer;
}

void ExecutionPlan::allocate_buffers() {
  const DType dtype = options_.activation_dtype;
  const std::int64_t rows = options_.max_tokens;
  residual_ = allocate_matrix(residual_buffer_, "residual stream", DType::kF32, rows, config_.hidden_size);
  normed_ = allocate_matrix(normed_buffer_, "normed activations", dtype, rows, config_.hidden_size);
  if (config_.latent) {
    allocate_latent_buffers(dtype, rows);
  } else {
    allocate_projections(dtype, rows);
  }
  if (has_states()) allocate_recurrent_buffers(dtype, rows);
  delta_ = allocate_matrix(delta_buffer_, "residual additions", dtype, rows, config_.hidden_size);
  if (config_.mixture) {
    const MixtureConfig& mixture = *config_.mixture;
    const std::int64_t slots = rows * mixture.num_experts_per_token;
    router_logits_ =
        allocate_matrix(router_logits_buffer_, "router's logits", DType::kF32, rows, mixture.num_experts);
    expert_gate_up_ = allocate_matrix(expert_gate_up_buffer_, "experts' activations", dtype, slots,
                                      2 * mixture.intermediate_size);
    expert_gate_ = columns_of(expert_gate_up_, 0, mixture.intermediate_size);
    expert_up_ = columns_of(expert_gate_up_, mixture.intermediate_size, mixture.intermediate_size);
    expert_results_ =
        allocate_matrix(expert_results_buffer_, "experts' results", dtype, slots, config_.hidden_size);
    const auto routing = [this](DeviceBuffer& buffer, const char* what, std::int64_t num_slots,
                                int num_experts) {
      buffer = ops_.allocate(
          (3 * static_cast<std::size_t>(num_slots) + static_cast<std::size_t>(num_experts) + 1) * 4, what);
      ExpertRouting result;
      result.num_experts = num_experts;
      result.experts = buffer.as<std::int32_t>();
      result.weights = buffer.as<float>() + num_slots;
      result.order = buffer.as<std::int32_t>() + 2 * num_slots;
      result.offsets = buffer.as<std::int32_t>() + 3 * num_slots;
      return result;
    };
    routing_ = routing(routing_buffer_, "experts of tokens", slots, mixture.num_experts);
    routing_.num_slots = mixture.num_experts_per_token;
    if (mixture.shared_gate) {
      shared_gate_logits_ =
          allocate_matrix(shared_gate_buffer_, "shared expert's gate", DType::kF32, rows, 1);
      shared_gating_ = routing(shared_routing_buffer_, "shared expert's weights", rows, 1);
      shared_gating_.num_slots = 1;
    }
    if (mixture.beside_mlp)
      mlp_sum_ =
          allocate_matrix(mlp_sum_buffer_, "sums of MLP and experts", DType::kF32, rows, config_.hidden_size);
  }
  std::int64_t widest = 0;
  for (int layer = 0; layer < config_.num_layers; ++layer) widest = std::max(widest, mlp_width(layer));
  if (widest > 0)
    gate_up_ = allocate_matrix(gate_up_buffer_, "MLP activations", dtype, rows,
                               (config_.gated_mlp ? 2 : 1) * widest);
  head_input_ = allocate_matrix(head_input_buffer_, "output head's input", dtype, options_.max_logits_rows,
                                config_.hidden_size);
  allocate_matrix(logits_buffer_, "logits", DType::kF32, options_.max_logits_rows, config_.vocab_size);
  if (!options_.absent_tokens.empty()) {
    host_drawable_bias_ = weights_.head_bias_numbers;  // which takes the head's bias's place
    host_drawable_bias_.resize(static_cast<std::size_t>(config_.vocab_size));
    for (const std::int32_t id : options_.absent_tokens) {
      host_drawable_bias_[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
    }
    drawable_bias_ = ops_.make_weight({reinterpret_cast<const std::byte*>(host_drawable_bias_.data()),
                                       DType::kF32, 1, config_.vocab_size, "ids that may be drawn"});
  }

  if (config_.layer_embedding_size > 0) allocate_layer_embedding_buffers(dtype, rows);
  if (!config_.norms_before || config_.layer_embedding_size > 0) {
    copy_weights_buffer_ =
        upload_numbers(std::vector<float>(static_cast<std::size_t>(config_.hidden_size), kNormCopyWeight),
                       "weights that copy");
    copy_weights_ = {copy_weights_buffer_.data.get(), DType::kF32, 1, config_.hidden_size, nullptr};
  }

  upload_frequencies();

  const std::size_t tokens = static_cast<std::size_t>(options_.max_tokens);
  const std::size_t batch = static_cast<std::size_t>(options_.max_batch);
  const std::int64_t page_size = cache_.front().page_size;
  descriptors_.block_table_stride = (options_.max_seq_len + page_size - 1) / page_size;
  host_tokens_.resize(tokens);
  host_descriptors_.resize(2 * (batch + 1) + 2 * batch + (scales_queries() ? 3 : 2) * tokens);
  uploaded_block_table_.resize(batch);
  tokens_ = ops_.allocate(tokens * sizeof(std::int32_t), "tokens");
  descriptor_buffer_ =
      ops_.allocate(host_descriptors_.size() * sizeof(std::int32_t), "positions and sequence lengths");
  block_table_buffer_ =
      ops_.allocate(batch * static_cast<std::size_t>(descriptors_.block_table_stride) * sizeof(std::int32_t),
                    "block tables");
  descriptors_.cu_seqlens = descriptor_buffer_.as<std::int32_t>();
  descriptors_.prompt_cu_seqlens = descriptors_.cu_seqlens + batch + 1;
  descriptors_.seq_lens_kv = descriptors_.prompt_cu_seqlens + batch + 1;
  descriptors_.block_table = block_table_buffer_.as<std::int32_t>();
  state_slots_ = descriptors_.seq_lens_kv + batch;
  positions_ = state_slots_ + batch;
  sequences_ = positions_ + tokens;
  if (scales_queries()) query_scales_ = reinterpret_cast<const float*>(sequences_ + tokens);
}

void ExecutionPlan::allocate_projections(DType dtype, std::int64_t rows) {
  const std::int64_t heads = config_.num_heads;
  std::int64_t most_columns = 0, most_q_columns = 0, longest_head = config_.head_dim;
  const auto gate_columns = [&](std::int64_t q_columns) { return config_.attention_gate ? q_columns : 0; };
  const auto place = [&](const KvSizes& sizes) {
    Projections result;
    const std::int64_t q_columns = heads * sizes.head_dim;
    const std::int64_t kv_columns = std::int64_t{sizes.num_kv_heads} * sizes.head_dim;
    const std::int64_t columns = q_columns + 2 * kv_columns + gate_columns(q_columns);
    result.qkv = {qkv_buffer_.data.get(), dtype, rows, columns, columns};
    result.q = columns_of(result.qkv, 0, q_columns);
    result.k = columns_of(result.qkv, q_columns, kv_columns);
    result.qk = columns_of(result.qkv, 0, q_columns + kv_columns);
    result.v = columns_of(result.qkv, q_columns + kv_columns, kv_columns);
    if (config_.attention_gate) result.gate = columns_of(result.qkv, q_columns + 2 * kv_columns, q_columns);
    result.attended = {attended_buffer_.data.get(), dtype, rows, q_columns, q_columns};
    return result;
  };
  std::vector<KvSizes> kinds = {{config_.num_kv_heads, config_.head_dim}};
  if (const auto& full = config_.full_attention) kinds.push_back({full->num_kv_heads, full->head_dim});
  for (const KvSizes& sizes : kinds) {
    const std::int64_t q_columns = heads * sizes.head_dim;
    most_columns = std::max(most_columns, q_columns + 2 * std::int64_t{sizes.num_kv_heads} * sizes.head_dim +
                                              gate_columns(q_columns));
    most_q_columns = std::max(most_q_columns, q_columns);
    longest_head = std::max<std::int64_t>(longest_head, sizes.head_dim);
  }
  qkv_buffer_ = ops_.allocate(dtype_bytes(dtype, static_cast<std::size_t>(rows * most_columns)),
                              "queries, keys and values");
  attended_buffer_ =
      ops_.allocate(dtype_bytes(dtype, static_cast<std::size_t>(rows * most_q_columns)), "attention output");
  usual_ = place(kinds.front());
  full_ = place(kinds.back());
  if (!config_.v_norm) return;
  v_norm_buffer_ = upload_numbers(std::vector<float>(static_cast<std::size_t>(longest_head), 1.0f),
                                  "weights of the norm of values");
  v_norm_ = {v_norm_buffer_.data.get(), DType::kF32, 1, longest_head, nullptr};
}

void ExecutionPlan::allocate_layer_embedding_buffers(DType dtype, std::int64_t rows) {
  const std::int64_t width = config_.layer_embedding_size, all = config_.num_layers * width;
  layer_embeddings_ = allocate_matrix(layer_embeddings_buffer_, "embeddings of layers", dtype, rows, all);
  layer_embeddings_projected_ = allocate_matrix(layer_embeddings_projected_buffer_,
                                                "what is added to embeddings of layers", dtype, rows, all);
  layer_gate_ = allocate_matrix(layer_gate_buffer_, "gates of embeddings of layers", dtype, rows, width);
  ones_buffer_ = upload_numbers(std::vector<float>(static_cast<std::size_t>(rows), 1.0f), "weights that add");
}

void ExecutionPlan::upload_frequencies() {
  // Those of layers, of layers that slide, and zeros for layers without RoPE.
  std::vector<float> frequencies = rope_.inverse_frequencies;
  const std::vector<float>& sliding = sliding_rope_.inverse_frequencies;
  sliding_frequencies_ = std::ssize(frequencies);
  frequencies.insert(frequencies.end(), sliding.begin(), sliding.end());
  no_frequencies_ = std::ssize(frequencies);
  frequencies.resize(frequencies.size() + std::max(rope_.inverse_frequencies.size(), sliding.size()));
  frequencies_ = upload_numbers(frequencies, "RoPE frequencies");
}

std::int64_t ExecutionPlan::mlp_width(int layer) const {
  if (has_experts(config_, layer) && !config_.mixture->beside_mlp)
    return config_.mixture->shared_intermediate_size;
  return intermediate_size(config_, layer);
}

std::span<const PlanStep> ExecutionPlan::steps(const StepShape& shape) {
  const StepList*& list = step_lists_by_tokens_[shape.num_tokens];
  if (list == nullptr) {
    const std::vector<LayerFusion> fused = fusions(shape);
    const auto known = step_lists_.find(fused);
    list = known != step_lists_.end() ? &known->second
                                      : &step_lists_.emplace(fused, make_steps(fused)).first->second;
  }
  return *list;
}

std::optional<std::int64_t> ExecutionPlan::sliding_window(int layer) const {
  if (!slides(config_, layer)) return std::nullopt;
  // A window that no sequence outgrows hides nothing.
  if (*config_.sliding_window >= options_.max_seq_len) return std::nullopt;
  return config_.sliding_window;
}

const float* ExecutionPlan::sinks(int layer) const {
  return static_cast<const float*>(weights_.layers[static_cast<std::size_t>(layer)].sinks.data);
}

PagedAttentionCall ExecutionPlan::attention_call(const StepShape& shape, int layer) const {
  return {shape,
          descriptors_,
          rows_of(projections(layer).q, 0, shape.num_tokens),
          cache_[static_cast<std::size_t>(layer)],
          sliding_window(layer),
          sinks(layer),
          rows_of(config_.latent ? latent_attended_ : projections(layer).attended, 0, shape.num_tokens)};
}

void ExecutionPlan::reserve_attention() {
  // The largest decode step and the largest prefill, of page 0 over and over: only their sizes matter, since
  // nothing runs.
  const std::vector<std::int32_t> pages(static_cast<std::size_t>(descriptors_.block_table_stride), 0);
  const std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(std::min(options_.max_tokens, options_.max_seq_len)), 0);
  const auto slice = [&](std::span<const std::int32_t> slice_tokens) {
    return SequenceSlice{slice_tokens, options_.max_seq_len - static_cast<std::int64_t>(slice_tokens.size()),
                         pages};
  };
  const std::vector<SequenceSlice> decode(static_cast<std::size_t>(options_.max_batch),
                                          slice(std::span(tokens).first(1)));
  const std::vector<SequenceSlice> prefill = {slice(tokens)};
  for (const std::vector<SequenceSlice>& slices : {decode, prefill}) {
    const StepShape shape = begin_step(slices);
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      if (attends(layer)) attention_of(layer).prepare(attention_call(shape, layer));
    }
  }
}

void ExecutionPlan::upload_block_table(std::size_t row, std::span<const std::int32_t> pages) {
  std::vector<std::int32_t>& uploaded = uploaded_block_table_[row];
  if (std::ranges::equal(uploaded, pages)) return;
  const std::int64_t offset = static_cast<std::int64_t>(row) * descriptors_.block_table_stride;
  ops_.upload(block_table_buffer_.as<std::int32_t>() + offset, pages.data(), pages.size_bytes(),
              ops_.stream());
  uploaded.assign(pages.begin(), pages.end());
}

StepShape ExecutionPlan::begin_step(std::span<const SequenceSlice> slices, bool tokens_on_device) {
  const std::size_t max_batch = static_cast<std::size_t>(options_.max_batch);
  const std::size_t max_tokens = static_cast<std::size_t>(options_.max_tokens);
  if (slices.empty() || slices.size() > max_batch) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a step has {} sequences; expected 1 to {}", slices.size(), options_.max_batch));
  }
  std::int32_t* cu_seqlens = host_descriptors_.data();
  std::int32_t* prompt_cu_seqlens = cu_seqlens + max_batch + 1;
  std::int32_t* seq_lens_kv = prompt_cu_seqlens + max_batch + 1;
  std::int32_t* state_slots = seq_lens_kv + max_batch;
  std::int32_t* positions = state_slots + max_batch;
  std::int32_t* sequences = positions + max_tokens;
  std::int32_t* query_scales = sequences + max_tokens;

  StepShape shape;
  shape.batch = static_cast<std::int64_t>(slices.size());
  const auto first_prompt =
      std::ranges::find_if(slices, [](const SequenceSlice& slice) { return slice.tokens.size() > 1; });
  if (first_prompt != slices.end()) shape.num_decodes = first_prompt - slices.begin();
  cu_seqlens[0] = 0;
  for (std::size_t b = 0; b < slices.size(); ++b) {
    const SequenceSlice& slice = slices[b];
    const std::int64_t count = static_cast<std::int64_t>(slice.tokens.size());
    const std::int64_t length = slice.first_position + count;
    const std::int64_t capacity =
        static_cast<std::int64_t>(slice.block_table.size()) * cache_.front().page_size;
    if (slice.state_slot < 0 || slice.state_slot >= options_.max_batch) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("sequence {} of a step has state slot {}; expected 0 to {}", b,
                              slice.state_slot, options_.max_batch - 1));
    }
    if (count < 1 || shape.num_tokens + count > options_.max_tokens || length > options_.max_seq_len ||
        length > capacity ||
        static_cast<std::int64_t>(slice.block_table.size()) > descriptors_.block_table_stride) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("sequence {} of a step has {} new tokens at position {} and {} pages; expected at "
                      "most {} tokens in the step, {} in the sequence and pages for all of them",
                      b, count, slice.first_position, slice.block_table.size(), options_.max_tokens,
                      options_.max_seq_len));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::size_t row = static_cast<std::size_t>(shape.num_tokens + i);
      host_tokens_[row] = slice.tokens[static_cast<std::size_t>(i)];
      positions[row] = static_cast<std::int32_t>(slice.first_position + i);
      sequences[row] = static_cast<std::int32_t>(b);
      if (scales_queries())
        query_scales[row] =
            std::bit_cast<std::int32_t>(query_scale(*config_.query_scaling, slice.first_position + i));
    }
    shape.num_tokens += count;
    shape.seq_len_q = std::max(shape.seq_len_q, count);
    const bool is_beside_prompts = static_cast<std::int64_t>(b) < shape.num_decodes;
    std::int64_t& longest = is_beside_prompts ? shape.decode_len_kv : shape.seq_len_kv;
    longest = std::max(longest, length);
    cu_seqlens[b + 1] = static_cast<std::int32_t>(shape.num_tokens);
    seq_lens_kv[b] = static_cast<std::int32_t>(length);
    state_slots[b] = slice.state_slot;
    upload_block_table(b, slice.block_table);
  }
  for (std::int64_t b = shape.num_decodes; b <= shape.batch; ++b) {
    prompt_cu_seqlens[b - shape.num_decodes] = cu_seqlens[b] - static_cast<std::int32_t>(shape.num_decodes);
  }
  // A rounded bound makes most steps equal in shape to the one before, so that plans and recordings are
  // reused.
  const auto rounded = [&](std::int64_t len_kv) {
    const auto power = std::bit_ceil(static_cast<std::uint64_t>(std::max(len_kv, kShortestKvBound)));
    return std::min(options_.max_seq_len, static_cast<std::int64_t>(power));
  };
  shape.seq_len_kv = rounded(shape.seq_len_kv);
  if (shape.num_decodes > 0) shape.decode_len_kv = rounded(shape.decode_len_kv);

  if (config_.latent) group_heads(shape.num_tokens);
  ops_.upload(descriptor_buffer_.data.get(), host_descriptors_.data(),
              host_descriptors_.size() * sizeof(std::int32_t), ops_.stream());
  if (!tokens_on_device) {
    ops_.upload(tokens_.data.get(), host_tokens_.data(),
                static_cast<std::size_t>(shape.num_tokens) * sizeof(std::int32_t), ops_.stream());
  }
  return shape;
}

void ExecutionPlan::run_layers(const StepShape& shape, const std::function<void(double)>& after_step) {
  const auto& list = steps(shape);
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i].run(shape);
    if (after_step) after_step(static_cast<double>(i + 1) / static_cast<double>(list.size()));
  }
}

Matrix ExecutionPlan::run_final_norm(std::span<const RowRange> ranges) {
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) {
    if (rows + range.count > options_.max_logits_rows) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("outputs of {} rows or more are asked for at once; expected at most {}",
                              rows + range.count, options_.max_logits_rows));
    }
    run_norm(rows_of(delta_, range.begin, range.count), rows_of(head_input_, rows, range.count),
             weights_.final_norm, weights_.final_norm_bias, residual_eps(),
             rows_of(residual_, range.begin, range.count));
    rows += range.count;
  }
  return rows_of(head_input_, 0, rows);
}

void ExecutionPlan::run_head(std::span<const RowRange> ranges, bool for_sampling) {
  GemmArguments head;
  head.x = run_final_norm(ranges);
  head.weight = weights_.head;
  if (weights_.head_bias) head.bias = weights_.head_bias;
  if (for_sampling && drawable_bias_) head.bias = drawable_bias_;
  head.out = logits(head.x.rows);
  head.batch_invariant = options_.batch_invariant;
  ops_.gemm(head, ops_.stream());
  if (config_.logits_scale != 1) ops_.scale({head.out, config_.logits_scale}, ops_.stream());
  if (config_.logits_softcap) ops_.softcap({head.out, *config_.logits_softcap}, ops_.stream());
}

Matrix ExecutionPlan::logits(std::int64_t rows) const {
  return {logits_buffer_.data.get(), DType::kF32, rows, config_.vocab_size, config_.vocab_size};
}

}  // namespace tessera
