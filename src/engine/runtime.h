#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "engine/engine_core.h"
#include "engine/kv_cache.h"
#include "engine/loaded_model.h"
#include "engine/state_cache.h"
#include "model/execution_plan.h"

namespace tessera {

/// Sizes of a runtime, as a user gives them: 0 stands for what the comments say.
struct RuntimeOptions {
  std::int64_t max_seq_len = 0;  ///< the model's context length
  int max_batch = 1;
  int page_size = 16;
  std::int64_t max_kv_tokens = 0;  ///< max_batch * max_seq_len
  int prefill_chunk = 0;           ///< 512 on a CPU, 2048 on a GPU
  std::optional<DType> kv_dtype;   ///< none: that of the activations
  bool prefix_cache = false;
  bool batch_invariant = false;
};

/// What an EngineOptions or a ModelOptions says of a runtime.
template <class Options>
RuntimeOptions runtime_options(const Options& options) {
  RuntimeOptions result;
  result.max_seq_len = options.max_seq_len;
  result.max_batch = options.max_batch;
  result.page_size = options.page_size;
  result.max_kv_tokens = options.max_kv_tokens;
  result.prefill_chunk = options.prefill_chunk;
  result.kv_dtype = options.kv_dtype;
  if constexpr (requires { options.prefix_cache; }) result.prefix_cache = options.prefix_cache;
  result.batch_invariant = options.batch_invariant;
  return result;
}

/// Throws Error{kInvalidArgument} for what no model allows.
void validate(const RuntimeOptions& options);

/// What the layers of a model need of a cache, of no dtype, page size and number of pages yet.
KvCacheShape kv_cache_shape(const ModelConfig& config);

/// What runs one model: a KV cache, the states of layers without attention, an execution plan and the core of
/// an engine. Members are destroyed from the last to the first: each refers to those above it.
class Runtime {
 public:
  using OnPrefill = std::function<void(std::span<const PrefillProgress>, bool is_within_step)>;

  /// Throws Error{kInvalidArgument}, Error{kUnsupported} if the backend can't run the model, or
  /// Error{kOutOfMemory}.
  Runtime(std::shared_ptr<LoadedModel> model, RuntimeOptions options, OnPrefill on_prefill = {});

  LoadedModel& model() const { return *model_; }
  /// As they are used: none is 0.
  const RuntimeOptions& options() const { return options_; }
  KvCache& cache() { return *cache_; }
  ExecutionPlan& plan() { return *plan_; }
  EngineCore& core() { return *core_; }

 private:
  std::shared_ptr<LoadedModel> model_;
  RuntimeOptions options_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<StateCache> states_;
  std::unique_ptr<ExecutionPlan> plan_;
  std::unique_ptr<EngineCore> core_;
};

}  // namespace tessera
