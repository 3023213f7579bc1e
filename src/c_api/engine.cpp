// Engines: requests, events, figures.

#include "tessera/engine.h"

#include <fmt/core.h>

#include <chrono>
#include <memory>
#include <vector>

#include "c_api/dtypes.h"
#include "c_api/generation.h"
#include "c_api/model.h"
#include "c_api/structs.h"

namespace tessera::c_api {

/// An event's arrays as C has them.
struct EventArrays {
  std::vector<tessera_token_logprob> top_logprobs;
  std::vector<float> prompt_logprobs;
  std::vector<tessera_token_logprob> prompt_top_logprobs;
};

}  // namespace tessera::c_api

struct tessera_engine {
  std::shared_ptr<tessera::c_api::SharedModel> shared;
  tessera::Engine engine;
};

struct tessera_events {
  std::vector<tessera::Event> events;
  std::vector<tessera::c_api::EventArrays> arrays;  // of each event
};

namespace tessera::c_api {
namespace {

EngineOptions engine_options(const tessera_engine_options* given) {
  const tessera_engine_options c = read_optional_struct(given, "options");
  check_flags("options", c.flags, TESSERA_ENGINE_BATCH_INVARIANT | TESSERA_ENGINE_NO_PREFIX_CACHE);
  check_reserved("options", c.reserved);
  EngineOptions options;
  options.max_seq_len = c.max_seq_len;
  options.max_kv_tokens = c.max_kv_tokens;
  if (c.max_batch != 0) options.max_batch = c.max_batch;
  if (c.max_waiting != 0) options.max_waiting = c.max_waiting;
  if (c.page_size != 0) options.page_size = c.page_size;
  options.prefill_chunk = c.prefill_chunk;
  options.kv_dtype = optional_dtype(c.kv_dtype, "options.kv_dtype");
  options.prefix_cache = (c.flags & TESSERA_ENGINE_NO_PREFIX_CACHE) == 0;
  options.batch_invariant = (c.flags & TESSERA_ENGINE_BATCH_INVARIANT) != 0;
  return options;
}

template <class T>
std::vector<T> copied(const T* data, std::size_t size, const char* name) {
  const std::span<const T> elements = array(data, size, name);
  return {elements.begin(), elements.end()};
}

/// Submits what `request` returns.
template <class MakeRequest>
tessera_status submit(tessera_engine* engine, std::uint64_t* id, MakeRequest&& request) {
  return guarded([&] {
    std::uint64_t& out = required(id, "id");
    out = 0;
    tessera_engine& e = required(engine, "engine");
    out = e.engine.submit(request(e));
  });
}

EventArrays arrays_of(const Event& e) {
  EventArrays arrays;
  append(arrays.top_logprobs, e.top_logprobs);
  for (const PromptLogprob& p : e.prompt_logprobs) {
    arrays.prompt_logprobs.push_back(p.logprob);
    append(arrays.prompt_top_logprobs, p.top_logprobs);
  }
  return arrays;
}

tessera_event c_event(const Event& e, const EventArrays& arrays) {
  tessera_event out{};
  out.id = e.id;
  out.text = e.text.c_str();
  out.text_bytes = e.text.size();
  out.token = e.token;
  out.error_message = e.error_message.c_str();
  if (!e.prompt_logprobs.empty()) {
    out.prompt_logprobs = arrays.prompt_logprobs.data();
    out.prompt_top_logprobs = arrays.prompt_top_logprobs.data();
    out.num_prompt_logprobs = e.prompt_logprobs.size();
    out.num_prompt_top_logprobs = e.prompt_logprobs.front().top_logprobs.size();
  }
  switch (e.type) {
    case Event::Type::kToken:
      out.type = TESSERA_EVENT_TOKEN;
      out.logprob = e.logprob;
      out.top_logprobs = arrays.top_logprobs.data();
      out.num_top_logprobs = arrays.top_logprobs.size();
      break;
    case Event::Type::kFinished:
      out.type = TESSERA_EVENT_FINISHED;
      out.stop_reason = c_stop_reason(e.stop_reason);
      out.prompt_tokens = e.stats.prompt_tokens;
      out.cached_tokens = e.stats.cached_tokens;
      out.generated_tokens = e.stats.generated_tokens;
      out.prefill_ms = e.stats.prefill_ms;
      out.decode_ms = e.stats.decode_ms;
      out.embedding = e.embedding.data();
      out.embedding_size = e.embedding.size();
      out.attention = e.attention.data();
      out.attention_size = e.attention.size();
      break;
    case Event::Type::kError:
      out.type = TESSERA_EVENT_ERROR;
      out.error = status_of(e.error_code);
      break;
  }
  return out;
}

void set(std::int32_t* out, bool value) {
  if (out != nullptr) *out = value ? 1 : 0;
}

}  // namespace
}  // namespace tessera::c_api

using namespace tessera::c_api;

extern "C" {

tessera_status tessera_engine_create(const tessera_model* model, const tessera_engine_options* options,
                                     tessera_engine** engine) {
  return guarded([&] {
    tessera_engine*& out = required(engine, "engine");
    out = nullptr;
    const tessera_model& m = required(model, "model");
    out = new tessera_engine{m.shared, tessera::Engine(m.model(), engine_options(options))};
  });
}

void tessera_engine_free(tessera_engine* engine) { delete engine; }

tessera_status tessera_engine_get_options(const tessera_engine* engine, tessera_engine_options* options) {
  return guarded([&] {
    const tessera::EngineOptions& o = required(engine, "engine").engine.options();
    tessera_engine_options out{};
    out.flags = (o.batch_invariant ? TESSERA_ENGINE_BATCH_INVARIANT : 0) |
                (o.prefix_cache ? 0 : TESSERA_ENGINE_NO_PREFIX_CACHE);
    out.max_seq_len = o.max_seq_len;
    out.max_kv_tokens = o.max_kv_tokens;
    out.max_batch = o.max_batch;
    out.max_waiting = o.max_waiting;
    out.page_size = o.page_size;
    out.prefill_chunk = o.prefill_chunk;
    if (o.kv_dtype) out.kv_dtype = c_dtype(*o.kv_dtype);
    write_struct(options, out, "options");
  });
}

tessera_status tessera_engine_submit(tessera_engine* engine, const int32_t* prompt, size_t prompt_tokens,
                                     const tessera_generate_options* options, uint64_t* id) {
  return submit(engine, id, [&](tessera_engine& e) {
    tessera::Request request =
        tessera::make_request(array(prompt, prompt_tokens, "prompt"),
                              generate_options(options, kGenerateFlags | kEngineFlags, *e.shared));
    const std::uint64_t flags = options == nullptr ? 0 : options->flags;
    request.use_prefix_cache = (flags & TESSERA_GENERATE_NO_PREFIX_CACHE) == 0;
    request.prompt_logprobs = (flags & TESSERA_GENERATE_PROMPT_LOGPROBS) != 0;
    return request;
  });
}

tessera_status tessera_engine_submit_embedding(tessera_engine* engine, const int32_t* prompt,
                                               size_t prompt_tokens, const tessera_embedding_options* options,
                                               uint64_t* id) {
  return submit(engine, id, [&](tessera_engine&) {
    const tessera_embedding_options c = read_optional_struct(options, "options");
    if (c.pooling != TESSERA_POOLING_MEAN && c.pooling != TESSERA_POOLING_LAST) {
      throw tessera::Error(
          tessera::ErrorCode::kInvalidArgument,
          fmt::format("options.pooling is {}; expected TESSERA_POOLING_MEAN or TESSERA_POOLING_LAST",
                      c.pooling));
    }
    tessera::EmbeddingRequest request;
    request.prompt = copied(prompt, prompt_tokens, "prompt");
    request.pooling = c.pooling == TESSERA_POOLING_LAST ? tessera::Pooling::kLast : tessera::Pooling::kMean;
    request.normalize = c.no_normalize == 0;
    return request;
  });
}

tessera_status tessera_engine_submit_attention(tessera_engine* engine, const int32_t* tokens,
                                               size_t num_tokens, const int64_t* positions,
                                               size_t num_positions, const int32_t* layers, size_t num_layers,
                                               uint64_t* id) {
  return submit(engine, id, [&](tessera_engine&) {
    tessera::AttentionRequest request;
    request.tokens = copied(tokens, num_tokens, "tokens");
    request.positions = copied(positions, num_positions, "positions");
    request.layers = copied(layers, num_layers, "layers");
    return request;
  });
}

tessera_status tessera_engine_cancel(tessera_engine* engine, uint64_t id, int32_t* was_alive) {
  return guarded([&] { set(was_alive, required(engine, "engine").engine.cancel(id)); });
}

tessera_status tessera_engine_step(tessera_engine* engine, tessera_events** events) {
  return guarded([&] {
    tessera_events*& out = required(events, "events");
    out = nullptr;
    auto made = std::make_unique<tessera_events>();
    made->events = required(engine, "engine").engine.step();
    for (const tessera::Event& event : made->events) made->arrays.push_back(arrays_of(event));
    out = made.release();
  });
}

void tessera_events_free(tessera_events* events) { delete events; }

tessera_status tessera_events_size(const tessera_events* events, size_t* size) {
  return guarded([&] { required(size, "size") = required(events, "events").events.size(); });
}

tessera_status tessera_events_get(const tessera_events* events, size_t index, tessera_event* event) {
  return guarded([&] {
    const tessera_events& all = required(events, "events");
    if (index >= all.events.size()) {
      throw tessera::Error(tessera::ErrorCode::kInvalidArgument,
                           fmt::format("index is {}; expected one below {}", index, all.events.size()));
    }
    write_struct(event, c_event(all.events[index], all.arrays[index]), "event");
  });
}

tessera_status tessera_engine_has_work(const tessera_engine* engine, int32_t* has_work) {
  return guarded(
      [&] { required(has_work, "has_work") = required(engine, "engine").engine.has_work() ? 1 : 0; });
}

tessera_status tessera_engine_wait(tessera_engine* engine, int64_t timeout_ms, int32_t* has_work) {
  return guarded(
      [&] { set(has_work, required(engine, "engine").engine.wait(std::chrono::milliseconds(timeout_ms))); });
}

tessera_status tessera_engine_wake(tessera_engine* engine) {
  return guarded([&] { required(engine, "engine").engine.wake(); });
}

tessera_status tessera_engine_get_stats(const tessera_engine* engine, tessera_engine_stats* stats) {
  return guarded([&] {
    const tessera::EngineStats s = required(engine, "engine").engine.stats();
    tessera_engine_stats out{};
    out.running = s.running;
    out.waiting = s.waiting;
    out.kv_pages = s.kv_pages;
    out.kv_pages_used = s.kv_pages_used;
    out.kv_pages_cached = s.kv_pages_cached;
    out.kv_cache_bytes = s.kv_cache_bytes;
    out.requests_submitted = s.requests_submitted;
    out.requests_finished = s.requests_finished;
    out.requests_cancelled = s.requests_cancelled;
    out.requests_failed = s.requests_failed;
    out.requests_refused = s.requests_refused;
    out.prompt_tokens = s.prompt_tokens;
    out.cached_tokens = s.cached_tokens;
    out.computed_tokens = s.computed_tokens;
    out.generated_tokens = s.generated_tokens;
    out.preemptions = s.preemptions;
    out.steps = s.steps;
    write_struct(stats, out, "stats");
  });
}

}  // extern "C"
