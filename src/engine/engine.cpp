#include "tessera/engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <variant>

#include "engine/runtime.h"

namespace tessera {
namespace {

constexpr int kMaxWaiting = 1 << 20;
/// Of a wait: as good as for ever, and no clock overflows.
constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(24 * 366);

EngineOptions checked(const EngineOptions& options) {
  if (options.max_waiting < 1 || options.max_waiting > kMaxWaiting) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("max_waiting is {}; expected 1 to {}", options.max_waiting, kMaxWaiting));
  }
  return options;
}

}  // namespace

Request make_request(std::span<const std::int32_t> prompt, const GenerateOptions& options) {
  Request request;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.max_tokens = options.max_tokens;
  request.sampling = options.sampling;
  request.stop_at_eos = options.stop_at_eos;
  request.stop = options.stop;
  request.constraint = options.constraint;
  request.top_logprobs = options.top_logprobs;
  return request;
}

/// Requests wait in an inbox, which any thread fills, until a step takes them into the core. The mutex is
/// never held while the model runs.
class Engine::Implementation {
 public:
  Implementation(Model model, const EngineOptions& options)
      : model_(std::move(model)),
        options_(checked(options)),
        runtime_(model_.loaded(), runtime_options(options)),
        stats_(core().stats()) {
    options_.max_seq_len = runtime_.options().max_seq_len;
    options_.max_kv_tokens = runtime_.options().max_kv_tokens;
    options_.prefill_chunk = runtime_.options().prefill_chunk;
    options_.kv_dtype = runtime_.cache().shape().dtype;
  }

  const Model& model() const { return model_; }
  const EngineOptions& options() const { return options_; }

  template <class AnyRequest>
  RequestId submit(AnyRequest request) {
    RequestId id = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stats_.waiting + std::ssize(inbox_) >= options_.max_waiting) {
        ++requests_refused_;
        throw QueueFull(
            ErrorCode::kOutOfMemory,
            fmt::format("{} requests wait already, as many as max_waiting allows; try again later",
                        options_.max_waiting));
      }
      id = ++last_id_;
      inbox_.push_back({id, std::move(request)});
      alive_.insert(id);
    }
    changed_.notify_all();
    return id;
  }

  EngineCore& core() { return runtime_.core(); }

  bool cancel(RequestId id) {
    {
      const std::lock_guard lock(mutex_);
      if (alive_.erase(id) == 0) return false;
      cancelled_.push_back(id);
    }
    changed_.notify_all();
    return true;
  }

  std::vector<Event> step() {
    take_inbox();
    std::vector<Event> events;
    {
      const std::lock_guard lock(model_.loaded()->step_mutex());
      events = core().step();
    }
    const std::lock_guard lock(mutex_);
    for (const Event& event : events) {
      if (event.type != Event::Type::kToken) alive_.erase(event.id);
    }
    stats_ = core().stats();
    core_has_work_ = core().has_work();
    return events;
  }

  bool has_work() const {
    const std::lock_guard lock(mutex_);
    return has_work_locked();
  }

  bool wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::clamp(timeout, std::chrono::milliseconds(0), kLongestWait),
                      [&] { return has_work_locked() || is_woken_; });
    is_woken_ = false;
    return has_work_locked();
  }

  void wake() {
    {
      const std::lock_guard lock(mutex_);
      is_woken_ = true;
    }
    changed_.notify_all();
  }

  EngineStats stats() const {
    const std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.waiting += std::ssize(inbox_);
    stats.requests_submitted = last_id_;
    stats.requests_refused = requests_refused_;
    return stats;
  }

 private:
  struct Submitted {
    RequestId id = 0;
    std::variant<Request, EmbeddingRequest, AttentionRequest> request;
  };

  bool has_work_locked() const { return core_has_work_ || !inbox_.empty() || !cancelled_.empty(); }

  /// Hands the core what came since the last step.
  void take_inbox() {
    std::vector<Submitted> inbox;
    std::vector<RequestId> cancelled;
    {
      const std::lock_guard lock(mutex_);
      inbox = std::exchange(inbox_, {});
      cancelled = std::exchange(cancelled_, {});
      stats_.waiting += std::ssize(inbox);  // until the step's own figures are there
      core_has_work_ |= !inbox.empty() || !cancelled.empty();
    }
    for (Submitted& submitted : inbox) {
      std::visit([&](auto& request) { core().add(submitted.id, std::move(request)); }, submitted.request);
    }
    for (const RequestId id : cancelled) core().cancel(id);
  }

  Model model_;
  EngineOptions options_;
  Runtime runtime_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Submitted> inbox_;
  std::vector<RequestId> cancelled_;
  std::unordered_set<RequestId> alive_;  // submitted, not cancelled, and without a last event
  RequestId last_id_ = 0;
  std::uint64_t requests_refused_ = 0;
  bool is_woken_ = false;
  bool core_has_work_ = false;
  EngineStats stats_;
};

Engine::Engine(Model model, const EngineOptions& options)
    : implementation_(std::make_unique<Implementation>(std::move(model), options)) {}
Engine::~Engine() = default;

const Model& Engine::model() const { return implementation_->model(); }
const EngineOptions& Engine::options() const { return implementation_->options(); }

RequestId Engine::submit(Request request) {
  implementation_->core().check(request);
  return implementation_->submit(std::move(request));
}

RequestId Engine::submit(EmbeddingRequest request) {
  implementation_->core().check_prompt(request.prompt);
  return implementation_->submit(std::move(request));
}

RequestId Engine::submit(AttentionRequest request) {
  implementation_->core().check(request);
  return implementation_->submit(std::move(request));
}

bool Engine::cancel(RequestId id) { return implementation_->cancel(id); }
std::vector<Event> Engine::step() { return implementation_->step(); }
bool Engine::has_work() const { return implementation_->has_work(); }
bool Engine::wait(std::chrono::milliseconds timeout) { return implementation_->wait(timeout); }
void Engine::wake() { implementation_->wake(); }
EngineStats Engine::stats() const { return implementation_->stats(); }

}  // namespace tessera
