#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "engine/kv_cache.h"
#include "engine/runtime.h"
#include "engine/state_cache.h"
#include "model/execution_plan.h"
#include "model/random_checkpoint.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace tessera {

/// A tiny random model down to its engine, on a backend of the test's choice.
struct TinyEngine {
  /// end_tokens: ascending. change: of the configuration that the shape has.
  explicit TinyEngine(OpsBackend& ops_backend, bool batch_invariant = false, bool prefix_cache = false,
                      std::vector<std::int32_t> end_tokens = {},
                      const std::function<void(ModelConfig&)>& change = {})
      : ops(ops_backend) {
    random = make_random_checkpoint(random_model_shape("tiny"), DType::kF32);
    if (change) change(random.checkpoint.config);
    const ModelConfig& config = random.checkpoint.config;
    weights = load_weights(random.checkpoint, ops);
    KvCacheShape shape = kv_cache_shape(config);
    shape.page_size = 8;
    shape.num_pages = 64;
    cache = std::make_unique<KvCache>(shape, ops);
    states = std::make_unique<StateCache>(config, 4, ops);
    ExecutionPlanOptions options;
    options.batch_invariant = batch_invariant;
    options.max_tokens = 64;
    options.max_batch = 4;
    options.max_seq_len = 128;
    options.max_logits_rows = 64;
    plan = std::make_unique<ExecutionPlan>(config, weights, cache->layers(), states->layers(), options, ops);
    EngineCoreOptions core_options;
    core_options.vocab_size = config.vocab_size;
    core_options.token_limit = config.vocab_size;
    core_options.max_seq_len = 128;
    core_options.prefill_chunk = 60;
    core_options.prefix_cache = prefix_cache;
    core_options.end_tokens = std::move(end_tokens);
    core = std::make_unique<EngineCore>(*plan, *cache, *states, ops, core_options);
  }

  /// The tokens that each request draws, side by side.
  std::vector<std::vector<std::int32_t>> generate(const std::vector<Request>& requests) {
    std::vector<std::vector<std::int32_t>> tokens(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) core->add(i, requests[i]);
    while (core->has_work()) {
      for (const Event& event : core->step()) {
        EXPECT_NE(event.type, Event::Type::kError) << event.error_message;
        if (event.type == Event::Type::kToken) tokens[event.id].push_back(event.token);
      }
    }
    return tokens;
  }

  /// Logits of all rows of one step.
  std::vector<float> step_logits(std::span<const SequenceSlice> slices) {
    const StepShape shape = plan->begin_step(slices);
    plan->run_layers(shape);
    const RowRange rows{0, shape.num_tokens};
    plan->run_head({&rows, 1});
    std::vector<float> logits(static_cast<std::size_t>(shape.num_tokens * weights.head.rows));
    ops.download(logits.data(), plan->logits(shape.num_tokens).data, logits.size() * sizeof(float), {});
    return logits;
  }

  OpsBackend& ops;
  RandomCheckpoint random;
  ModelWeights weights;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<StateCache> states;
  std::unique_ptr<ExecutionPlan> plan;
  std::unique_ptr<EngineCore> core;
};

inline std::vector<std::int32_t> some_tokens(int length, int seed) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back((37 * i + 101 * seed + i * i) % 512);
  return tokens;
}

}  // namespace tessera
