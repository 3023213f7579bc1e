#include "engine/runtime.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "tessera/error.h"

namespace tessera {
namespace {

// Rows that the output head handles at once when logits of all positions are asked for: enough to use each
// weight often, few enough that their logits stay small beside the weights.
constexpr std::int64_t kLogitsRows = 32;

constexpr std::int64_t kMaxBatch = 1 << 16;
constexpr std::int64_t kMaxSeqLen = std::numeric_limits<std::int32_t>::max() / 2;  // positions are 32-bit

void require_range(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}; expected {} to {}", field, value, least, most));
  }
}

std::int64_t resolve_max_seq_len(const RuntimeOptions& options, const ModelConfig& config) {
  const std::int64_t context = std::min(config.max_seq_len, kMaxSeqLen);
  if (options.max_seq_len == 0) return context;
  if (options.max_seq_len < 0 || options.max_seq_len > context) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("max_seq_len is {}; expected 1 to {}, the model's context length, or 0 for that",
                            options.max_seq_len, context));
  }
  return options.max_seq_len;
}

/// A GPU takes more rows to be busy. Beyond what all sequences can hold, a larger chunk would only take
/// memory.
int resolve_prefill_chunk(const RuntimeOptions& options, Device device) {
  const int chunk = options.prefill_chunk != 0        ? options.prefill_chunk
                    : device.kind == DeviceKind::kCpu ? 512
                                                      : 2048;
  return static_cast<int>(std::min<std::int64_t>(chunk, options.max_batch * options.max_seq_len));
}

RuntimeOptions resolve(RuntimeOptions options, const LoadedModel& model) {
  validate(options);
  options.max_seq_len = resolve_max_seq_len(options, model.config());
  options.prefill_chunk = resolve_prefill_chunk(options, model.ops().device());
  return options;
}

DType resolve_kv_dtype(const RuntimeOptions& options, DType activations) {
  if (!options.kv_dtype || *options.kv_dtype == activations) return activations;
  if (*options.kv_dtype != DType::kF8E4M3) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("kv_dtype is {}; expected f8e4m3, or {} as the activations",
                            dtype_name(*options.kv_dtype), dtype_name(activations)));
  }
  return DType::kF8E4M3;
}

KvCacheShape cache_shape(const LoadedModel& model, const RuntimeOptions& options) {
  KvCacheShape shape = kv_cache_shape(model.config());
  shape.dtype = resolve_kv_dtype(options, model.activation_dtype());
  shape.page_size = options.page_size;
  const auto pages_for = [&](std::int64_t tokens) { return (tokens - 1) / options.page_size + 1; };
  shape.num_pages = options.max_batch * pages_for(options.max_seq_len);  // more would never be used
  if (options.max_kv_tokens != 0) {
    shape.num_pages = std::min(shape.num_pages, pages_for(options.max_kv_tokens));
  }
  return shape;
}

ExecutionPlanOptions plan_options(const LoadedModel& model, const RuntimeOptions& options) {
  ExecutionPlanOptions result;
  result.attention_backend = model.attention_backend();
  result.activation_dtype = model.activation_dtype();
  result.batch_invariant = options.batch_invariant;
  result.max_batch = options.max_batch;
  result.max_seq_len = options.max_seq_len;
  result.max_tokens = options.prefill_chunk + options.max_batch;
  result.max_logits_rows = std::max<std::int64_t>(options.max_batch, kLogitsRows);
  result.absent_tokens = model.drawable().absent;
  return result;
}

}  // namespace

KvCacheShape kv_cache_shape(const ModelConfig& config) {
  KvCacheShape shape;
  shape.num_layers = config.num_layers;
  shape.num_kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.values_in_keys = config.latent.has_value();
  if (config.full_attention || config.num_shared_kv_layers > 0 || !config.layer_has_attention.empty()) {
    for (int layer = 0; layer < config.num_layers; ++layer) {
      if (!has_attention(config, layer)) {
        shape.layers.push_back({.has_keys = false});
        continue;
      }
      const KvSizes sizes = kv_sizes(config, layer);
      const int source = kv_layer(config, layer);
      shape.layers.push_back({sizes.num_kv_heads, sizes.head_dim, source == layer ? -1 : source});
    }
  }
  return shape;
}

void validate(const RuntimeOptions& options) {
  require_range("max_batch", options.max_batch, 1, kMaxBatch);
  require_range("page_size", options.page_size, 1, kMaxSeqLen);
  require_range("max_kv_tokens", options.max_kv_tokens, 0, std::numeric_limits<std::int64_t>::max());
  require_range("prefill_chunk", options.prefill_chunk, 0, std::numeric_limits<int>::max());
}

Runtime::Runtime(std::shared_ptr<LoadedModel> model, RuntimeOptions options, OnPrefill on_prefill)
    : model_(std::move(model)), options_(resolve(options, *model_)) {
  const std::lock_guard lock(model_->step_mutex());
  cache_ = std::make_unique<KvCache>(cache_shape(*model_, options_), model_->ops());
  options_.max_kv_tokens = cache_->pages().num_pages() * options_.page_size;
  states_ = std::make_unique<StateCache>(model_->config(), options_.max_batch, model_->ops());
  plan_ = std::make_unique<ExecutionPlan>(model_->config(), model_->weights(), cache_->layers(),
                                          states_->layers(), plan_options(*model_, options_), model_->ops());
  EngineCoreOptions core_options;
  core_options.vocab_size = model_->config().vocab_size;
  core_options.token_limit = model_->drawable().limit;
  core_options.max_seq_len = options_.max_seq_len;
  core_options.prefill_chunk = options_.prefill_chunk;
  core_options.prefix_cache = options_.prefix_cache;
  core_options.end_tokens = model_->end_tokens();
  core_options.tokenizer = model_->tokenizer();
  core_options.on_prefill = std::move(on_prefill);
  core_ = std::make_unique<EngineCore>(*plan_, *cache_, *states_, model_->ops(), std::move(core_options));
}

}  // namespace tessera
