#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "engine/prompt_logits.h"
#include "engine/runtime.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using TokenCallback = std::function<bool(std::int32_t token, std::string_view text)>;

LoadOptions load_options(const ModelOptions& options) {
  return {options.backend, options.device, options.activation_dtype, options.on_progress};
}

/// How far the prompts of one call are, all together.
class PrefillReport {
 public:
  PrefillReport(std::function<void(const Progress&)> on_progress, std::int64_t total)
      : on_progress_(std::move(on_progress)), total_(static_cast<std::uint64_t>(total)) {}

  /// Tells on_progress if there is news, and within a step anyway, so that it can end it.
  void add(std::span<const PrefillProgress> progress, bool is_within_step) {
    for (const PrefillProgress& p : progress) {
      std::uint64_t& done = done_by_id_[p.id];
      const std::uint64_t now = std::max(done, static_cast<std::uint64_t>(p.tokens));
      done_ += now - done;
      done = now;
    }
    if (done_ == reported_ && !is_within_step) return;
    reported_ = done_;
    on_progress_({Progress::Stage::kPrefill, done_, total_});
  }

 private:
  std::function<void(const Progress&)> on_progress_;
  std::map<RequestId, std::uint64_t> done_by_id_;
  std::uint64_t total_, done_ = 0, reported_ = 0;
};

/// Forgets a core's requests at the end of a call, however it ends.
class RequestsOfACall {
 public:
  explicit RequestsOfACall(EngineCore& core) : core_(core) {}
  RequestsOfACall(const RequestsOfACall&) = delete;
  RequestsOfACall& operator=(const RequestsOfACall&) = delete;
  ~RequestsOfACall() {
    if (!is_done_) core_.clear();
  }
  void done() { is_done_ = true; }

 private:
  EngineCore& core_;
  bool is_done_ = false;
};

}  // namespace

class LanguageModel::Implementation {
 public:
  Implementation(Model model, const ModelOptions& options)
      : model_(std::move(model)),
        on_progress_(options.on_progress),
        runtime_(model_.loaded(), runtime_options(options), on_prefill()),
        info_(model_.info()) {
    info_.kv_dtype = runtime_.cache().shape().dtype;
    info_.max_seq_len = runtime_.options().max_seq_len;
    info_.kv_cache_bytes = runtime_.cache().size_bytes();
  }

  const Model& model() const { return model_; }
  const ModelInfo& info() const { return info_; }

  std::vector<float> logits(std::span<const std::int32_t> tokens, bool all) {
    const std::lock_guard lock(model_.loaded()->step_mutex());
    runtime_.core().clear();
    std::function<void(std::int64_t, bool)> on_progress;
    if (on_progress_) {
      on_progress = [&](std::int64_t done, bool) {
        on_progress_({Progress::Stage::kPrefill, static_cast<std::uint64_t>(done), tokens.size()});
      };
    }
    return prompt_logits(runtime_, tokens, all, on_progress);
  }

  /// on_token, unless empty, is for one prompt.
  std::vector<Generation> generate(std::vector<Request> requests, bool keep_cache,
                                   const TokenCallback& on_token);

 private:
  EngineCore& core() { return runtime_.core(); }

  /// The device is others' between steps: on_token may run another of the same model.
  std::vector<Event> step() {
    const std::lock_guard lock(model_.loaded()->step_mutex());
    return core().step();
  }

  Runtime::OnPrefill on_prefill() {
    if (!on_progress_) return {};
    return [this](std::span<const PrefillProgress> progress, bool is_within_step) {
      prefill_report_->add(progress, is_within_step);
    };
  }

  Model model_;
  std::function<void(const Progress&)> on_progress_;
  std::optional<PrefillReport> prefill_report_;
  Runtime runtime_;
  ModelInfo info_;
};

std::vector<Generation> LanguageModel::Implementation::generate(std::vector<Request> requests,
                                                                bool keep_cache,
                                                                const TokenCallback& on_token) {
  const std::size_t count = requests.size();
  if (static_cast<std::int64_t>(count) > runtime_.options().max_batch) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} prompts are to run side by side; expected at most max_batch, {}", count,
                            runtime_.options().max_batch));
  }
  if (keep_cache && count > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("keep_cache is for one prompt at a time; {} were given", count));
  }
  std::int64_t prompt_tokens = 0;
  std::vector<bool> wants_logprobs;
  for (const Request& request : requests) {
    core().check(request);
    wants_logprobs.push_back(request.top_logprobs.has_value());
    prompt_tokens += std::ssize(request.prompt);
  }

  RequestsOfACall requests_of_this_call(core());
  prefill_report_.reset();
  if (on_progress_) prefill_report_.emplace(on_progress_, prompt_tokens);
  for (std::size_t i = 0; i < count; ++i) core().add(i, std::move(requests[i]), keep_cache);

  std::vector<Generation> results(count);
  std::vector<bool> has_begun(count), is_cancelled(count);
  GenerationStats stats;
  const Clock::time_point begin = Clock::now();
  Clock::time_point prefilled = begin;
  while (core().has_work()) {
    for (Event& event : step()) {
      const auto i = static_cast<std::size_t>(event.id);
      if (event.type == Event::Type::kError) throw Error(event.error_code, event.error_message);
      if (!has_begun[i]) prefilled = Clock::now();
      has_begun[i] = true;
      const bool is_last = event.type == Event::Type::kFinished;
      if (is_last) {
        stats.prompt_tokens += event.stats.prompt_tokens;
        stats.cached_tokens += event.stats.cached_tokens;
        stats.generated_tokens += event.stats.generated_tokens;
      }
      if (is_cancelled[i]) continue;
      if (!is_last) {
        results[i].tokens.push_back(event.token);
        if (wants_logprobs[i]) {
          results[i].logprobs.push_back(event.logprob);
          results[i].top_logprobs.push_back(std::move(event.top_logprobs));
        }
      }
      if (is_last) results[i].stop_reason = event.stop_reason;
      if (!on_token || (is_last && event.text.empty())) continue;
      // Text behind the last token comes with the token that ended it.
      const std::int32_t token = is_last ? event.token : results[i].tokens.back();
      if (!on_token(token, event.text) && !is_last) {
        results[i].stop_reason = StopReason::kCancelled;
        is_cancelled[i] = true;
        core().cancel(event.id);
      }
    }
  }
  requests_of_this_call.done();
  stats.prefill_ms = milliseconds_between(begin, prefilled);
  stats.decode_ms = milliseconds_between(prefilled, Clock::now());
  for (Generation& result : results) result.stats = stats;
  return results;
}

LanguageModel::LanguageModel(Model model, const ModelOptions& options)
    : implementation_(std::make_unique<Implementation>(std::move(model), options)) {}
LanguageModel::LanguageModel(LanguageModel&&) noexcept = default;
LanguageModel& LanguageModel::operator=(LanguageModel&&) noexcept = default;
LanguageModel::~LanguageModel() = default;

LanguageModel LanguageModel::load(const std::filesystem::path& path, const ModelOptions& options) {
  validate(runtime_options(options));  // before the weights are read
  return LanguageModel(Model::load(path, load_options(options)), options);
}

LanguageModel LanguageModel::random(const RandomModelShape& shape, DType weight_dtype,
                                    const ModelOptions& options) {
  validate(runtime_options(options));
  return LanguageModel(Model::random(shape, weight_dtype, load_options(options)), options);
}

LanguageModel LanguageModel::random(const RandomModelShape& shape, std::string_view mix,
                                    const ModelOptions& options) {
  validate(runtime_options(options));
  return LanguageModel(Model::random(shape, mix, load_options(options)), options);
}

LanguageModel LanguageModel::random_like(const std::filesystem::path& config_json, std::string_view type,
                                         const ModelOptions& options) {
  validate(runtime_options(options));
  return LanguageModel(Model::random_like(config_json, type, load_options(options)), options);
}

const ModelInfo& LanguageModel::info() const { return implementation_->info(); }

const Model& LanguageModel::model() const { return implementation_->model(); }

std::vector<std::int32_t> LanguageModel::encode(std::string_view text, bool add_special_tokens) const {
  return implementation_->model().encode(text, add_special_tokens);
}

std::string LanguageModel::decode(std::span<const std::int32_t> tokens, bool skip_special_tokens) const {
  return implementation_->model().decode(tokens, skip_special_tokens);
}

std::string LanguageModel::render_chat(std::span<const ChatMessage> messages,
                                       const ChatOptions& options) const {
  return implementation_->model().render_chat(messages, options);
}

std::vector<std::int32_t> LanguageModel::encode_chat(std::span<const ChatMessage> messages,
                                                     const ChatOptions& options) const {
  return implementation_->model().encode_chat(messages, options);
}

std::vector<float> LanguageModel::logits(std::span<const std::int32_t> tokens, bool all) {
  return implementation_->logits(tokens, all);
}

Generation LanguageModel::generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                                   const TokenCallback& on_token) {
  std::vector<Request> requests;
  requests.push_back(make_request(prompt, options));
  return std::move(implementation_->generate(std::move(requests), options.keep_cache, on_token).front());
}

std::vector<Generation> LanguageModel::generate_batch(std::span<const std::vector<std::int32_t>> prompts,
                                                      std::span<const GenerateOptions> options) {
  if (options.size() != 1 && options.size() != prompts.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} sets of options came with {} prompts; expected one for all or one a prompt",
                            options.size(), prompts.size()));
  }
  std::vector<Request> requests;
  bool keep_cache = false;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const GenerateOptions& own = options[options.size() == 1 ? 0 : i];
    keep_cache |= own.keep_cache;
    requests.push_back(make_request(prompts[i], own));
  }
  return implementation_->generate(std::move(requests), keep_cache, {});
}

}  // namespace tessera
